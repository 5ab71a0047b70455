"""Train and audit a run in this process, without Prefect, DVC or a store: a run is a folder.

Layout: ``spec.json``, ``segments/00000.json``, ``seal.json`` and ``artifacts/segment-00000/`` with a segment's
files. The auditing half does what ``tasks.auditing`` does, in the same order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.merkle import root
from vt_core.evidence.records import Seal, SegmentRecord, parse_segment
from vt_core.training.environment import environment
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.leaves import Leaf
from vt_core.training.segment import Segment, file_table, train_segment
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, build_spec
from vt_core.training.state import State, digest
from vt_core.verify.audit import (
    Commitments,
    challenge,
    check_agreement,
    choose_segments,
    no_replay_verdict,
    open_run,
    verdict,
)
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.replay import replay_segment

DIGITS = "vt_core.jobs.digits:DigitsJob"
RESNET = "vt_core.jobs.cifar_resnet:CifarResNetJob"
GPT = "vt_core.jobs.gpt2_text:Gpt2TextJob"


UNSAID: ContextVar[str] = ContextVar("UNSAID", default="logged")
"""How contractions and functions of a case are computed that does not say: with a log for all there may be one for."""


@contextmanager
def unsaid(how: str) -> Iterator[None]:
    """Let cases that do not say be ``logged`` or ``exact`` for a while."""
    token = UNSAID.set(how)
    try:
        yield
    finally:
        UNSAID.reset(token)


@dataclass(frozen=True)
class Case:
    """A job, its arguments, where its data lies, and the ``train`` section of the parameters."""

    reference: str
    args: Mapping[str, Any]
    train: Mapping[str, Any]
    location: str | None = None

    def open(self) -> tuple[Job, Dataset, RunSpec]:
        job = load_job(self.reference, dict(self.args))
        dataset = job.dataset(self.location)
        train = {"contractions": UNSAID.get(), "functions": UNSAID.get(), **self.train}
        return job, dataset, build_spec(job, dataset, self.reference, self.args, train)


SMALL_DIGITS = Case(
    DIGITS,
    {"width": 4, "batch_size": 16},
    {"seed": 7, "steps": 6, "segment_steps": 2},
)
"""Initialisation and three segments of two steps."""

NO_LOG = replace(SMALL_DIGITS, train={**SMALL_DIGITS.train, "contractions": "exact", "functions": "exact"})
"""The same as a run with default parameters: every operation has one result, and the log stays empty."""


SessionMaker = Callable[[RunSpec, Job, Dataset], Session]
StateChange = Callable[[int, State | None], State | None]


@dataclass
class Trainer:
    """Publishes ``case``'s spec and trains with the session that ``make`` returns (an honest one by default).

    ``between`` may change the state from which a segment starts; ``last`` stops after that segment.
    """

    case: Case
    folder: Path
    run_id: str = "run"
    make: SessionMaker = Session
    between: StateChange | None = None
    last: int | None = None
    records: list[SegmentRecord] = field(default_factory=list)
    state: State | None = None

    def run(self) -> Trainer:
        """Train, publish and seal the whole run."""
        job, dataset, spec = self.case.open()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "segments").mkdir(exist_ok=True)
        (self.folder / "spec.json").write_bytes(spec.to_bytes())
        session = self.make(spec, job, dataset)
        with session.open():
            for index in range(spec.segment_count):
                start = self.state if self.between is None else self.between(index, self.state)
                segment = train_segment(session, index, start, artifacts(self.folder, index))
                self.publish(spec, segment)
                if index == self.last:
                    break
        self.seal(spec)
        return self

    def publish(self, spec: RunSpec, segment: Segment) -> None:
        first, last = spec.segment_range(segment.index)
        record = make_record(
            self.run_id, spec.digest(), segment.index, (first, last), self.records, segment.files, segment.leaves
        )
        write_record(self.folder, record)
        self.records.append(record)
        self.state = segment.state

    def seal(self, spec: RunSpec) -> None:
        assert self.state is not None
        seal = make_seal(self.run_id, spec.digest(), self.records, digest(self.state).root.hex())
        (self.folder / "seal.json").write_bytes(seal.to_bytes())

    @property
    def final(self) -> str:
        """The state root the run ends in."""
        assert self.state is not None
        return digest(self.state).root.hex()


def artifacts(folder: Path, index: int) -> Path:
    """Return the folder of a segment's files."""
    return folder / "artifacts" / f"segment-{index:05d}"


