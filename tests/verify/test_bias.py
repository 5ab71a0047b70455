"""The binomial test on the log: its size, its power, and exact p-values."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest

from vt_core.numerics import Grid, Tolerance
from vt_core.numerics.grid import round_array
from vt_core.verify.bias import (
    HONEST_RATE,
    SIGNIFICANCE,
    Uses,
    biased_class,
    flips_of,
    most_flips,
    most_pushed,
    p_value,
    push_p_value,
    uses,
)

FLOAT32 = Grid.parse("float32")
TOLERANCE = Tolerance(None, -44)  # of values with e = 0 around 0.5: 2**-44, where float32 is 2**-24 apart
TAU, ULP = 2.0**-44, 2.0**-24


def counts(entries: int, disagreements: int, name: str = "reduction") -> dict[str, dict[str, Any]]:
    return {name: {"entries": entries, "disagreements": disagreements}}


def exact(entries: int, disagreements: int, rate: Fraction) -> float:
    """P(at least that many disagreements), by its definition in exact arithmetic."""
    total = sum(
        (comb(entries, k) * rate**k * (1 - rate) ** (entries - k) for k in range(disagreements, entries + 1)),
        Fraction(0),
    )
    return float(total)


@pytest.mark.parametrize(("entries", "disagreements"), [(9, 9), (10, 10), (40, 25), (200, 60), (500, 120)])
def test_p_value_is_the_exact_binomial_tail(entries: int, disagreements: int) -> None:
    expected = exact(entries, disagreements, Fraction(1, 10))
    found = biased_class(counts(entries, disagreements))
    assert (found is not None) == (expected < SIGNIFICANCE)
    shown = biased_class(counts(entries, disagreements), significance=1.0)
    assert shown is not None and shown.p_value == pytest.approx(expected, rel=1e-9)
    assert (shown.entries, shown.disagreements, shown.op_class) == (entries, disagreements, "reduction")


def test_all_flipped_is_found_from_ten_entries_on() -> None:
    assert biased_class(counts(9, 9)) is None
    assert biased_class(counts(10, 10)) is not None


def test_half_flipped_is_found_within_a_hundred_entries() -> None:
    random = np.random.Generator(np.random.PCG64(1))
    found = [biased_class(counts(100, int(random.binomial(100, 0.5)))) for _ in range(500)]
    assert all(x is not None for x in found)


def test_honest_hardware_is_never_accused() -> None:
    """Ten thousand honest audits at the very bound of the honest rate, of sizes from tiny to large."""
    random = np.random.Generator(np.random.PCG64(2))
    for size in (1, 10, 100, 10_000, 1_000_000):
        for disagreements in random.binomial(size, HONEST_RATE, 300):
            assert biased_class(counts(size, int(disagreements))) is None
        assert biased_class(counts(size, int(size * HONEST_RATE))) is None


def test_each_class_is_tested_alone_and_the_worst_is_named() -> None:
    """Steering one small class must not drown in the honest entries of the others."""
    honest = counts(1_000_000, 200, "contraction")
    steered = {**honest, **counts(60, 30), **counts(1000, 800, "other")}
    found = biased_class(steered)
    assert found is not None and found.op_class == "other"
    assert biased_class({**honest, **counts(60, 30)}).op_class == "reduction"  # type: ignore[union-attr]
    assert biased_class(honest) is None


def test_nothing_logged_or_nothing_differs() -> None:
    assert biased_class({}) is None
    assert biased_class(counts(0, 0)) is None
    assert biased_class(counts(10**6, 0)) is None


def test_limits_of_the_auditor_are_used() -> None:
    assert biased_class(counts(100, 60), honest_rate=0.5) is None
    assert biased_class(counts(100, 60), honest_rate=0.01) is not None
    assert biased_class(counts(100, 60), significance=1e-60) is None


def near_boundary(distance_in_tau: float, side: int = 1, at: float = 0.5) -> float:
    """Return a value ``distance_in_tau`` above (``side`` 1) or below the boundary between ``at`` and its successor."""
    return at + ULP / 2 + side * distance_in_tau * TAU


def used_by(x: list[float], used: list[float]) -> Uses:
    return uses(np.array(x), np.array(used), TOLERANCE, 0, FLOAT32)


def decided(x: float, other: bool) -> tuple[int, int]:
    """Return (decisions, flipped) for one entry that names the auditor's own rounding or its neighbour."""
    own = float(round_array(np.array([x]), FLOAT32)[0])
    found = used_by([x], [own if not other else (own - ULP if own > x else own + ULP)])
    assert (found.fine, found.moved, found.pushed) == (0, 0, 0.0)
    return found.decisions, found.flipped


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(("distance", "is_decision"), [(0.0, True), (0.5, True), (0.99, True), (1.1, False)])
def test_a_decision_lies_within_one_tolerance_of_a_boundary(distance: float, is_decision: bool, side: int) -> None:
    x = near_boundary(distance, side)
    assert decided(x, other=False) == (int(is_decision), 0)
    if is_decision:
        assert decided(x, other=True) == (1, 1)


def test_values_finer_than_the_tolerance_are_pushed_not_flipped() -> None:
    found = used_by([1e-15, 2e-15, 3e-15], [1e-15, 2e-15 + TAU / 4, 3e-15 - TAU])
    assert (found.decisions, found.flipped, found.fine) == (0, 0, 3)
    assert found.moved >= 2 and found.pushed == pytest.approx(1.25, rel=1e-3)


