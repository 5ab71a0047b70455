"""The trainer: trains a run segment by segment, publishes each, and goes on where a killed run stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore
from tasks.in_use import in_use
from tasks.params import Params
from tasks.reporter import reporter
from tasks.runs import RunStore, fetch_segments, segment_folder
from tasks.store import open_store
from vt_core.errors import EvidenceError, SpecError, VtError
from vt_core.evidence.merkle import root
from vt_core.evidence.records import Seal, SegmentRecord
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.job import Dataset, Job
from vt_core.training.leaves import decode_leaves
from vt_core.training.segment import LEAVES, METRICS, Segment, file_table, train_segment
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.training.state import State, digest


class Trainer:
    """Trains one run. ``published`` is the spec that is committed to; an honest trainer runs just that one.

    (Tests and the demonstration pass another ``job`` or session spec than the published one: that is a cheat.)
    """

    def __init__(
        self, run: RunStore, workspace: Path, spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu",
        published: RunSpec | None = None,
    ) -> None:  # fmt: skip
        """Prepare; nothing is published yet."""
        self.run, self.published = run, published or spec
        self.session = Session(spec, job, dataset, device)
        self.workspace = workspace / run.run_id
        self.artifacts = ArtifactStore(self.workspace, run.store.dvc_remote())
        self.records: list[SegmentRecord] = []
        self._state: State | None = None

    @contextmanager
    def open(self) -> Iterator[Trainer]:
        """Hold the engine's settings and the DVC process."""
        with in_use(self.workspace), self.artifacts, self.session.open():
            yield self

    def begin(self) -> int:
        """Publish the spec or join a started run; returns the number of the next segment to train.

        Raises SpecError if the run of this name has another spec.
        """
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.artifacts.init()
        self.run.publish_spec(self.published.to_bytes())
        self.records = self.run.published()
        if self.records:
            self._state = self._resume(self.records[-1])
            reporter.get().message(
                f"run {self.run.run_id}: {len(self.records)} of {self.published.segment_count} segments are "
                f"published already; going on from there"
            )
        return len(self.records)

    def train(self, index: int) -> Segment:
        """Train segment ``index``; its files are in the workspace afterwards, nothing is published."""
        report = reporter.get()
        first, last = self.session.spec.segment_range(index)
        report.start(f"segment {index}" if index else "initialisation", last - first + 1)
        segment = train_segment(
            self.session, index, self._state, self._folder(index),
            lambda step, loss: report.advance("" if step == 0 else f"loss {loss:.4f}"),
        )  # fmt: skip
        self._state = segment.state
        return segment

    def publish(self, segment: Segment) -> SegmentRecord:
        """Push the segment's artifacts, then commit to them. May be called again after a failure."""
        pointer = self.artifacts.publish(self._folder(segment.index))
        first, last = self.published.segment_range(segment.index)
        leaves = [leaf.hash() for leaf in segment.leaves]
        record = SegmentRecord(
            run_id=self.run.run_id,
            spec=self.published.digest(),
            index=segment.index,
            first_step=first,
            last_step=last,
            previous=self.records[-1].digest() if self.records else None,
            files=segment.files,
            leaves=[leaf.hex() for leaf in leaves],
            root=root(leaves).hex(),
            pointer=pointer.to_json(),
        )
        self.run.publish_segment(record)
        self.records.append(record)
        return record

    def seal(self) -> Seal:
        """Commit to the whole run."""
        leaves = [leaf for record in self.records for leaf in record.leaf_hashes()]
        if self._state is None:
            raise SpecError("nothing was trained yet")
        seal = Seal(
            run_id=self.run.run_id,
            spec=self.published.digest(),
            segments=[record.digest() for record in self.records],
            leaf_count=len(leaves),
            root=root(leaves).hex(),
            state=digest(self._state).root.hex(),
        )
        self.run.publish_seal(seal)
        return seal

    def summary(self, seal: Seal, seconds: float) -> dict[str, Any]:
        """Return what ``vt train --json`` prints."""
        steps = log_bytes = fingerprint_bytes = 0
        loss = float("nan")
        for record in self.records:
            for row in self._metrics(record)["steps"]:
                steps += row["step"] > 0
                log_bytes += row["log_bytes"]
                fingerprint_bytes += row["fingerprint_bytes"]
                loss = float.fromhex(row["loss"])
        return {
            "run_id": self.run.run_id,
            "state_digest": seal.state,
            "root": seal.root,
            "spec": seal.spec,
            "log_bytes": log_bytes,
            "fingerprint_bytes": fingerprint_bytes,
            "steps": steps,
            "segments": len(self.records),
            "final_loss": loss,
            "seconds": round(seconds, 3),
            "store": self.run.store.url,
        }

    def _folder(self, index: int) -> Path:
        return self.workspace / segment_folder(index)

    def _metrics(self, record: SegmentRecord) -> Mapping[str, Any]:
        folder = self._local(record)
        plain: dict[str, Any] = json.loads((folder / METRICS).read_bytes())
        return plain

    def _resume(self, record: SegmentRecord) -> State:
        """Return the state that the last published segment ended in, checked against the commitment."""
        folder = self._local(record)
        state = load_checkpoint(folder)
        last = decode_leaves((folder / LEAVES).read_bytes())[-1]
        if digest(state).root != last.state:
            raise EvidenceError(
                "state_mismatch", f"the checkpoint of segment {record.index} is not the committed state"
            )
        return state

    def _local(self, record: SegmentRecord) -> Path:
        """Return the segment's folder in the workspace, fetched from the store unless it is there intact."""
        folder = self._folder(record.index)
        try:
            if file_table(folder) == {k: dict(v) for k, v in record.files.items()}:
                return folder
        except (OSError, VtError):  # not here, or not whole: the store has it
            pass
        folders, errors = fetch_segments(self.artifacts, self.workspace, [record], "fetched")
        if errors:
            raise errors[record.index]
        if file_table(folders[record.index]) != {k: dict(v) for k, v in record.files.items()}:
            raise EvidenceError(
                "artifact_corrupt", f"the artifacts of segment {record.index} are not the committed ones"
            )
        return folders[record.index]


def new_run_id(spec: RunSpec) -> str:
    """Return a fresh, readable run id: job, time and spec digest."""
    name = spec.reference.split(":")[0].rsplit(".", 1)[-1].replace("_", "-").strip("-") or "run"
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{spec.digest()[:6]}"


def read_losses(run: RunStore, workspace: Path) -> list[tuple[int, float]]:
    """Return (step, loss) of a run whose segments lie in the trainer's ``workspace``."""
    rows: list[tuple[int, float]] = []
    for record in run.published():
        path = workspace / run.run_id / segment_folder(record.index) / METRICS
        for row in json.loads(path.read_bytes())["steps"]:
            if row["step"] > 0:
                rows.append((row["step"], float.fromhex(row["loss"])))
    return rows


def trainer_from_params(params: Params, store: str | None, run_id: str | None, workspace: Path) -> Trainer:
    """Build the trainer of a run from parameters. Raises SpecError."""
    url = store or params.store
    if url is None:
        raise SpecError("no store: give --store URL, or 'store:' in the parameters")
    job, dataset = params.open_job()
    spec = params.spec(job, dataset)
    run = RunStore(open_store(url, create=True), run_id or new_run_id(spec))
    return Trainer(run, workspace / "train", spec, job, dataset, params.device)
