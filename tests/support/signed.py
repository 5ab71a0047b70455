"""Signed runs made of records alone: everything ``vt verify`` looks at, without a training."""

from __future__ import annotations

import hashlib
from typing import Any

from tasks.runs import RunStore
from tasks.store import Store
from vt_core.evidence.agreement import sign_spec
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.evidence.model import MODEL_FILES
from vt_core.evidence.outline import SPEC_FORMAT
from vt_core.evidence.ranges import segment_range
from vt_core.evidence.records import Commitments, Seal, SegmentRecord
from vt_core.evidence.signatures import sign_seal
from vt_core.evidence.work import leaf_data

LENGTH = 4  # steps of a segment, each with a leaf
CLIENT, TRAINER, AUDITOR, STRANGER = (SignerKey.generate(name) for name in ("client", "trainer", "auditor", "stranger"))


def make_spec(steps: int, **changed: Any) -> bytes:
    """Return the canonical bytes of what readers of evidence need of a spec."""
    plain = {
        "format": SPEC_FORMAT, "reference": "my.jobs:Job", "steps": steps, "segment_steps": LENGTH,
        "commit_interval": 1, "seed": "0", "compute_dtype": "float64", "grid": "float32", **changed,
    }  # fmt: skip
    return dumps(plain)


def leaf(run_id: str, step: int) -> dict[str, Any]:
    """Return the content of the leaf after ``step``."""
    names = ("state", "log", "trace", "work")
    return {"step": step} | {n: hashlib.sha256(f"{run_id} {n} {step}".encode()).digest() for n in names}


def leaf_hash_of(content: dict[str, Any]) -> bytes:
    return leaf_hash(leaf_data(*content.values()))


def make_records(run_id: str, spec: bytes, steps: int) -> list[SegmentRecord]:
    """Return the chained records of a whole run."""
    records: list[SegmentRecord] = []
    index = 0
    while not records or records[-1].last_step < steps:
        first, last = segment_range(steps, LENGTH, index)
        hashes = [leaf_hash_of(leaf(run_id, step)) for step in range(first, last + 1)]
        names = (*MODEL_FILES, "rounding.vtlog", "leaves.json", "metrics.json", "environment.json")
        files = {n: {"sha256": sha256_bytes(f"{run_id} {index} {n}".encode()), "size": 100} for n in names}
        records.append(
            SegmentRecord(
                run_id, sha256_bytes(spec), index, first, last, records[-1].digest() if records else None, files,
                [h.hex() for h in hashes], root(hashes).hex(),
                {"md5": f"{index:032x}.dir", "nfiles": 6, "path": f"segment-{index:05d}", "size": 600},
            )
        )  # fmt: skip
        index += 1
    return records


def make_seal(run_id: str, spec: bytes, records: list[SegmentRecord]) -> Seal:
    """Return the seal over ``records``."""
    leaves = [h for record in records for h in record.leaf_hashes()]
    state = leaf(run_id, records[-1].last_step)["state"].hex()
    return Seal(run_id, sha256_bytes(spec), [r.digest() for r in records], len(leaves), root(leaves).hex(), state)


def make_commitments(run_id: str = "run", steps: int = 10, key: SignerKey = TRAINER) -> Commitments:
    """Return the commitments of a sealed run: agreed by CLIENT and TRAINER, signed by ``key``."""
    spec = make_spec(steps)
    records = make_records(run_id, spec, steps)
    seal = make_seal(run_id, spec, records)
    note, model = sign_seal(records, seal, key)
    return Commitments(
        run_id, spec, [r.to_bytes() for r in records], seal.to_bytes(), sign_spec(spec, [CLIENT, TRAINER]), note, model
    )


def publish(store: Store, found: Commitments) -> RunStore:
    """Put commitments into a store as they are; what is None is left out."""
    run = RunStore(store, found.run_id)
    base = f"runs/{found.run_id}"
    for index, data in enumerate(found.segments):
        store.commitments.create(f"{base}/segments/{index:05d}.json", data)
    objects = {
        "spec.json": found.spec, "seal.json": found.seal, "agreement.json": found.agreement, "seal.note": found.note,
        "model.dsse.json": found.model,
    }  # fmt: skip
    for name, content in objects.items():
        if content is not None:
            store.commitments.create(f"{base}/{name}", content)
    return run
