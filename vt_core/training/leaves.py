"""Leaves: one commitment for every commit interval, over the state, the log, the trace and the work.

A leaf is SHA-256 over (step, state root, log digest, trace digest, work commitment), where the last three cover all
steps since the leaf before. The work commitment hides what only a replay yields (``evidence/work.py``). The file
``leaves.json`` also holds the root of each tensor, so that a difference can be located.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.evidence.work import Work, leaf_data
from vt_core.training.state import StateDigest

FORMAT = "vt-leaves/1"
MAX_LEAVES_BYTES = 1 << 28  # reading takes about twelve times as much memory


@dataclass(frozen=True)
class Leaf:
    """What a trainer commits to at one step."""

    step: int
    state: bytes
    log: bytes
    trace: bytes
    work: bytes
    tensors: dict[str, bytes]

    def data(self) -> bytes:
        """Return the bytes that the Merkle tree's leaf covers."""
        return leaf_data(self.step, self.state, self.log, self.trace, self.work)

    def hash(self) -> bytes:
        """Return the RFC 6962 leaf hash."""
        return leaf_hash(self.data())


def make_leaf(
    step: int, state: StateDigest, logs: Iterable[bytes], traces: Iterable[bytes], words: Iterable[bytes]
) -> Leaf:
    """Make the leaf after ``step`` from the digests and the words of the steps since the last leaf."""
    log = hashlib.sha256(b"".join(logs)).digest()
    trace = hashlib.sha256(b"".join(traces)).digest()
    return Leaf(step, state.root, log, trace, Work(b"".join(words)).commitment(), state.tensors)


def leaves_root(leaves: Sequence[Leaf]) -> bytes:
    """Return the Merkle root (RFC 6962) over leaves."""
    return root([leaf.hash() for leaf in leaves])


def encode_leaves(leaves: Sequence[Leaf]) -> bytes:
    """Return the canonical bytes of ``leaves.json``. Raises SpecError for more than an auditor reads."""
    tables: list[list[str]] = []
    items = []
    for leaf in leaves:
        names = sorted(leaf.tensors)
        if not tables or tables[-1] != names:
            tables.append(names)
        items.append(
            {
                "step": leaf.step,
                "state": leaf.state.hex(),
                "log": leaf.log.hex(),
                "trace": leaf.trace.hex(),
                "work": leaf.work.hex(),
                "names": len(tables) - 1,
                "tensors": b"".join(leaf.tensors[name] for name in names).hex(),
            }
        )
    data = dumps({"format": FORMAT, "names": tables, "leaves": items})
    if len(data) > MAX_LEAVES_BYTES:
        raise SpecError(
            f"leaves.json would have {len(data)} bytes, the limit is {MAX_LEAVES_BYTES}: give a longer commit_interval "
            "or shorter segments"
        )
    return data


def decode_leaves(data: bytes) -> list[Leaf]:
    """Read ``leaves.json``. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "leaves.json", MAX_LEAVES_BYTES)
    try:
        if plain["format"] != FORMAT:
            raise ValueError(f"not a {FORMAT} object")
        return [_leaf(item, plain["names"]) for item in plain["leaves"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise EvidenceError("evidence_malformed", f"leaves.json: {error!r}", file="leaves.json") from error


def _leaf(item: dict[str, Any], tables: list[list[str]]) -> Leaf:
    step, table = item["step"], item["names"]
    if type(step) is not int or step < 0 or type(table) is not int or table < 0:
        raise ValueError("step and names must be counts")
    names = tables[table]
    roots = bytes.fromhex(item["tensors"])
    if len(roots) != 32 * len(names) or not all(isinstance(n, str) for n in names):
        raise ValueError("one root of 32 bytes is needed for each name")
    state, log, trace, work = (bytes.fromhex(item[key]) for key in ("state", "log", "trace", "work"))
    if not len(state) == len(log) == len(trace) == len(work) == 32:
        raise ValueError("a digest must have 32 bytes")
    return Leaf(step, state, log, trace, work, {n: roots[32 * i : 32 * i + 32] for i, n in enumerate(names)})