def test_multiples_of_a_least_step_are_decisions() -> None:
    tolerance = Tolerance(None, TOLERANCE.atol_exp, 5)
    step = 32 * TAU
    x = np.array([3.5 * step + 0.5 * TAU, 3.5 * step - 0.5 * TAU, 5 * step])
    found = uses(x, np.array([3.0, 3.0, 5.0]) * step, tolerance, 0, FLOAT32)
    assert (found.decisions, found.flipped, found.fine) == (2, 1, 0)
    assert uses(x[:2], np.array([3.0, 3.0]) * step, TOLERANCE, 0, FLOAT32).fine == 2, "without one the grid is finer"


def test_zeros_count_only_where_they_were_moved_far() -> None:
    none = Uses(0, 0, 0, 0, 0.0)
    assert used_by([0.0, 0.0], [0.0, 2.0**-100]) == none, "a liar could log zeros to dilute its mean"
    found = used_by([0.0, 0.0], [2.0**-46, TAU])
    assert (found.decisions, found.fine, found.moved) == (0, 2, 2) and found.pushed == pytest.approx(1.25, rel=1e-3)
    assert used_by([np.nan, np.inf], [np.nan, np.inf]) == used_by([], []) == none


def test_no_padding_dilutes_decisions() -> None:
    """Twenty steered decisions among thousands of entries that an auditor accepts and that decide nothing."""
    random = np.random.Generator(np.random.PCG64(3))
    steered = np.array([near_boundary(d) for d in random.uniform(0, 1, 20)])
    beyond = np.array([near_boundary(d, s) for d, s in zip(random.uniform(1.01, 2, 500), [1, -1] * 250, strict=True)])
    x = np.concatenate([steered, beyond, np.zeros(5000)])
    used = round_array(x, FLOAT32)
    used[:20] = 0.5
    found = uses(x, used, TOLERANCE, 0, FLOAT32)
    assert (found.decisions, found.flipped) == (20, 20)
    padded = {"entries": x.size, "disagreements": 20}
    assert biased_class({"reduction": padded}) is None, "the padding would hide it"
    assert biased_class({"reduction": {**padded, **asdict(found)}}) is not None


def test_noise_near_zero_accuses_nobody_and_pushes_do() -> None:
    """Sums that cancel: two honest machines log two noises and never agree, but not by a whole tolerance."""
    noise = {"entries": 400, "disagreements": 400}
    assert biased_class({"contraction": noise}) is not None, "which a test over all entries alike takes for a lie"
    told_apart = {**noise, "decisions": 30, "flipped": 1, "fine": 370, "moved": 370}
    assert biased_class({"contraction": {**told_apart, "pushed": 0.15 * 370}}) is None
    found = biased_class({"contraction": {**told_apart, "pushed": 0.9 * 370}})
    assert found is not None and (found.entries, found.disagreements) == (370, 370)


def test_honest_pushes_at_the_very_bound_are_never_accused() -> None:
    random = np.random.Generator(np.random.PCG64(5))
    for size in (1, 30, 1000, 100_000):
        for _ in range(200):
            pushed = float((random.random(size) < 2 * HONEST_RATE).sum())  # the widest spread of that mean
            assert biased_class({"other": {"decisions": 0, "fine": size, "moved": size, "pushed": pushed}}) is None


def test_the_share_of_decisions_among_values_is_that_of_chance() -> None:
    """Spread over a binade, two tolerances out of each spacing decide: 2 tau / ulp."""
    random = np.random.Generator(np.random.PCG64(4))
    x = random.uniform(0.5, 1.0, 200_000)
    found = uses(x, round_array(x, FLOAT32), Tolerance(None, -30), 0, FLOAT32)
    assert found.decisions == pytest.approx(200_000 * 2 * 2.0**-30 / ULP, rel=0.05)
    assert (found.flipped, found.fine) == (0, 0)


@pytest.mark.parametrize("entries", [0, 1, 9, 10, 57, 1000, 123_456])
def test_budget_of_a_liar_is_the_last_count_that_passes(entries: int) -> None:
    most = most_flips(entries)
    assert 0 <= most <= entries
    assert biased_class(counts(entries, most)) is None
    assert most == entries or biased_class(counts(entries, most + 1)) is not None
    if entries >= 100_000:
        assert most < 1.2 * HONEST_RATE * entries


@pytest.mark.parametrize("fine", [0, 1, 10, 1000, 123_456])
def test_budget_of_pushes_is_the_last_that_passes(fine: int) -> None:
    most = most_pushed(fine)
    assert most <= fine and push_p_value(fine, most * (1 - 1e-9)) >= SIGNIFICANCE
    assert most == fine or push_p_value(fine, most + 0.01) < SIGNIFICANCE


def test_entries_that_are_not_told_apart_are_tested_alike() -> None:
    assert flips_of({"entries": 5, "disagreements": 2}) == (2, 5)
    assert flips_of({"entries": 5, "disagreements": 2, "decisions": 3, "flipped": 1}) == (1, 3)
    assert flips_of({}) == (0, 0) and p_value(10, 0) == 1.0
