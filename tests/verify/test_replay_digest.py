"""A replay that hashes a state while the next step runs finds what a replay finds that compares leaf after leaf.

The second one, which hashes at once and looks at nothing later, is written out here. Forged runs, cheating trainers and
steps that stop with an exception go through both. The hashing threads are either the slowest that they may ever be
(everything is left to whoever asks for the digest) or the fastest (done at once), so no result depends on timing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cheats import DoublesStep
from support.rows import Rows
from support.runs import Case, Trainer, artifacts, copy_run, read_commitments, recommit
from torch import Tensor, nn

from vt_core.engine.rounding_log import LogReader, LogWriter, StepLog, step_digest
from vt_core.errors import EvidenceError, SpecError, UnsupportedOperation
from vt_core.evidence.work import Challenge, Work
from vt_core.numerics import SiteEntries
from vt_core.training import tensor_digest
from vt_core.training.checkpoint import load_checkpoint, save_checkpoint
from vt_core.training.job import Dataset, Job
from vt_core.training.leaves import Leaf, decode_leaves, encode_leaves
from vt_core.training.live_digest import GuardedMode, LiveDigest
from vt_core.training.segment import LEAVES, LOG
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, build_spec
from vt_core.training.state import State, digest
from vt_core.verify import replay
from vt_core.verify.audit import open_run
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.verdict import Reason, SegmentResult

SEGMENT, FIRST, LAST = 2, 5, 8
"""The audited segment and its steps."""
ROWS, WIDTH = 16, 576  # of a parameter that is hashed late: 72 KiB


class RowsScaled(nn.Module):
    """A parameter that the forward pass writes too, so that hashing it late needs the guard."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight[3:5].mul_(0.5)
        return x @ self.weight


@dataclass
class TinyJob(Job):
    """Calls ``during`` in the forward pass."""

    during: Callable[[], None] = lambda: None
    batch_size = 4

    def build_model(self) -> nn.Module:
        return RowsScaled()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def dataset(self, location: str | None = None) -> Dataset:
        return Rows(ROWS)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        loss = (model(batch["x"]) - 0.25).square().mean()
        self.during()
        return loss


class TinyCase(Case):
    """A run of three segments: the initialisation, steps 1 to 4 and steps 5 to 8."""

    def open(self) -> tuple[Job, Dataset, RunSpec]:
        job = TinyJob()
        settings = {"seed": 1, "steps": LAST, "segment_steps": 4, "contractions": "logged", "functions": "logged"}
        return job, Rows(ROWS), build_spec(job, Rows(ROWS), self.reference, {}, settings | dict(self.train))


def case(interval: int) -> TinyCase:
    return TinyCase("tests:TinyJob", {}, {"commit_interval": interval})


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Honest runs by commit interval."""
    return {i: Trainer(case(i), tmp_path_factory.mktemp(f"every-{i}")).run().folder for i in (1, 2)}


class Slowest:
    """Hashing threads that never get a turn."""

    def submit(self, work: Callable[[], None]) -> Future[None]:
        return Future()


class Fastest:
    """Hashing threads that are done at once."""

    def submit(self, work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(work())
        return done


def use(threads: type[Slowest] | type[Fastest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_digest, "_threads", lambda background: threads())


# Both replays


@dataclass
class Seen:
    """What came of a replay: its result or what it raised, the steps it reported, the digest beside each step."""

    result: SegmentResult | None = None
    raised: Exception | None = None
    reported: list[int] = field(default_factory=list)
    beside: dict[int, LiveDigest | None] = field(default_factory=dict)


Hook = Callable[[int], None]  # called in the forward pass with the step


def audit(folder: Path, hook: Hook = lambda step: None, session: Session | None = None) -> Seen:
    """Replay the segment."""
    run = open_run(read_commitments(folder))
    seen = Seen()
    if session is None:
        job, dataset, _ = case(1).open()
        session = Session(run.spec, job, dataset)
    auditor = session

    def during() -> None:
        step = auditor.mode.moment.step
        seen.beside[step] = auditor._guard.pending
        hook(step)

    auditor.job.during = during  # type: ignore[attr-defined]
    start = (run.records[SEGMENT - 1], artifacts(folder, SEGMENT - 1))
    with auditor.open():
        try:
            found = replay.replay_segment(
                auditor, run.records[SEGMENT], artifacts(folder, SEGMENT), start, AuditorLimits.default(),
                seen.reported.append, Challenge("ab" * 32, "nonce"),
            )  # fmt: skip
            seen.result = dataclasses.replace(found, seconds=0.0)
        except (SpecError, OSError) as error:
            seen.raised = error
    return seen


def leaf_after_leaf(
    session: Session, record: Any, directory: Path, state: State | None, leaves: list[Leaf], rounding: Any, limits: Any,
    progress: Any,
) -> replay._Outcome:  # fmt: skip
    """Rule 5 with each state hashed at once and compared before anything else is done."""
    assert state is not None
    session.restore(state)
    with LogReader(directory / LOG, 1 << 30) as reader:
        step = record.first_step
        for leaf in leaves:
            traces, words, first = [], [], None
            while step <= leaf.step:
                rounding.begin_replay(reader.read_step(step))
                done = session.run_step(step, rounding)
                rounding.end_replay()
                traces.append(done.trace)
                words.append(rounding.words)
                if first is None and rounding.findings:
                    first = (step, list(rounding.findings))
                if progress is not None:
                    progress(step)
                step += 1
            same_trace = hashlib.sha256(b"".join(traces)).digest() == leaf.trace
            work = Work(b"".join(words))
            found = replay._compare(
                record.index, leaf, session.digest(leaf.step), same_trace, work.commitment() == leaf.work,
                rounding.fingerprints, first, limits,
            )  # fmt: skip
            if found is not None:
                break
    return replay._Outcome(found, replay.audited_counts(rounding), work)


def agree(folder: Path, hook: Hook = lambda step: None) -> Seen:
    """Replay both ways, require the same of both, and return what the library's way gave."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "_replay", leaf_after_leaf)
        expected = audit(folder, hook)
    for threads in (Fastest, Slowest):
        with pytest.MonkeyPatch.context() as patch:
            use(threads, patch)
            found = audit(folder, hook)
        assert repr(found.result) == repr(expected.result)  # all fields; a distance may be NaN
        assert found.reported == expected.reported
        assert repr(found.raised) == repr(expected.raised)
    return found


