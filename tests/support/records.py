"""Runs made of records alone: their commitments are in order, nothing was trained and there are no artifacts."""

from __future__ import annotations

import hashlib
from typing import Any

from tasks.runs import RunStore
from tasks.store import CommitmentStore, Store
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.merkle import root
from vt_core.evidence.ranges import segment_range
from vt_core.evidence.records import Seal, SegmentRecord

LENGTH = 2  # steps of a segment
SPEC = {
    "reference": "my.jobs:Job", "segment_steps": LENGTH, "seed": "0", "compute_dtype": "float64", "grid": "float32",
}  # fmt: skip


def make_run(store: Store, run_id: str, segments: int, sealed: bool = True, verdict: str | None = None) -> RunStore:
    """Publish a run of ``segments`` segments (the first is the initialisation)."""
    run = RunStore(store, run_id)
    steps = LENGTH * (segments - 1)
    spec = dumps({**SPEC, "steps": steps})
    run.publish_spec(spec)
    records: list[SegmentRecord] = []
    leaves: list[bytes] = []
    for index in range(segments):
        first, last = segment_range(steps, LENGTH, index)
        own = [hashlib.sha256(f"{run_id} {step}".encode()).digest() for step in range(first, last + 1)]
        leaves += own
        record = SegmentRecord(
            run_id=run_id, spec=sha256_bytes(spec), index=index, first_step=first, last_step=last,
            previous=records[-1].digest() if records else None,
            files={"leaves.bin": {"sha256": sha256_bytes(b"".join(own)), "size": 32 * len(own)}},
            leaves=[leaf.hex() for leaf in own], root=root(own).hex(),
            pointer={"md5": f"{index:032x}.dir", "nfiles": 1, "path": f"segment-{index:05d}", "size": 32 * len(own)},
        )  # fmt: skip
        run.publish_segment(record)
        records.append(record)
    if sealed:
        run.publish_seal(
            Seal(
                run_id=run_id, spec=sha256_bytes(spec), segments=[r.digest() for r in records],
                leaf_count=len(leaves), root=root(leaves).hex(), state="2" * 64,
            )
        )  # fmt: skip
    if verdict is not None:
        judge(run, verdict, range(segments))
    return run


def judge(run: RunStore, verdict: str, indices: Any, stamp: str = "20260101T000000Z") -> str:
    """Store a verdict over some segments; returns its name."""
    rows = [{"index": i} for i in indices]
    reason = None if verdict == "verified" else "made_for_a_test"
    return run.publish_verdict({"verdict": verdict, "reason": reason, "segments": rows, "time": stamp}, stamp)


class Counting:
    """A commitment store that counts its calls by method."""

    def __init__(self, store: CommitmentStore) -> None:
        self._store, self.calls = store, dict.fromkeys(("create", "read", "exists", "list", "hash"), 0)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__["calls"]:
            self.calls[name] += 1
        return getattr(self._store, name)

    @property
    def total(self) -> int:
        """All calls so far."""
        return sum(self.calls.values())
