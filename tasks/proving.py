"""Making the proof that a sealed run commits to a state at a step; ``vt_core/evidence/proof.py`` checks it offline."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from itertools import accumulate
from pathlib import Path

from tasks.artifacts import ArtifactStore
from tasks.in_use import in_use
from tasks.runs import RunStore, fetch_segments
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.digests import check_file, read_bounded
from vt_core.evidence.proof import make_proof
from vt_core.evidence.records import SegmentRecord
from vt_core.evidence.signatures import PartyKeys, open_evidence
from vt_core.training.leaves import MAX_LEAVES_BYTES, Leaf, decode_leaves
from vt_core.training.segment import LEAVES


def prove_step(run: RunStore, step: int, workspace: Path) -> bytes:
    """Return the proof for the first leaf at or after ``step``; only one small file is fetched.

    Raises SpecError for a step that the run does not have and for a run that is not sealed or not signed, EvidenceError
    for broken evidence, NotFound and StoreError for the store's troubles.
    """
    commitments = run.commitments()
    evidence = open_evidence(commitments, PartyKeys())
    if not 0 <= step <= evidence.spec.steps:
        raise SpecError(f"step {step} does not exist: run {run.run_id!r} has steps 0 (the initialisation) to "
                        f"{evidence.spec.steps}")  # fmt: skip
    if evidence.seal is None:
        raise SpecError(f"run {run.run_id!r} is not sealed yet: there is no root to prove anything against")
    if commitments.note is None:
        raise SpecError(f"the seal of run {run.run_id!r} is not signed: sign it with 'vt seal {run.run_id} --key FILE'")
    record = evidence.records[evidence.spec.segment_of(step)]
    leaves = _leaves(run, record, workspace)
    number = next((i for i, leaf in enumerate(leaves) if leaf.step >= step), None)
    if number is None or len(leaves) != len(record.leaves):
        raise EvidenceError(
            "evidence_malformed", f"leaves.json of segment {record.index} has other leaves", file=LEAVES
        )
    before = [0, *accumulate(len(r.leaves) for r in evidence.records)]
    content = {f.name: getattr(leaves[number], f.name) for f in dataclasses.fields(Leaf) if f.name != "tensors"}
    return make_proof(step, content, before[record.index] + number, evidence.records, evidence.seal, commitments.note)


def _leaves(run: RunStore, record: SegmentRecord, workspace: Path) -> list[Leaf]:
    entry = record.files.get(LEAVES)
    if entry is None:
        raise EvidenceError(
            "evidence_malformed", f"segment {record.index} commits to no {LEAVES}", segment=record.index
        )
    workspace.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="prove-", dir=workspace))
    try:
        with in_use(folder), ArtifactStore(folder, run.store.dvc_remote()) as artifacts:
            artifacts.init()
            folders, errors = fetch_segments(artifacts, folder, [record], "evidence", only=LEAVES)
            if errors:
                raise errors[record.index]
            path = folders[record.index] / LEAVES
            check_file(path, entry["sha256"], entry["size"], f"segment {record.index}: {LEAVES}")
            return decode_leaves(read_bounded(path, MAX_LEAVES_BYTES, LEAVES))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