# What is forged


def change_leaf(folder: Path, step: int, **changes: Callable[[Leaf], Any]) -> None:
    leaves = leaves_of(folder)
    at = [leaf.step for leaf in leaves].index(step)
    leaves[at] = dataclasses.replace(leaves[at], **{name: change(leaves[at]) for name, change in changes.items()})
    commit(folder, leaves)


def leaves_of(folder: Path) -> list[Leaf]:
    return decode_leaves((artifacts(folder, SEGMENT) / LEAVES).read_bytes())


def commit(folder: Path, leaves: list[Leaf]) -> None:
    (artifacts(folder, SEGMENT) / LEAVES).write_bytes(encode_leaves(leaves))
    recommit(folder, {SEGMENT: leaves})


def change_log(folder: Path, step: int, change: Callable[[StepLog], None]) -> None:
    """Change a step's log; the leaves follow."""
    path = artifacts(folder, SEGMENT) / LOG
    with LogReader(path, 1 << 30) as reader:
        header, logs = reader.header, list(reader)
    change(logs[step - FIRST])
    path.unlink()
    with LogWriter(path, header) as writer:
        digests = {log.step: step_digest(writer.append(log)) for log in logs}
    leaves, first = [], FIRST
    for leaf in leaves_of(folder):
        covered = b"".join(digests[s] for s in range(first, leaf.step + 1))
        leaves.append(dataclasses.replace(leaf, log=hashlib.sha256(covered).digest()))
        first = leaf.step + 1
    commit(folder, leaves)


def state(folder: Path, step: int) -> None:
    """Commit to another state after ``step``; after the last one the checkpoint is that state."""
    if step < LAST:
        change_leaf(folder, step, state=lambda _: bytes(32), tensors=lambda x: {**x.tensors, "param.weight": bytes(32)})
        return
    published = load_checkpoint(artifacts(folder, SEGMENT))
    weight = published.tensors["param.weight"].clone()
    weight[0] += 0.25
    other = State(published.step, {**published.tensors, "param.weight": weight}, published.scalars)
    save_checkpoint(other, artifacts(folder, SEGMENT))
    change_leaf(folder, step, state=lambda _: digest(other).root, tensors=lambda _: digest(other).tensors)


def trace(folder: Path, step: int) -> None:
    change_leaf(folder, step, trace=lambda _: bytes(32))


def work(folder: Path, step: int) -> None:
    change_leaf(folder, step, work=lambda _: bytes(32))


def fingerprint(folder: Path, step: int) -> None:
    def change(log: StepLog) -> None:
        log.fingerprints[1] ^= 1

    change_log(folder, step, change)


def entry(folder: Path, step: int) -> None:
    """An entry where there is no site."""

    def change(log: StepLog) -> None:
        empty = SiteEntries.empty(0)
        log.sites[len(log.fingerprints) + 5] = dataclasses.replace(
            empty, positions=np.zeros(1, np.int64), parity=np.zeros(1, np.uint8)
        )

    change_log(folder, step, change)