def make_record(
    run_id: str,
    spec: str,
    index: int,
    steps: tuple[int, int],
    before: Sequence[SegmentRecord],
    files: Mapping[str, Mapping[str, Any]],
    leaves: Sequence[Leaf],
) -> SegmentRecord:
    """Return the record that a trainer with these files and leaves publishes."""
    hashes = [leaf.hash() for leaf in leaves]
    return SegmentRecord(
        run_id=run_id,
        spec=spec,
        index=index,
        first_step=steps[0],
        last_step=steps[1],
        previous=before[-1].digest() if before else None,
        files=files,
        leaves=[h.hex() for h in hashes],
        root=root(hashes).hex(),
        pointer={},
    )


def make_seal(run_id: str, spec: str, records: Sequence[SegmentRecord], state: str) -> Seal:
    """Return the seal over ``records``."""
    leaves = [leaf for record in records for leaf in record.leaf_hashes()]
    return Seal(run_id, spec, [r.digest() for r in records], len(leaves), root(leaves).hex(), state)


def write_record(folder: Path, record: SegmentRecord) -> None:
    (folder / "segments" / f"{record.index:05d}.json").write_bytes(record.to_bytes())


def recommit(folder: Path, leaves: Mapping[int, Sequence[Leaf]] | None = None, state: str | None = None) -> None:
    """Make all commitments anew over what lies in ``folder``: what a forger does after changing a file.

    ``leaves`` replaces the committed leaves of some segments, ``state`` the sealed state.
    """
    old = [parse_segment(p.read_bytes(), p.name) for p in sorted((folder / "segments").iterdir())]
    records: list[SegmentRecord] = []
    for record in old:
        files = file_table(artifacts(folder, record.index))
        given = (leaves or {}).get(record.index)
        hashes = record.leaf_hashes() if given is None else [leaf.hash() for leaf in given]
        previous = records[-1].digest() if records else None
        records.append(
            SegmentRecord(
                record.run_id, record.spec, record.index, record.first_step, record.last_step, previous,
                files, [h.hex() for h in hashes], root(hashes).hex(), record.pointer,
            )
        )  # fmt: skip
        write_record(folder, records[-1])
    sealed = json.loads((folder / "seal.json").read_bytes())["state"] if state is None else state
    seal = make_seal(old[0].run_id, old[0].spec, records, sealed)
    (folder / "seal.json").write_bytes(seal.to_bytes())


def copy_run(source: Path, target: Path) -> Path:
    """Return a copy of a run's folder that a test may spoil."""
    return Path(shutil.copytree(source, target))


def read_commitments(folder: Path, run_id: str = "run") -> Commitments:
    """Read the commitments; an absent file is None, the segments end at the first gap."""

    def read(name: str) -> bytes | None:
        path = folder / name
        return path.read_bytes() if path.exists() else None

    segments: list[bytes] = []
    while (data := read(f"segments/{len(segments):05d}.json")) is not None:
        segments.append(data)
    return Commitments(run_id, read("spec.json"), segments, read("seal.json"))


@cache
def _own_copy(reference: str, args: str, location: str | None) -> tuple[Job, Dataset]:
    job = load_job(reference, json.loads(args))
    return job, job.dataset(location)


def audit(
    folder: Path,
    *,
    commitments: Commitments | None = None,
    choice: str = "all",
    nonce: str = "nonce",
    location: str | None = None,
    limits: AuditorLimits | None = None,
) -> dict[str, Any]:
    """Audit the run in ``folder`` and return the verdict."""
    limits = limits or AuditorLimits.default()
    found = commitments or read_commitments(folder)
    try:
        run = open_run(found)
        try:
            job, dataset = _own_copy(run.spec.reference, json.dumps(dict(run.spec.args)), location)
        except SpecError as error:
            raise EvidenceError("environment_unsupported", str(error)) from error
        check_agreement(run.spec, job, dataset, limits)
        chosen = choose_segments(choice, run, nonce)
        session = Session(run.spec, job, dataset)
        results = []
        for index in chosen:
            start = (run.records[index - 1], artifacts(folder, index - 1)) if index else None
            with session.open():
                where = artifacts(folder, index)
                asked = challenge(run, nonce)
                results.append(replay_segment(session, run.records[index], where, start, limits, challenge=asked))
        return verdict(run, results, limits, nonce, environment("cpu"))
    except EvidenceError as error:
        return no_replay_verdict(found.run_id, error)
