"""The bodies of the parties' answers: how they are written, and read back from what a liar may have sent.

``parse`` raises ValueError (also KeyError and TypeError) for anything malformed; the game turns that into a loss.
Hashes are lower-case hex, lists of hashes one hex string, records base64.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vt_core.dispute.bisection import LEVELS
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.work import leaf_data

HASH = 32
MAX_RECORDS = 1 << 24
MAX_RECORD_BYTES = 8 << 20
MAX_USES = 1 << 14
MAX_PROOF = 64

_HEX = re.compile(r"(?:[0-9a-f]{2})*")


@dataclass(frozen=True)
class RootClaim:
    """Number of leaves and their root."""

    size: int
    root: bytes

    def body(self) -> dict[str, Any]:
        """Return the answer to ``roots``."""
        return {"size": self.size, "root": self.root.hex()}

    @staticmethod
    def parse(body: Mapping[str, Any]) -> RootClaim:
        """Read it."""
        _fields(body, "size", "root")
        return RootClaim(_count(body["size"]), _hash(body["root"]))


@dataclass(frozen=True)
class TreeClaim:
    """The hashes of a node's descendants, left to right."""

    hashes: list[bytes]

    def body(self) -> dict[str, Any]:
        """Return the answer to ``tree``."""
        return {"hashes": b"".join(self.hashes).hex()}

    @staticmethod
    def parse(body: Mapping[str, Any]) -> TreeClaim:
        """Read it."""
        _fields(body, "hashes")
        return TreeClaim(_hashes(body["hashes"], 1 << LEVELS))


@dataclass(frozen=True)
class StepDigests:
    """What one step adds to its leaf: state root after it, digests of its log and of its trace (32 bytes each)."""

    state: bytes
    log: bytes
    trace: bytes


@dataclass(frozen=True)
class LeafBefore:
    """The leaf before: its state root, log, trace and work (32 bytes each), and its path to the party's root."""

    digests: tuple[bytes, bytes, bytes, bytes]
    proof: Sequence[bytes]


@dataclass(frozen=True)
class LeafClaim:
    """What a leaf is made of: each of its steps, and the work commitment; and the leaf before, None for the first."""

    steps: Sequence[StepDigests]
    work: bytes
    before: LeafBefore | None

    def data(self, last_step: int) -> bytes:
        """Return the bytes of the leaf after ``last_step`` that follow from the steps."""
        log = hashlib.sha256(b"".join(s.log for s in self.steps)).digest()
        trace = hashlib.sha256(b"".join(s.trace for s in self.steps)).digest()
        return leaf_data(last_step, self.steps[-1].state, log, trace, self.work)

    def body(self) -> dict[str, Any]:
        """Return the answer to ``leaf``."""
        before = None
        if self.before is not None:
            before = {"digests": b"".join(self.before.digests).hex(), "proof": b"".join(self.before.proof).hex()}
        steps = b"".join(s.state + s.log + s.trace for s in self.steps)
        return {"steps": steps.hex(), "work": self.work.hex(), "before": before}

    @staticmethod
    def parse(body: Mapping[str, Any], steps: int, has_before: bool) -> LeafClaim:
        """Read one over exactly ``steps`` steps."""
        _fields(body, "steps", "work", "before")
        digests = _hashes(body["steps"], 3 * steps)
        if len(digests) != 3 * steps:
            raise ValueError(f"the leaf covers {steps} steps")
        rows = [StepDigests(*digests[3 * i : 3 * i + 3]) for i in range(steps)]
        if (body["before"] is not None) != has_before:
            raise ValueError("the leaf before is needed, for every leaf but the first")
        before = None
        if has_before:
            _fields(body["before"], "digests", "proof")
            state, log, trace, work = _hashes(body["before"]["digests"], 4)
            before = LeafBefore((state, log, trace, work), _hashes(body["before"]["proof"], MAX_PROOF))
        return LeafClaim(rows, _hash(body["work"]), before)


@dataclass(frozen=True)
class RecordsClaim:
    """The op records of one step: how many, the root over them (padded to a power of two), and the last one."""

    count: int
    root: bytes
    last: bytes
    proof: Sequence[bytes]

    def body(self) -> dict[str, Any]:
        """Return the answer to ``records``."""
        return {
            "count": self.count,
            "root": self.root.hex(),
            "last": base64.b64encode(self.last).decode("ascii"),
            "proof": b"".join(self.proof).hex(),
        }

    @staticmethod
    def parse(body: Mapping[str, Any]) -> RecordsClaim:
        """Read it."""
        _fields(body, "count", "root", "last", "proof")
        count = _count(body["count"])
        if not 0 < count <= MAX_RECORDS:
            raise ValueError(f"a step has 1 to {MAX_RECORDS} records")
        return RecordsClaim(count, _hash(body["root"]), _record(body["last"]), _hashes(body["proof"], MAX_PROOF))


