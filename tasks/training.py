"""The trainer: trains a run segment by segment, publishes each, and goes on where a killed run stopped."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore
from tasks.in_use import in_use
from tasks.params import Params, import_from, load_params
from tasks.reporter import reporter
from tasks.runs import RunStore, fetch_segments, segment_folder
from tasks.signing import read_spec, trainer_key
from tasks.store import open_store
from vt_core.errors import EvidenceError, SpecError, VtError
from vt_core.evidence.agreement import AgreedSpec
from vt_core.evidence.digests import check_file
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.merkle import root
from vt_core.evidence.records import Seal, SegmentRecord
from vt_core.evidence.signatures import sign_seal
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.leaves import decode_leaves
from vt_core.training.segment import LEAVES, METRICS, Segment, SegmentDraft, file_table, run_segment
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, parse_spec
from vt_core.training.state import State, digest
from vt_core.verify.audit import check_copies, check_machine


class Trainer:
    """Trains one run. ``published`` is the spec that is committed to; an honest trainer runs just that one.

    (Tests and the demonstration pass another ``job`` or session spec than the published one: that is a cheat.)
    """

    def __init__(
        self, run: RunStore, workspace: Path, spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu",
        published: RunSpec | None = None, agreement: bytes | None = None, key: SignerKey | None = None,
    ) -> None:  # fmt: skip
        """Prepare; nothing is published yet.

        ``agreement``: the parties' envelope over the spec, published beside it. ``key`` signs the seal.
        """
        self.agreement, self.key = agreement, key
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
        if self.agreement is not None:
            self.run.publish_agreement(self.agreement)
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
        return self.run_steps(index).finish()

    def run_steps(self, index: int) -> SegmentDraft:
        """Run the steps of segment ``index``; another thread may finish and publish it while the next one runs."""
        report = reporter.get()
        first, last = self.session.spec.segment_range(index)
        report.start(f"segment {index}" if index else "initialisation", last - first + 1, first, index)
        draft = run_segment(
            self.session, index, self._state, self._folder(index),
            lambda step, loss: report.advance("" if step == 0 else f"loss {loss:.4f}"),
        )  # fmt: skip
        self._state = draft.state
        return draft

    def publish(self, segment: Segment | SegmentDraft) -> SegmentRecord:
        """Finish the segment's files, push them, then commit to them. May be called again after a failure.

        Segments are published in order, one after the other.
        """
        if isinstance(segment, SegmentDraft):
            segment = segment.finish()
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
        """Commit to the whole run, and sign that if there is a key."""
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
        if self.key is not None:
            self.run.publish_signatures(*sign_seal(self.records, seal, self.key))
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
            "signed_by": None if self.key is None else self.key.keyid,
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
        path = self._folder(record.index) / METRICS
        entry = record.files[METRICS]
        try:  # of this one file: a checkpoint takes its time to hash
            check_file(path, entry["sha256"], entry["size"], f"segment {record.index}: {METRICS}")
        except VtError:
            path = self._local(record) / METRICS
        plain: dict[str, Any] = json.loads(path.read_bytes())
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


def trainer_from_params(
    params: Params, store: str | None, run_id: str | None, workspace: Path, key: SignerKey | None = None
) -> Trainer:
    """Build the trainer of a run from parameters; ``key`` signs its seal. Raises SpecError."""
    job, dataset = params.open_job()
    spec = params.spec(job, dataset)
    run = _run(spec, store or params.store, run_id)
    return Trainer(run, workspace / "train", spec, job, dataset, params.device, key=key)


def trainer_from_spec(
    agreed: AgreedSpec, store: str | None, run_id: str | None, workspace: Path, location: str | None, device: str,
    key: SignerKey | None = None,
) -> Trainer:  # fmt: skip
    """Build the trainer of just the run that a spec agrees on.

    Raises SpecError if engine, libraries, code or data of this machine are not the agreed ones, EvidenceError if the
    spec is malformed.
    """
    spec = parse_spec(agreed.spec)
    try:
        check_machine(spec)
        job = load_job(spec.reference, dict(spec.args))
        dataset = job.dataset(location)
        check_copies(spec, job, dataset)
    except EvidenceError as error:
        raise SpecError(f"this machine cannot train the agreed spec ({error.reason}): {error}") from error
    run = _run(spec, store, run_id)
    return Trainer(run, workspace / "train", spec, job, dataset, device, agreement=agreed.envelope, key=key)


def open_trainer(
    params: Path, store: str | None = None, run_id: str | None = None, workspace: Path = Path(".vt"),
    spec: str | None = None, data: str | None = None, device: str | None = None, key: str | None = None,
) -> Trainer:  # fmt: skip
    """Build a trainer from a parameter file or, with ``spec``, from an agreed spec.

    With a spec, the parameter file need not be there; it says where data and store lie and which device trains,
    nothing else. ``key`` is the *path* of a private key. Raises SpecError.
    """
    agreed = None if spec is None else read_spec(spec)
    own = load_params(params) if agreed is None or params.exists() else None
    if own is not None and data is not None:
        own = own.with_location(data)
    signer = trainer_key(agreed, key)
    if agreed is None:
        assert own is not None
        own = own if device is None else dataclasses.replace(own, train={**own.train, "device": device})
        return trainer_from_params(own, store, run_id, workspace, signer)
    import_from(str(Path.cwd()) if own is None else own.folder)
    return trainer_from_spec(
        agreed, store or (own.store if own else None), run_id, workspace, own.location if own else data,
        device or (own.device if own else "cpu"), signer,
    )  # fmt: skip


def _run(spec: RunSpec, url: str | None, run_id: str | None) -> RunStore:
    if url is None:
        raise SpecError("no store: give --store URL, or 'store:' in the parameters")
    return RunStore(open_store(url, create=True), run_id or new_run_id(spec))
