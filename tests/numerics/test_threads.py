"""Sharing work over threads: results in order, errors raised, and nothing kept by a thread that is late."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from queue import SimpleQueue

import pytest
import torch

from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid, threads
from vt_core.numerics.threads import share


class Held:
    """Something that work refers to."""


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[Callable[[], None]]:
    """The queue of helpers of which none has begun yet."""
    queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
    monkeypatch.setattr(threads, "_started", lambda count: queue)
    return queue


def test_results_come_in_order() -> None:
    assert share(lambda i: i * i, 50, 4) == [i * i for i in range(50)]
    assert share(lambda i: i, 0, 4) == []


def test_an_error_is_raised_when_all_have_ended() -> None:
    def work(i: int) -> int:
        if i == 3:
            raise ValueError("three")
        return i

    with pytest.raises(ValueError, match="three"):
        share(work, 10, 4)


def test_a_late_helper_keeps_nothing_alive(late: SimpleQueue[Callable[[], None]]) -> None:
    held = Held()
    seen = weakref.ref(held)
    gc.disable()
    try:
        assert len(share(lambda i, held=held: [held, i], 3, 2)) == 3
        del held
        assert seen() is None, "the helper's task in the queue refers to it"
    finally:
        gc.enable()
    late.get()()  # when it begins at last there is nothing left to do


@pytest.mark.parametrize("functions", ["logged", "exact"])
def test_a_late_helper_does_not_change_the_operations_of_a_step(
    late: SimpleQueue[Callable[[], None]], functions: str
) -> None:
    """PyTorch keeps a gradient that nobody else holds, and copies any other: an operation and a site more."""
    generator = torch.Generator().manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64)).double()
    x = torch.randn(16, 64, 16, 16, dtype=torch.float64, generator=generator)
    for contractions in ("exact", "logged"):
        rounding = TrainerRounding(Grid.parse("float32"), DEFAULT["float64"], True)
        mode = VerifiedMode(torch.float64, rounding, Streams(1), ModuleTracker(), False, contractions, functions)
        rounding.begin_step(1)
        mode.begin_step(1, 1)
        model.zero_grad()
        with mode:
            model(x).sum().backward()
        assert not late.empty(), "nothing was shared: the test is too small"
        assert not [line for line in mode.trace.lines if "copy_" in line]
