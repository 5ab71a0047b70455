"""The learning-rate schedule: its ends, its shape, and why it is written as a squared sine."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal, getcontext

import numpy as np
import pytest

from vt_core.errors import SpecError
from vt_core.jobs.gpt2_text import Gpt2TextJob
from vt_core.jobs.parts import check_schedule, warmup_cosine


def test_warms_up_linearly_then_falls_to_the_floor_and_stays() -> None:
    rate = [warmup_cosine(s, peak=2.0, warmup=4, total=24, floor=0.5) for s in range(1, 30)]
    assert rate[:4] == [0.5, 1.0, 1.5, 2.0]
    assert all(a > b for a, b in itertools.pairwise(rate[3:24]))
    assert rate[13] == pytest.approx(1.25)  # half way
    assert rate[23:] == [0.5] * 6


def test_equals_the_cosine_form() -> None:
    for step in range(10, 110):
        want = 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert warmup_cosine(step, peak=1.0, warmup=10, total=110) == pytest.approx(want, abs=1e-15)


def test_without_a_total_the_rate_is_constant() -> None:
    assert {warmup_cosine(s, peak=0.3, warmup=0, total=None) for s in (1, 2, 10**9)} == {0.3}


def test_last_steps_are_right_to_float32_where_the_cosine_form_is_not() -> None:
    getcontext().prec = 50
    total = 1_000_000
    pi = Decimal("3.14159265358979323846264338327950288419716939937510")

    def exact(step: int) -> float:
        x = pi / 2 * (total - step) / total
        return float((x - x**3 / 6 + x**5 / 120) ** 2)

    steps = range(total - 20, total)
    want = [np.float32(exact(s)) for s in steps]
    assert [np.float32(warmup_cosine(s, peak=1.0, warmup=0, total=total)) for s in steps] == want
    plain = [np.float32(0.5 * (1 + math.cos(math.pi * s / total))) for s in steps]
    assert plain != want


def test_gpt2_ends_at_a_tenth() -> None:
    job = Gpt2TextJob(lr=0.002, warmup=2, total_steps=10)
    assert job.learning_rate(1) == 0.001
    assert job.learning_rate(10) == pytest.approx(0.0002)


@pytest.mark.parametrize(("warmup", "total"), [(-1, None), (5, 5), (0, 0), (0, 2.5), (1.0, None)])
def test_impossible_schedules_are_refused(warmup: int, total: int | None) -> None:
    with pytest.raises(SpecError):
        check_schedule(warmup, total, ("warmup", "total_steps"))


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        warmup_cosine(0, peak=1.0, warmup=0, total=None)
