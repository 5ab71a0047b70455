"""The binomial test on the log: its size, its power, and exact p-values."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest

from vt_core.verify.bias import HONEST_RATE, SIGNIFICANCE, biased_class


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
