"""What a plan precomputes, and how work is shared between threads."""

from __future__ import annotations

import math
import threading
from queue import SimpleQueue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import COMPUTE, GRIDS, TOLERANCES

from vt_core.errors import PrecisionError, SpecError
from vt_core.numerics import Grid, Tolerance, threads
from vt_core.numerics import plan as plans
from vt_core.numerics.plan import Plan, plan_for
from vt_core.numerics.scale import acceptable_scales, scale_exponent
from vt_core.numerics.threads import share

magnitudes = st.one_of(
    st.just(0.0),
    st.floats(0.0, 2.0**127, width=32),
    st.builds(lambda e, k: 2.0**e * (1.0 + k * 2.0**-23), st.integers(-140, 126), st.integers(-4, 4)),
    st.builds(lambda e, k: 2.0**e * (1.0 + k * 2.0**-12), st.integers(-100, 100), st.integers(-9, 9)),
)


@given(data=st.data(), largest=magnitudes, floor=magnitudes, auditor=st.booleans())
@settings(max_examples=1000, deadline=None)
def test_the_quick_look_at_the_scale_agrees_with_the_full_one(
    data: st.DataObject, largest: float, floor: float, auditor: bool
) -> None:
    dtype = data.draw(st.sampled_from(COMPUTE))
    tolerance = data.draw(st.sampled_from([*TOLERANCES[dtype], Tolerance(-12, -12)]))
    scale, acceptable = plan_for(Grid.parse("bfloat16"), tolerance, dtype).scale(largest, floor, auditor)
    full = acceptable_scales(largest, tolerance, dtype, auditor, floor)
    assert scale == scale_exponent(max(largest, floor), dtype)
    assert full == acceptable if acceptable is not None else full == range(scale, scale + 1)


def test_plans_are_kept_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_plans", {})
    monkeypatch.setattr(plans, "_MOST_PLANS", 8)
    made: list[Plan] = []
    for _ in range(2):
        for name in GRIDS:
            for dtype in COMPUTE:
                for exponent in (-20, -26):
                    grid, tolerance = Grid.parse(name), Tolerance(None, exponent)
                    plan = plan_for(grid, tolerance, dtype)
                    assert plan_for(grid, tolerance, dtype) is plan
                    assert (plan.grid, plan.tolerance, plan.dtype) == (grid, tolerance, dtype)
                    assert plan.at(3)[1].tolist()[1] == 2.0 ** (3 + exponent)
                    assert len(plans._plans) <= 8
                    made.append(plan)
    assert len({id(plan) for plan in made}) > 8


def test_unsuitable_dtypes_and_tolerances_are_refused() -> None:
    with pytest.raises(PrecisionError):
        plan_for(Grid.parse("float32"), None, torch.bfloat16)
    with pytest.raises(SpecError):
        plan_for(Grid.parse("bfloat16"), Tolerance(None, -40), torch.float32)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_shared_work_comes_back_in_order(count: int, workers: int) -> None:
    assert share(lambda task: task * task, count, workers) == [task * task for task in range(count)]


def test_several_threads_take_part() -> None:
    """Two tasks that wait for each other end only if two threads run them."""
    barrier = threading.Barrier(2, timeout=60)
    assert sorted(share(lambda _: barrier.wait(), 2, 2)) == [0, 1]


def test_an_error_is_raised_after_the_last_task_has_ended() -> None:
    running = threading.Semaphore(0)
    ended: list[int] = []

    def work(task: int) -> None:
        if task == 0:
            assert running.acquire(timeout=60)  # task 1 has begun
            raise ZeroDivisionError
        running.release()
        threading.Event().wait(0.2)
        ended.append(task)

    with pytest.raises(ZeroDivisionError):
        share(work, 2, 2)
    assert ended == [1]
    assert share(lambda task: task, 3, 2) == [0, 1, 2]


def test_the_caller_does_not_wait_for_threads_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other threads are busy with something else: the caller does the work itself."""
    monkeypatch.setattr(threads, "_helpers", SimpleQueue())
    monkeypatch.setattr(threads, "_helper_count", 0)
    stop, busy = threading.Event(), threading.Semaphore(0)
    blocker = threading.Thread(target=lambda: share(lambda _: (busy.release(), stop.wait(60)), 2, 2))
    blocker.start()
    assert busy.acquire(timeout=60) and busy.acquire(timeout=60)
    try:
        here = threading.get_ident()
        assert share(lambda _: threading.get_ident(), 4, 2) == [here] * 4
    finally:
        stop.set()
        blocker.join(60)


def test_the_limit_of_tame_blocks_leaves_room() -> None:
    """1.5 * 2**(E + width - precision) stays finite for values within tau of the largest tame ones."""
    for name in GRIDS:
        for dtype, width, largest in ((torch.float64, 53, 1023), (torch.float32, 24, 127)):
            grid = Grid.parse(name)
            limit = int(plan_for(grid, None, dtype).ints[5])
            if limit < 0:
                assert grid.precision > width - 2
                continue
            exponent = (limit >> (width - 1)) - largest
            assert exponent + 2 <= grid.emax
            assert exponent + 2 + width - grid.precision <= largest
            assert math.isfinite(2.0**exponent)