Forgery = Callable[[Path, int], None]
DIFFERS, IMPLAUSIBLE, TRACE, WORK = (
    Reason.STATE_MISMATCH, Reason.LOG_IMPLAUSIBLE, Reason.TRACE_MISMATCH, Reason.WORK_MISMATCH,
)  # fmt: skip

FORGED: dict[str, tuple[int, list[tuple[Forgery, int]], tuple[Reason, int] | None]] = {
    "nothing": (1, [], None),
    "nothing, interval 2": (2, [], None),
    "state": (1, [(state, 6)], (DIFFERS, 6)),
    "state twice": (1, [(state, 7), (state, 6)], (DIFFERS, 6)),
    "state at the first step": (1, [(state, 5), (entry, 6)], (DIFFERS, 5)),
    "state at the last step": (1, [(state, 8)], (DIFFERS, 8)),
    "state before the last step": (1, [(state, 7), (state, 8)], (DIFFERS, 7)),
    "state, then a fingerprint": (1, [(state, 6), (fingerprint, 7)], (DIFFERS, 6)),
    "state, then an entry": (1, [(state, 6), (entry, 7)], (DIFFERS, 6)),
    "state, then the trace": (1, [(state, 6), (trace, 7)], (DIFFERS, 6)),
    "state, then the work": (1, [(state, 6), (work, 7)], (DIFFERS, 6)),
    "state and fingerprint": (1, [(state, 6), (fingerprint, 6), (entry, 7)], (DIFFERS, 6)),
    "state and entry": (1, [(state, 6), (entry, 6), (trace, 7)], (IMPLAUSIBLE, 6)),
    "work, then the state": (1, [(work, 6), (state, 7)], (WORK, 6)),
    "entry, then the state": (1, [(entry, 6), (state, 7)], (IMPLAUSIBLE, 6)),
    "trace, then the state": (1, [(trace, 6), (state, 7)], (TRACE, 6)),
    "fingerprint, then the state": (1, [(fingerprint, 6), (state, 7)], (DIFFERS, 7)),
    "interval 2, state": (2, [(state, 6)], (DIFFERS, 6)),
    "interval 2, state, then an entry": (2, [(state, 6), (entry, 7)], (DIFFERS, 6)),
    "interval 2, state, an entry two steps later": (2, [(state, 6), (entry, 8)], (DIFFERS, 6)),
    "interval 2, state at the last step": (2, [(state, 8)], (DIFFERS, 8)),
    "interval 2, entry within": (2, [(entry, 7)], (IMPLAUSIBLE, 7)),
}


def forged(honest: dict[int, Path], folder: Path, interval: int, changes: list[tuple[Forgery, int]]) -> Path:
    run = copy_run(honest[interval], folder)
    for change, step in changes:
        change(run, step)
    return run


@pytest.mark.parametrize("how", FORGED)
def test_forgeries_are_found_as_leaf_after_leaf(how: str, honest: dict[int, Path], tmp_path: Path) -> None:
    interval, changes, expected = FORGED[how]
    seen = agree(forged(honest, tmp_path / "run", interval, changes))
    assert seen.result is not None
    if expected is None:
        assert seen.result.reason is None and seen.result.opening is not None
        return
    place = seen.result.divergence
    assert place is not None and (seen.result.reason, place.step) == expected
    assert seen.result.opening is None


def test_a_cheat_is_found_as_leaf_after_leaf(tmp_path: Path) -> None:
    twice = type("TwiceAtSix", (DoublesStep,), {"step": 6})
    seen = agree(Trainer(case(1), tmp_path / "run", make=twice).run().folder)
    assert seen.result is not None and seen.result.divergence is not None
    assert (seen.result.reason, seen.result.divergence.step) == (DIFFERS, 6)
    assert seen.result.divergence.tensors and seen.reported == [5, 6]


# Exceptions

ERRORS = [
    EvidenceError("evidence_malformed", "such a record is not read", step=7), OSError("no such file"),
    UnsupportedOperation("aten.foo", "", "it is new", "Do without."), SpecError("no such setting"),
    MemoryError("full"), ValueError("a bad shape"),
]  # fmt: skip


def stopping(error: Exception, at: int) -> Hook:
    def stop(step: int) -> None:
        if step == at:
            raise error

    return stop


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_no_exception_hides_that_the_state_before_it_differs(
    error: Exception, honest: dict[int, Path], tmp_path: Path
) -> None:
    run = forged(honest, tmp_path / "run", 1, [(state, 6)])
    seen = agree(run, stopping(error, 7))
    assert seen.result is not None and seen.result.divergence is not None
    assert (seen.result.reason, seen.result.divergence.step, seen.raised) == (DIFFERS, 6, None)
    assert 7 in seen.beside, "step 7 was not begun: the test would show nothing"


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_without_a_difference_the_exception_is_what_it_was(error: Exception, honest: dict[int, Path]) -> None:
    seen = agree(honest[1], stopping(error, 7))
    assert (seen.result is None or seen.result.reason is not None) and seen.reported == [5, 6]


