"""Proof that a run commits to a state at a step: one file that a client can mail and check offline.

It holds the leaf's content, its RFC 6962 path to the sealed root, the seal, and the signed checkpoint over the seal.
Whoever has the trainer's public key needs nothing else: no store, no artifacts, no libraries of a replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.digests import is_sha256, sha256_bytes
from vt_core.evidence.keys import VerifierKey
from vt_core.evidence.merkle import Tree, leaf_hash, verify_inclusion
from vt_core.evidence.note import parse_checkpoint, parse_note
from vt_core.evidence.records import Seal, SegmentRecord, parse_seal
from vt_core.evidence.signatures import NOTE, check_checkpoint
from vt_core.evidence.work import leaf_data

PROOF_FORMAT = "vt-proof/1"
MAX_PROOF_BYTES = 64 << 20
_FIELDS = {"format", "run_id", "step", "leaf", "index", "path", "seal", "note"}
_DIGESTS = ("state", "log", "trace", "work")
_WHAT = "the proof"


@dataclass(frozen=True)
class Proven:
    """What a checked proof says. Digests are SHA-256 in hex; ``leaf_step`` is the step that the leaf commits to."""

    run_id: str
    spec: str
    root: str
    step: int
    leaf_step: int
    index: int
    leaves: int
    state: str
    signed_by: str


def make_proof(
    step: int, leaf: Mapping[str, Any], index: int, records: Sequence[SegmentRecord], seal: Seal, note: bytes
) -> bytes:
    """Return the proof (canonical JSON) for leaf number ``index`` of the run.

    ``leaf`` maps step (int), state, log, trace and work (32 bytes each) to what ``leaves.json`` holds for it. Raises
    EvidenceError("evidence_malformed") if the records commit to another leaf there.
    """
    plain = {"step": leaf["step"], **{name: leaf[name].hex() for name in _DIGESTS}}
    hashes = [h for record in records for h in record.leaf_hashes()]
    if leaf_hash(_leaf_data(plain)) != hashes[index]:
        raise EvidenceError("evidence_malformed", f"leaf {index} is not the one that its record commits to", step=step)
    return dumps(
        {
            "format": PROOF_FORMAT,
            "run_id": seal.run_id,
            "step": step,
            "leaf": plain,
            "index": index,
            "path": [h.hex() for h in Tree(hashes).path(index)],
            "seal": loads_strict(seal.to_bytes(), "seal.json"),
            "note": note.decode("utf-8"),
        }
    )


def check_proof_file(data: bytes, key: VerifierKey) -> Proven:
    """Check a proof with the trainer's public key; ``data`` may end in one newline.

    Raises EvidenceError: ``evidence_malformed``, ``signature_invalid``, or ``chain_broken`` if signature, seal, path
    and leaf do not belong together.
    """
    plain = loads_strict(data.removesuffix(b"\n"), _WHAT, MAX_PROOF_BYTES)
    if not isinstance(plain, dict) or set(plain) != _FIELDS or plain["format"] != PROOF_FORMAT:
        raise _malformed(f"not a {PROOF_FORMAT} object")
    step, index, path = plain["step"], plain["index"], plain["path"]
    if not all(type(n) is int and n >= 0 for n in (step, index)) or not isinstance(plain["note"], str):
        raise _malformed("step, index or note has another form")
    if not isinstance(path, list) or not all(is_sha256(h) for h in path):
        raise _malformed("path must be a list of SHA-256 digests")
    note = parse_note(plain["note"].encode("utf-8", "surrogatepass"), NOTE)
    note.verify(key, NOTE)
    checkpoint = parse_checkpoint(note, NOTE)
    # Canonical JSON inside canonical JSON: written out again, it has the bytes that were signed for.
    sealed = dumps(plain["seal"])
    if sha256_bytes(sealed) != checkpoint.seal:
        raise EvidenceError("chain_broken", "the proof holds another seal than the signed one", file="seal.json")
    seal = parse_seal(sealed)
    check_checkpoint(checkpoint, seal)
    if plain["run_id"] != seal.run_id:
        raise EvidenceError("chain_broken", "the proof names another run than the signed seal", file="seal.json")
    leaf = plain["leaf"]
    verify_inclusion(
        leaf_hash(_leaf_data(leaf)), index, seal.leaf_count, [bytes.fromhex(h) for h in path], bytes.fromhex(seal.root)
    )
    if leaf["step"] < step:
        raise EvidenceError("chain_broken", f"the leaf is of step {leaf['step']}, before step {step}", step=step)
    return Proven(
        seal.run_id, seal.spec, seal.root, step, leaf["step"], index, seal.leaf_count, leaf["state"], key.keyid
    )


def _leaf_data(leaf: Any) -> bytes:
    if not isinstance(leaf, dict) or set(leaf) != {"step", *_DIGESTS}:
        raise _malformed("the leaf needs exactly step, state, log, trace and work")
    if (
        type(leaf["step"]) is not int
        or not 0 <= leaf["step"] < 1 << 63
        or not all(is_sha256(leaf[n]) for n in _DIGESTS)
    ):
        raise _malformed("a field of the leaf has another form")
    return leaf_data(leaf["step"], *(bytes.fromhex(leaf[name]) for name in _DIGESTS))


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{_WHAT} is malformed: {why}", document=_WHAT)
