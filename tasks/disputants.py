"""The two parties of a dispute about a run in a store: each with its own copy of code and data, artifacts from DVC."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tasks.artifacts import ArtifactStore
from tasks.disputes import DisputeBoard
from tasks.in_use import in_use
from tasks.reporter import reporter
from tasks.runs import RunStore, fetch_segments
from vt_core.dispute.messages import Role
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.party import Party
from vt_core.dispute.run_claim import RunClaim
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.verify.audit import Run, check_agreement, open_run
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.replay import open_segment

Maker = Callable[[RunSpec, Job, Dataset, str], Session]
"""Makes the session that a party runs. An honest party's is :class:`Session`; demonstrations give a cheat's."""


class Disputant:
    """One party, in a workspace of its own."""

    def __init__(
        self, run: RunStore, role: Role, workspace: Path, location: str | None = None, device: str = "cpu",
        make: Maker = Session,
    ) -> None:  # fmt: skip
        """Prepare; nothing is read yet. ``location`` is where this party's own copy of the data lies."""
        self.run, self.role = run, role
        self.location, self.device, self.make = location, device, make
        self.workspace = workspace / f"dispute-{role}-{run.run_id}"
        self.artifacts = ArtifactStore(self.workspace, run.store.dvc_remote())
        self._folders: dict[int, Path] = {}
        self._opened: Run | None = None
        self._session: Session | None = None

    @contextmanager
    def open(self, limits: AuditorLimits | None = None) -> Iterator[Disputant]:
        """Check the run and this party's copies of code and data, and hold DVC and the session.

        Raises EvidenceError if the evidence is bad without any replay (then an audit says all there is to say) or the
        own copies are not the agreed ones, SpecError if the run is not sealed. The workspace is removed at the end.
        """
        run = self._opened = open_run(self.run.commitments(), None if limits is None else limits.keys)
        if run.seal is None:
            raise SpecError(f"run {self.run.run_id!r} is not sealed: there is nothing yet that its trainer stands by")
        job = load_job(run.spec.reference, dict(run.spec.args))
        dataset = job.dataset(self.location)
        if self.role is Role.TRAINER:  # it has agreed to its own policy; limits are an auditor's
            limits = AuditorLimits({run.spec.compute_dtype: run.spec.policy})
        check_agreement(run.spec, job, dataset, limits or AuditorLimits.default())
        session = self._session = self.make(run.spec, job, dataset, self.device)
        try:
            with in_use(self.workspace), self.artifacts, session.open():
                self.artifacts.init()
                yield self
        finally:
            shutil.rmtree(self.workspace, ignore_errors=True)

    @property
    def spec(self) -> RunSpec:
        """The spec of the opened run."""
        return self._run.spec

    def party(self, board: DisputeBoard, key: SignerKey, referee: VerifierKey, segment: int | None = None) -> Party:
        """Return this party for one dispute.

        An auditor replays ``segment`` first, or else the segments that verdicts name and then all others until one
        differs; if none does, it will concede.
        """
        claim, concede = self._claim(None), None
        if self.role is Role.AUDITOR:
            claim, concede = self._find_difference(segment)
        return Party(self.role, board.subject(), claim, OpRules(self.spec), key, referee, concede)

    def _find_difference(self, segment: int | None) -> tuple[RunClaim, str | None]:
        total = len(self._run.records)
        if segment is not None and not 0 <= segment < total:
            raise SpecError(f"segment {segment} does not exist: the run has segments 0 to {total - 1}")
        wanted = (
            [segment] if segment is not None else [*(found := self._rejected()), *sorted(set(range(total)) - {*found})]
        )
        for index in wanted:
            record = self._run.records[index]
            reporter.get().start(
                f"replay of segment {index}", record.last_step - record.first_step + 1, record.first_step, index
            )
            claim = self._claim(index)
            if claim.differs():
                reporter.get().message(f"the replay of segment {index} does not lead to the published leaves")
                return claim, None
        what = f"segment {segment}" if segment is not None else "every segment"
        return self._claim(None), f"the replay of {what} leads to the published leaves, bit for bit"

    def _claim(self, own: int | None) -> RunClaim:
        assert self._session is not None
        report = reporter.get()
        return RunClaim(
            self._session, self._run.records, self._folder, own,
            with_log=self.make is Session or self.role is Role.AUDITOR,
            progress=None if own is None else lambda step: report.advance(),
        )  # fmt: skip

    def _rejected(self) -> Sequence[int]:
        """Return the segments that verdicts in the store find bad, the newest verdict first."""
        found: list[int] = []
        for name in reversed(self.run.verdicts()):
            try:
                place = loads_strict(self.run.verdict(name), name).get("first_divergence")
                index = place["segment"]
            except (EvidenceError, TypeError, KeyError, AttributeError):
                continue  # whoever wrote that: it says nothing about where to look
            if type(index) is int and 0 <= index < len(self._run.records) and index not in found:
                found.append(index)
        return found

    def _folder(self, index: int) -> Path:
        """Return the checked artifacts of a segment, fetched when they are needed first."""
        if index not in self._folders:
            assert self._session is not None
            record = self._run.records[index]
            folders, errors = fetch_segments(self.artifacts, self.workspace, [record], "evidence")
            if index in errors:
                raise errors[index]
            open_segment(self._session, record, folders[index])
            self._folders[index] = folders[index]
        return self._folders[index]

    @property
    def _run(self) -> Run:
        if self._opened is None:
            raise SpecError("open() comes first")
        return self._opened
