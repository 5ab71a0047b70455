"""Commitments of a run: one record for each segment, chained by digest, and a seal over all of them.

A segment's record lists its files with SHA-256, its step range, its leaf hashes and their Merkle root, the digest
of the record before it and the DVC pointer of the artifacts. MD5 addresses in the pointer are locations only.
The seal closes the run: the digests of all records and the RFC 6962 root over all leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.digests import is_sha256, sha256_bytes
from vt_core.evidence.merkle import root

SEGMENT_FORMAT = "vt-segment/1"
SEAL_FORMAT = "vt-seal/1"
MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True)
class Commitments:
    """The commitments of a run as read from the store; ``None`` where an object is absent.

    ``agreement``: the parties' envelope over the spec. ``note``: the signed checkpoint over the seal. ``model``: the
    final model's attestation.
    """

    run_id: str
    spec: bytes | None
    segments: Sequence[bytes]
    seal: bytes | None
    agreement: bytes | None = None
    note: bytes | None = None
    model: bytes | None = None


@dataclass(frozen=True)
class SegmentRecord:
    """The commitment to one segment. Digests are SHA-256 in lower-case hex; ``previous`` is None for segment 0."""

    run_id: str
    spec: str
    index: int
    first_step: int
    last_step: int
    previous: str | None
    files: Mapping[str, Mapping[str, Any]]
    leaves: Sequence[str]
    root: str
    pointer: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of ``segment.json``."""
        return dumps({**self.__dict__, "format": SEGMENT_FORMAT, "leaves": list(self.leaves)})

    def digest(self) -> str:
        """Return SHA-256 over the canonical bytes."""
        return sha256_bytes(self.to_bytes())

    def leaf_hashes(self) -> list[bytes]:
        """Return the leaf hashes as bytes."""
        return [bytes.fromhex(leaf) for leaf in self.leaves]


@dataclass(frozen=True)
class Seal:
    """The commitment to a whole run: digests of all segment records in order, root over all leaves."""

    run_id: str
    spec: str
    segments: Sequence[str]
    leaf_count: int
    root: str
    state: str

    def to_bytes(self) -> bytes:
        """Return the canonical bytes of ``seal.json``."""
        return dumps({**self.__dict__, "format": SEAL_FORMAT, "segments": list(self.segments)})


def parse_segment(data: bytes, what: str) -> SegmentRecord:
    """Read a segment record. Raises EvidenceError("evidence_malformed") for anything but a well-formed one."""
    plain = _object(data, what, SEGMENT_FORMAT, SegmentRecord)
    record = SegmentRecord(**plain)
    counts = (record.index, record.first_step, record.last_step)
    if not all(type(n) is int and n >= 0 for n in counts):
        raise _malformed(what, "index and steps must be counts")
    if type(record.run_id) is not str or not is_sha256(record.spec) or not is_sha256(record.root):
        raise _malformed(what, "run_id, spec or root has another form")
    if record.previous is not None and not is_sha256(record.previous):
        raise _malformed(what, "previous is not a SHA-256 digest")
    if not isinstance(record.leaves, list) or not record.leaves or not all(is_sha256(leaf) for leaf in record.leaves):
        raise _malformed(what, "leaves must be a list of SHA-256 digests")
    if not isinstance(record.files, dict) or not isinstance(record.pointer, dict):
        raise _malformed(what, "files and pointer must be objects")
    for name, entry in record.files.items():
        if not isinstance(entry, dict) or set(entry) != {"sha256", "size"} or not is_sha256(entry["sha256"]):
            raise _malformed(what, f"files[{name!r}] needs exactly sha256 and size")
        if type(entry["size"]) is not int or entry["size"] < 0:
            raise _malformed(what, f"files[{name!r}].size must be a count")
    if root(record.leaf_hashes()).hex() != record.root:
        raise _malformed(what, "root is not the Merkle root of leaves")
    return record


def parse_seal(data: bytes) -> Seal:
    """Read a seal. Raises EvidenceError("evidence_malformed")."""
    what = "seal.json"
    seal = Seal(**_object(data, what, SEAL_FORMAT, Seal))
    if type(seal.run_id) is not str or type(seal.leaf_count) is not int:
        raise _malformed(what, "run_id or leaf_count has another form")
    if not all(is_sha256(d) for d in (seal.spec, seal.root, seal.state)):
        raise _malformed(what, "spec, root and state must be SHA-256 digests")
    if not isinstance(seal.segments, list) or not all(is_sha256(d) for d in seal.segments):
        raise _malformed(what, "segments must be a list of SHA-256 digests")
    return seal


def check_chain(
    run_id: str,
    spec_digest: str,
    ranges: Sequence[tuple[int, int]],
    records: Sequence[SegmentRecord],
    seal: Seal | None,
    digests: Sequence[str] | None = None,
) -> None:
    """Check that records follow one another, belong to this run and spec, and are what the seal sealed.

    ``ranges`` holds the (first, last) steps of every segment of the spec. ``digests`` are those of the records, if
    the caller has their bytes: writing them out again takes most of the time. Raises EvidenceError: ``spec_mismatch``,
    ``chain_broken`` or ``evidence_malformed``, with the segment.
    """
    digests = [record.digest() for record in records] if digests is None else digests
    for index, record in enumerate(records):
        if record.spec != spec_digest:
            raise EvidenceError("spec_mismatch", f"segment {index} was made for another run spec", segment=index)
        if record.run_id != run_id:
            raise EvidenceError("chain_broken", f"segment {index} belongs to run {record.run_id!r}", segment=index)
        if record.index != index or (record.first_step, record.last_step) != ranges[index]:
            raise EvidenceError("chain_broken", f"segment {index} covers other steps than the spec says", segment=index)
        if record.previous != (digests[index - 1] if index else None):
            raise EvidenceError("chain_broken", f"segment {index} does not follow the one before it", segment=index)
    if seal is None:
        return
    if seal.run_id != run_id or seal.spec != spec_digest:
        raise EvidenceError("spec_mismatch", "the seal belongs to another run or run spec", file="seal.json")
    if len(seal.segments) != len(ranges):
        raise EvidenceError(
            "chain_broken",
            f"the run was sealed with {len(seal.segments)} of {len(ranges)} segments",
            file="seal.json",
        )
    for index, (sealed, found) in enumerate(zip(seal.segments, digests, strict=False)):
        if sealed != found:
            raise EvidenceError("chain_broken", f"segment {index} is not the one that was sealed", segment=index)
    if len(digests) < len(ranges):
        raise EvidenceError("artifact_missing", f"segment {len(digests)} is missing", segment=len(digests))
    leaves = [leaf for record in records for leaf in record.leaf_hashes()]
    if seal.leaf_count != len(leaves) or seal.root != root(leaves).hex():
        raise EvidenceError("chain_broken", "the sealed root is not the root over all leaves", file="seal.json")


def _object(data: bytes, what: str, form: str, cls: type) -> dict[str, Any]:
    plain = loads_strict(data, what, MAX_RECORD_BYTES)
    names = {*cls.__dataclass_fields__, "format"}  # type: ignore[attr-defined]
    if not isinstance(plain, dict) or set(plain) != names or plain.pop("format") != form:
        raise _malformed(what, f"not a {form} object")
    return plain


def _malformed(what: str, why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what}: {why}", file=what)
