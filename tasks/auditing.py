"""The auditor: reads a run from the store alone, replays segments, and publishes a verdict."""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore
from tasks.in_use import in_use
from tasks.report_inputs import ReportInputs, collect, fetch_inputs
from tasks.reporter import reporter
from tasks.runs import RunStore, fetch_segments
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import read_bounded
from vt_core.evidence.keys import SignerKey
from vt_core.training.environment import MAX_ENVIRONMENT_BYTES, environment, is_flat
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.segment import ENVIRONMENT
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.verify.audit import Run, challenge, check_agreement, choose_segments, no_replay_verdict, open_run, verdict
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.replay import check_files, replay_segment
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

_MOST_ENVIRONMENTS = 16


class Auditor:
    """Audits one run in a workspace of its own, which holds nothing of the trainer's."""

    def __init__(
        self, run: RunStore, workspace: Path, limits: AuditorLimits, location: str | None = None, device: str = "cpu",
        keep: bool = False, nonce: str | None = None, key: SignerKey | None = None,
    ) -> None:  # fmt: skip
        """Prepare. ``location`` is where this auditor's own copy of the data lies.

        ``nonce`` draws samples and the places of the proofs of replay; a client who does not trust its auditor gives
        it. By default it comes from the system's randomness. Raises SpecError unless it is 8 to 64 hex digits.
        ``key`` signs the verdict.
        """
        if nonce is not None and not re.fullmatch(r"[0-9a-f]{8,64}", nonce):
            raise SpecError(f"nonce {nonce!r}: give 8 to 64 lower-case hex digits")
        self.run, self.limits, self.location, self.device, self.keep = run, limits, location, device, keep
        self.key = key
        self.nonce = nonce or secrets.token_hex(16)
        self.workspace = workspace / f"audit-{run.run_id}-{secrets.token_hex(4)}"
        self.artifacts = ArtifactStore(self.workspace, run.store.dvc_remote())
        self._folders: dict[int, Path] = {}
        self._errors: dict[int, EvidenceError] = {}
        self._opened: Run | None = None
        self._session: Session | None = None

    @contextmanager
    def open(self) -> Iterator[Auditor]:
        """Hold the DVC process; the fetched artifacts are removed at the end unless ``keep`` is set."""
        try:
            with in_use(self.workspace), self.artifacts:
                yield self
        finally:
            if not self.keep:
                shutil.rmtree(self.workspace, ignore_errors=True)

    def prepare(self, choice: str) -> list[int]:
        """Check everything that needs no replay, choose the segments and fetch them with their predecessors.

        Raises EvidenceError for a finding (see :meth:`without_replay`), SpecError, StoreError or NotFound.
        """
        chosen = self.choose(choice)
        self.fetch(chosen)
        return chosen

    def choose(self, choice: str) -> list[int]:
        """Check everything that needs no artifacts and choose the segments; raises as :meth:`prepare`."""
        self._opened = open_run(self.run.commitments(), self.limits.keys)
        spec = self._opened.spec
        job, dataset = self._own_copy(spec)
        check_agreement(spec, job, dataset, self.limits)
        self._session = Session(spec, job, dataset, self.device)
        chosen = choose_segments(choice, self._opened, self.nonce)
        self.limits.check_sample(len(chosen), len(self._opened.records))
        return chosen

    def fetch(self, chosen: Sequence[int]) -> None:
        """Fetch the artifacts of segments and of those before them. Raises StoreError."""
        run, _ = self._prepared()
        needed = sorted({i for c in chosen for i in (c - 1, c) if i >= 0})
        reporter.get().message(f"fetching the artifacts of {len(needed)} segments from {self.run.store.url}")
        self.artifacts.init()
        self._folders, self._errors = fetch_segments(
            self.artifacts, self.workspace, [run.records[i] for i in needed], "evidence"
        )

    def replay(self, index: int) -> SegmentResult:
        """Replay one segment. Never raises for bad evidence."""
        run, session = self._prepared()
        record = run.records[index]
        for i in (index, index - 1):
            if i in self._errors:
                error = self._errors[i]
                return SegmentResult(
                    index,
                    record.first_step,
                    record.last_step,
                    Reason(error.reason),
                    str(error),
                    Divergence(i),
                )
        report = reporter.get()
        report.start(f"replay of segment {index}", record.last_step - record.first_step + 1, record.first_step, index)
        start = (run.records[index - 1], self._folders[index - 1]) if index else None
        with session.open():
            return replay_segment(
                session, record, self._folders[index], start, self.limits, lambda step: report.advance(),
                challenge(run, self.nonce),
            )  # fmt: skip

    def conclude(
        self, results: Sequence[SegmentResult], trainer_environments: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the verdict over the replayed segments and store it.

        ``trainer_environments`` are those of segments that were replayed elsewhere.
        """
        run, session = self._prepared()
        plain = verdict(
            run,
            results,
            self.limits,
            self.nonce,
            environment(str(session.device)),
            trainer_environments or self._trainer_environments(),
        )
        return self._publish({**plain, "versions": self.run.versions()})

    def without_replay(self, error: EvidenceError) -> dict[str, Any]:
        """Return the verdict for a finding that needed no replay, and store it."""
        return self._publish(no_replay_verdict(self.run.run_id, error))

    def report_inputs(self, verdict: Mapping[str, Any]) -> ReportInputs:
        """Return what a report needs beside ``verdict``, from checked files; call it while the auditor is open."""
        replayed = [s["index"] for s in verdict["segments"]]
        if replayed and not self._folders:  # replayed elsewhere: nothing was fetched here
            return fetch_inputs(self.run, replayed, self.workspace)
        return collect(self.run.run_id, self.run.store.url, self._opened, replayed, self._folders, self._errors)

    def _publish(self, plain: dict[str, Any]) -> dict[str, Any]:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = self.run.publish_verdict({**plain, "time": stamp}, stamp, self.key)
        return {**plain, "time": stamp, "stored_as": name}

    def _own_copy(self, spec: RunSpec) -> tuple[Job, Dataset]:
        try:
            job = load_job(spec.reference, dict(spec.args))
        except SpecError as error:
            raise EvidenceError(
                "environment_unsupported", f"this auditor cannot load the job {spec.reference!r}: {error}"
            ) from error
        return job, job.dataset(self.location)

    def _prepared(self) -> tuple[Run, Session]:
        if self._opened is None or self._session is None:
            raise SpecError("prepare() comes first")
        return self._opened, self._session

    def _trainer_environments(self) -> dict[str, Any]:
        """Return what the trainer says it ran on, per distinct environment: the first segment and the record."""
        return distinct_environments({index: self.trainer_environment(index) for index in self._folders})

    def trainer_environment(self, index: int) -> dict[str, Any] | None:
        """Return the environment record of a fetched segment, None unless it is the committed file."""
        run, _ = self._prepared()
        folder = self._folders.get(index)
        try:
            check_files(run.records[index], folder or Path())
            path = (folder or Path()) / ENVIRONMENT
            record = loads_strict(read_bounded(path, MAX_ENVIRONMENT_BYTES, ENVIRONMENT), ENVIRONMENT)
        except (EvidenceError, OSError):
            return None
        return record if isinstance(record, dict) else None


def distinct_environments(by_segment: Mapping[int, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return each distinct environment record once, under the first segment that has it.

    Records that are no environment are left out, and so are all but the first few: what a trainer says of its machines
    must not make a verdict that cannot be stored.
    """
    seen: dict[str, Any] = {}
    for index, record in sorted(by_segment.items()):
        if len(seen) < _MOST_ENVIRONMENTS and is_flat(record) and record not in seen.values():
            seen[f"from_segment_{index}"] = record
    return seen
