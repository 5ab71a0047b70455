"""Runs made of records alone: their commitments are in order, nothing was trained and there are no artifacts."""

from __future__ import annotations

import hashlib
from typing import Any

from tasks.runs import RunStore
from tasks.store import CommitmentStore, Store
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.merkle import Tree, leaf_hash, root
from vt_core.evidence.ranges import segment_range
from vt_core.evidence.records import Seal, SegmentRecord
from vt_core.evidence.work import Work, leaf_data

LENGTH = 2  # steps of a segment
SPEC = {
    "format": "vt-run-spec/1", "reference": "my.jobs:Job", "segment_steps": LENGTH, "commit_interval": 1, "seed": "0",
    "compute_dtype": "float64", "grid": "float32",
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
        own = [leaf_hash(leaf(run_id, step)) for step in range(first, last + 1)]
        leaves += own
        record = SegmentRecord(
            run_id=run_id, spec=sha256_bytes(spec), index=index, first_step=first, last_step=last,
            previous=records[-1].digest() if records else None,
            files={"leaves.bin": {"sha256": sha256_bytes(b"".join(own)), "size": 32 * len(own)}},
            leaves=[h.hex() for h in own], root=root(own).hex(),
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


def work(run_id: str, step: int) -> Work:
    """Return the words of a step of three sites."""
    return Work(b"".join(hashlib.sha256(f"{run_id} {step} {i}".encode()).digest()[:8] for i in range(3)))


def leaf(run_id: str, step: int) -> bytes:
    """Return the data of the leaf after a step."""
    return leaf_data(step, b"s" * 32, b"l" * 32, b"t" * 32, work(run_id, step).commitment())


def judge(run: RunStore, verdict: str, indices: Any, stamp: str = "20260101T000000Z") -> str:
    """Store a verdict over some segments, with proofs of replay if it is ``verified``; returns its name."""
    records, nonce = run.published(), "0123456789abcdef"
    tree = Tree([h for record in records for h in record.leaf_hashes()])
    named = {"state": (b"s" * 32).hex(), "log": (b"l" * 32).hex(), "trace": (b"t" * 32).hex()}
    rows: list[dict[str, Any]] = []
    for i in indices:
        rows.append({"index": i, "result": verdict})
        if verdict == "verified":
            step = records[i].last_step
            at = {"step": step, "leaf": step, "path": [h.hex() for h in tree.path(step)]}  # a leaf a step
            rows[-1]["proof_of_replay"] = {**named, **at, **work(run.run_id, step).open(tree.root.hex(), nonce, i)}
    reason = None if verdict == "verified" else "made_for_a_test"
    plain = {"verdict": verdict, "reason": reason, "segments": rows, "time": stamp, "nonce": nonce}
    return run.publish_verdict(plain, stamp)


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