@pytest.mark.parametrize("at", [7, 8])
def test_an_exception_after_a_leaf_of_two_steps(at: int, honest: dict[int, Path], tmp_path: Path) -> None:
    seen = agree(forged(honest, tmp_path / "run", 2, [(state, 6)]), stopping(ValueError("a bad shape"), at))
    assert seen.result is not None and (seen.result.reason, seen.reported) == (DIFFERS, [5, 6])


def test_a_record_that_cannot_be_read(honest: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LogReader.read_step

    def read(reader: LogReader, step: int) -> StepLog:
        if step == 7:
            raise EvidenceError("evidence_malformed", "such a record is not read", step=step)
        return whole(reader, step)

    monkeypatch.setattr(LogReader, "read_step", read)
    seen = agree(forged(honest, tmp_path / "run", 1, [(state, 6)]))
    assert seen.result is not None and seen.result.reason is DIFFERS
    seen = agree(honest[1])
    assert seen.result is not None and seen.result.reason is Reason.EVIDENCE_MALFORMED


# Beside the next step


@pytest.mark.parametrize("interval", [1, 2])
def test_the_next_step_runs_while_the_state_is_hashed(
    interval: int, honest: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Slowest, monkeypatch)
    reads: dict[int, set[int]] = {}
    beside: dict[int, LiveDigest | None] = {}

    class Watched(RowsScaled):
        def forward(self, x: Tensor) -> Tensor:
            step, pending = auditor.mode.moment.step, auditor._guard.pending
            beside[step], reads[step] = pending, set() if pending is None else set(pending.reads)
            return super().forward(x)

    job, dataset, _ = case(interval).open()
    job.build_model = Watched  # type: ignore[method-assign]
    auditor = Session(open_run(read_commitments(honest[interval])).spec, job, dataset)
    seen = audit(honest[interval], session=auditor)
    assert seen.result is not None and seen.result.reason is None
    assert {s: None if p is None else p._step for s, p in beside.items()} == (
        {5: None, 6: 5, 7: 6, 8: 7} if interval == 1 else {5: None, 6: None, 7: 6, 8: None}
    )
    assert all(len(reads[s]) == 3 for s, p in beside.items() if p is not None), "the weight and Adam's two moments"
    assert not any(seen.beside.values()), "the write in the forward pass did not wait"


@pytest.fixture(params=["_wait_for_writes", "settle"])
def unguarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(GuardedMode, request.param, lambda *args: None)
    yield


def test_without_its_guards_an_honest_run_would_be_rejected(
    honest: dict[int, Path], monkeypatch: pytest.MonkeyPatch, unguarded: None
) -> None:
    use(Slowest, monkeypatch)
    seen = audit(honest[1])
    assert seen.result is not None and seen.result.reason is DIFFERS


@pytest.mark.parametrize("also", [False, True])
def test_a_digest_that_failed_accuses_nobody(
    also: bool, honest: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk whose hash stopped with a full memory is not hashed again; the next replay is none the worse for it.

    ``also``: the step beside it stops as well, before it waits for the digest.
    """
    use(Slowest, monkeypatch)
    hash_piece, armed = tensor_digest._Piece.hash, [6]

    def fail(piece: tensor_digest._Piece) -> bytes:
        if armed == [] and piece.values.nbytes > 1 << 16:
            armed.append(0)
            raise MemoryError("full")
        return hash_piece(piece)

    def arm(step: int) -> None:
        if step in armed:
            armed.clear()
            if also:
                raise ValueError("a bad shape")

    monkeypatch.setattr(tensor_digest._Piece, "hash", fail)
    auditor = Session(open_run(read_commitments(honest[1])).spec, *case(1).open()[:2])
    if also:  # the forward pass must not wait for the digest before it stops
        monkeypatch.setattr(GuardedMode, "_wait_for_writes", lambda *args: None)
    seen = audit(honest[1], arm, auditor)
    assert armed == [0] and seen.result is not None
    assert (seen.result.reason, seen.result.message) == (
        Reason.ENVIRONMENT_UNSUPPORTED, "the replay from the published state stopped with MemoryError: full",
    )  # fmt: skip
    monkeypatch.undo()
    again = audit(honest[1], session=auditor)
    assert again.result is not None and again.result.reason is None
