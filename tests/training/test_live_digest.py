"""A digest that is taken while the next step runs is that of the state before it, whatever the step writes and when.

The hashing threads of these tests wait until somebody asks for the result: the slowest that they may ever be. Each
case is also run without the guard that it needs, and then gives another digest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.rows import Rows
from torch import Tensor, nn

from vt_core.engine.rounding import TrainerRounding
from vt_core.training import live_digest, tensor_digest
from vt_core.training.job import Dataset, Job
from vt_core.training.live_digest import GuardedMode
from vt_core.training.segment import run_segment, train_segment
from vt_core.training.session import Session
from vt_core.training.spec import build_spec
from vt_core.training.state import StateDigest, digest
from vt_core.training.tensor_digest import Pending, tensor_roots

ROWS, WIDTH = 24, 1024  # of the large parameter: 192 KiB


class Base(nn.Module):
    """One large parameter that nothing but the optimizer writes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH))
        self.added()

    def added(self) -> None:
        """Register what a case needs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write()
        return x @ self.weight

    def write(self) -> None:
        """Write to the state."""


class Clamped(Base):
    def write(self) -> None:
        self.weight.clamp_(-0.5, 0.5)


class RowsScaled(Base):
    def write(self) -> None:
        self.weight[3:5].mul_(0.5)


class WrittenByOut(Base):
    def write(self) -> None:
        torch.mul(self.weight.detach(), 0.5, out=self.weight.detach())


class DataWritten(Base):
    def write(self) -> None:
        self.weight.data.neg_()


class Renormed(Base):
    """``max_norm`` writes the table of an embedding in the forward pass."""

    def added(self) -> None:
        self.table = nn.Embedding(ROWS, WIDTH, max_norm=0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.table(torch.arange(len(x)))


class InBackward(Base):
    """A hook updates the parameter as soon as it has its gradient."""

    def added(self) -> None:
        self.weight.register_post_accumulate_grad_hook(self.halve)

    @staticmethod
    def halve(parameter: Tensor) -> None:
        parameter.detach().mul_(0.5)


class Statistics(Base):
    def added(self) -> None:
        self.norm = nn.BatchNorm1d(WIDTH * 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm((x @ self.weight).repeat(1, 9))


class Alias(Base):
    """A buffer over the parameter's own memory, written in the forward pass."""

    def added(self) -> None:
        self.register_buffer("alias", self.weight.detach()[2:])

    def write(self) -> None:
        self.get_buffer("alias").mul_(0.5)


class TinyJob(Job):
    """Trains ``model``."""

    batch_size = 4

    def __init__(self, model: type[nn.Module]) -> None:
        self.model = model

    def build_model(self) -> nn.Module:
        return self.model()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def dataset(self, location: str | None = None) -> Dataset:
        return Rows(ROWS)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["x"]) - 0.25).square().mean()


def session_of(model: type[nn.Module], **train: Any) -> Session:
    job = TinyJob(model)
    settings = {"seed": 1, "steps": 6, "segment_steps": 3, **train}
    return Session(build_spec(job, job.dataset(), "tests:TinyJob", {}, settings), job, job.dataset())


@pytest.fixture(autouse=True)
def gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hashing threads begin when a result is asked for."""
    asked, hash_piece, result = threading.Event(), tensor_digest._Piece.hash, Pending.result

    def late(piece: tensor_digest._Piece) -> bytes:
        if threading.current_thread().name.startswith("vt-hash"):
            assert asked.wait(60)
        return hash_piece(piece)

    def ask(pending: Pending) -> dict[str, bytes]:
        asked.set()
        found = result(pending)
        asked.clear()
        return found

    monkeypatch.setattr(tensor_digest._Piece, "hash", late)
    monkeypatch.setattr(Pending, "result", ask)


def overlapped(session: Session) -> tuple[StateDigest, StateDigest, StateDigest]:
    """Return the digest of a copy of the state after step 2, that taken during step 3, and that of step 3."""
    rounding = TrainerRounding(session.grid, session.spec.policy, True)
    with session.open():
        for step in range(4):
            rounding.begin_step(step)
            _ = session.run_step(step, rounding) if step else session.initialise(rounding)
            if step == 2:
                expected = digest(session.capture(2))
                started = session.start_digest(2)
        return expected, started.result(), digest(session.capture(3))


def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedMode, "_wait_for_writes", lambda *args: None)


def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedMode, "settle", lambda self: None)


def nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the guard of the memory that is hashed late is gone: a silent write of statistics has none at all."""
    monkeypatch.setattr(live_digest, "_unwritten_until_the_update", dict)
    no_guard(monkeypatch)