@dataclass(frozen=True)
class RecordClaim:
    """One record (empty if the party has no record of that number) and the earlier ones that it uses, with paths."""

    record: bytes
    uses: Mapping[int, bytes] = field(default_factory=dict)
    proofs: Mapping[int, Sequence[bytes]] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the answer to ``record``."""
        uses = [
            {
                "index": i,
                "record": base64.b64encode(self.uses[i]).decode("ascii"),
                "proof": b"".join(self.proofs[i]).hex(),
            }
            for i in sorted(self.uses)
        ]
        return {"record": base64.b64encode(self.record).decode("ascii") if self.record else None, "uses": uses}

    @staticmethod
    def parse(body: Mapping[str, Any]) -> RecordClaim:
        """Read it."""
        _fields(body, "record", "uses")
        uses: dict[int, bytes] = {}
        proofs: dict[int, list[bytes]] = {}
        if not isinstance(body["uses"], list) or len(body["uses"]) > MAX_USES:
            raise ValueError(f"uses must be a list of at most {MAX_USES} records")
        for item in body["uses"]:
            _fields(item, "index", "record", "proof")
            index = _count(item["index"])
            if index in uses:
                raise ValueError(f"record {index} is given twice")
            uses[index], proofs[index] = _record(item["record"]), _hashes(item["proof"], MAX_PROOF)
        return RecordClaim(b"" if body["record"] is None else _record(body["record"]), uses, proofs)


@dataclass(frozen=True)
class ExhibitClaim:
    """What a party shows of the facts agreed on before training; empty if it has nothing to show."""

    exhibit: bytes

    def body(self) -> dict[str, Any]:
        """Return the answer to ``exhibit``."""
        return {"exhibit": base64.b64encode(self.exhibit).decode("ascii") if self.exhibit else None}

    @staticmethod
    def parse(body: Mapping[str, Any]) -> ExhibitClaim:
        """Read it."""
        _fields(body, "exhibit")
        return ExhibitClaim(b"" if body["exhibit"] is None else _record(body["exhibit"]))


@dataclass(frozen=True)
class WitnessClaim:
    """SHA-256 (hex) and size of each part of a witness, which travels beside the message."""

    parts: Sequence[tuple[str, int]]

    @staticmethod
    def of(parts: Sequence[bytes]) -> WitnessClaim:
        """Return the claim for these parts."""
        return WitnessClaim([(sha256_bytes(part), len(part)) for part in parts])

    def body(self) -> dict[str, Any]:
        """Return the answer to ``witness``."""
        return {"parts": [{"sha256": sha256, "size": size} for sha256, size in self.parts]}

    @staticmethod
    def parse(body: Mapping[str, Any], max_parts: int, max_part_bytes: int) -> WitnessClaim:
        """Read it."""
        _fields(body, "parts")
        if not isinstance(body["parts"], list) or not 0 < len(body["parts"]) <= max_parts:
            raise ValueError(f"a witness has 1 to {max_parts} parts")
        parts = []
        for item in body["parts"]:
            _fields(item, "sha256", "size")
            size = _count(item["size"])
            if size > max_part_bytes:
                raise ValueError(f"a part of a witness has at most {max_part_bytes} bytes")
            parts.append((_hash(item["sha256"]).hex(), size))
        return WitnessClaim(parts)


def _fields(plain: Any, *names: str) -> None:
    if not isinstance(plain, Mapping) or set(plain) != set(names):
        raise ValueError(f"exactly {', '.join(names)} are needed")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count is needed")
    return value


def _hash(text: Any) -> bytes:
    found = _hashes(text, 1)
    if len(found) != 1:
        raise ValueError("a hash of 32 bytes is needed")
    return found[0]


def _hashes(text: Any, most: int) -> list[bytes]:
    if not isinstance(text, str) or len(text) > 2 * HASH * most or not _HEX.fullmatch(text):
        raise ValueError(f"at most {most} hashes in lower-case hex are needed")
    raw = bytes.fromhex(text)
    if len(raw) % HASH:
        raise ValueError("hashes have 32 bytes each")
    return [raw[i : i + HASH] for i in range(0, len(raw), HASH)]


def _record(text: Any) -> bytes:
    if not isinstance(text, str) or not 0 < len(text) <= 4 * MAX_RECORD_BYTES // 3 + 4:
        raise ValueError(f"a record has 1 to {MAX_RECORD_BYTES} bytes, in base64")
    raw = base64.b64decode(text, validate=True)  # binascii.Error is a ValueError
    if not raw or base64.b64encode(raw).decode("ascii") != text:
        raise ValueError("a record is not in canonical base64")
    return raw