CASES: dict[str, tuple[type[nn.Module], Callable[[pytest.MonkeyPatch], None]]] = {
    "update": (Base, no_wait),
    "clamp": (Clamped, no_guard),
    "rows": (RowsScaled, no_guard),
    "out": (WrittenByOut, no_guard),
    "data": (DataWritten, no_guard),
    "max-norm": (Renormed, no_guard),
    "backward": (InBackward, no_guard),
    "statistics": (Statistics, nothing_early),
    "alias": (Alias, nothing_early),
}


@pytest.mark.parametrize("case", CASES)
def test_digest_is_that_of_the_state_it_was_asked_for(case: str) -> None:
    expected, found, later = overlapped(session_of(CASES[case][0]))
    assert found == expected
    assert later.root != expected.root, "the step changed nothing: the test would show nothing"


@pytest.mark.parametrize("case", CASES)
def test_without_its_guard_each_case_goes_wrong(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, spoil = CASES[case]
    spoil(monkeypatch)
    expected, found, _ = overlapped(session_of(model))
    assert found != expected


def test_lists_of_written_tensors_are_seen() -> None:
    session = session_of(Base)
    rounding = TrainerRounding(session.grid, session.spec.policy, True)
    with session.open():
        rounding.begin_step(0)
        session.initialise(rounding)
        weight = session.model.get_parameter("weight").detach()
        for function, args, kwargs, waits in (
            (torch.ops.aten._foreach_mul_.Scalar, ([torch.ones(2), weight[1]], 2.0), {}, True),
            (torch.ops.aten._foreach_mul_.Scalar, ([torch.ones(2)], 2.0), {}, False),
            (torch.ops.aten.mul.out, (weight, weight), {"out": weight}, True),
            (torch.ops.aten.mul.out, (weight, weight), {"out": torch.ones(2)}, False),
            (torch.ops.aten.mul.Tensor, (weight, weight), {}, False),
        ):
            session.start_digest(0)
            assert session._guard.pending is not None
            session._guard._wait_for_writes(function, args, kwargs)
            assert (session._guard.pending is None) == waits, (function, args)


def test_restoring_another_state_does_not_disturb_a_digest() -> None:
    session = session_of(Base)
    rounding = TrainerRounding(session.grid, session.spec.policy, True)
    with session.open():
        for step in range(3):
            rounding.begin_step(step)
            _ = session.run_step(step, rounding) if step else session.initialise(rounding)
            if step == 0:
                initial = session.capture(0)
        expected, started = digest(session.capture(2)), session.start_digest(2)
        session.restore(initial)
        assert session._guard.pending is None
        assert started.result() == expected


@pytest.mark.parametrize("interval", [1, 2])
def test_leaves_hold_the_digests_of_their_states(interval: int, tmp_path: Path) -> None:
    """Over a whole segment, against a copy of the state after each step."""
    session, copies = session_of(Clamped, commit_interval=interval), {}
    with session.open():
        first = train_segment(session, 0, None, tmp_path / "0")
        segment = train_segment(
            session, 1, first.state, tmp_path / "1", lambda s, _: copies.update({s: digest(session.capture(s))})
        )
    assert [leaf.step for leaf in segment.leaves] == ([1, 2, 3] if interval == 1 else [2, 3])
    for leaf in segment.leaves:
        assert leaf.state == copies[leaf.step].root and leaf.tensors == copies[leaf.step].tensors


def test_a_draft_is_not_changed_by_the_segment_after_it(tmp_path: Path) -> None:
    session = session_of(Statistics)
    with session.open():
        plain = [train_segment(session, 0, None, tmp_path / "a0")]
        plain += [train_segment(session, i, plain[-1].state, tmp_path / f"a{i}") for i in (1, 2)]
        drafts = [run_segment(session, 0, None, tmp_path / "b0")]
        drafts += [run_segment(session, i, drafts[-1].state, tmp_path / f"b{i}") for i in (1, 2)]
    assert not list(tmp_path.glob("b?"))
    for draft, expected in zip(drafts, plain, strict=True):
        segment = draft.finish()
        assert draft.finish() is segment
        assert segment.leaves == expected.leaves and segment.state.step == expected.state.step
        assert tensor_roots(segment.state.tensors) == tensor_roots(expected.state.tensors)
        same = [n for n in segment.files if segment.files[n] == expected.files[n]]
        assert set(segment.files) - set(same) == {"metrics.json"}, "only the seconds differ"


class Turned(Base):
    """Its parameter cannot be hashed where it lies, like all state on a GPU: it is copied first."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())


def test_copies_are_let_go_before_the_next_update(tmp_path: Path) -> None:
    session = session_of(Turned, steps=6, segment_steps=6)
    with session.open():
        state = run_segment(session, 0, None, tmp_path / "0").finish().state
        draft = run_segment(session, 1, state, tmp_path / "1")
    kept = [leaf.state._later._pieces for leaf in draft._leaves if leaf.state is not None]
    assert kept == [[]] * 5
