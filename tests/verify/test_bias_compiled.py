"""The compiled count of decisions is that of the definition, and values are taken from where they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vt_core.numerics import Grid, Tolerance, are_places, count_decisions, kernels, values_at
from vt_core.numerics.grid import FloatArray, lattice_index, lattice_value, round_array
from vt_core.verify.bias import exact_uses, uses

CASES = [
    ("float32", Tolerance(None, -44, 5), np.float64),
    ("float32", Tolerance(-48, -50, 3), np.float64),
    ("float32", Tolerance(None, -44), np.float64),
    ("bfloat16", Tolerance(None, -16, 3), np.float32),
    ("bfloat16", Tolerance(-12, -14), np.float32),
    ("float16", Tolerance(-19, -20, 3), np.float32),
    ("float32-d8", Tolerance(None, -18, 4), np.float32),
]
SCALE = 3


def near_boundaries(
    random: np.random.Generator, grid: Grid, tolerance: Tolerance, kind: type[np.floating], count: int
) -> tuple[FloatArray, FloatArray]:
    """Return values at up to three tolerances from rounding boundaries, and grid values at most one place off."""
    y = round_array(random.standard_normal(count) * 2.0 ** random.integers(-20, SCALE, count), grid)
    boundary = (y + lattice_value(lattice_index(y, grid) + 1, grid)) / 2
    x = (boundary + random.uniform(-3, 3, count) * 2.0 ** (tolerance.atol_exp + SCALE)).astype(kind)
    place = lattice_index(round_array(x, grid), grid) + random.choice([0, 0, 0, 1, -1], count)
    return x, lattice_value(place, grid).astype(kind)


@pytest.mark.parametrize(("name", "tolerance", "kind"), CASES)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([1, 511, 513, 3000]), odd=st.integers(0, 12))
@settings(max_examples=40, deadline=None)
def test_uses_are_those_of_the_definition(
    name: str, tolerance: Tolerance, kind: type[np.floating], seed: int, count: int, odd: int
) -> None:
    grid, random = Grid.parse(name), np.random.default_rng(seed)
    x, used = near_boundaries(random, grid, tolerance, kind, count)
    at = random.integers(0, count, odd)  # some blocks with what a quick loop cannot take
    x[at] = random.choice([np.nan, np.inf, -np.inf, grid.max_value, -0.0, 2.0**grid.emin / 3], odd)
    used[at] = round_array(x[at], grid)
    assert uses(x, used, tolerance, SCALE, grid) == exact_uses(x, used.astype(np.float64), tolerance, SCALE, grid)


@pytest.mark.parametrize(("name", "tolerance", "kind"), CASES)
def test_few_entries_are_left_out(
    name: str, tolerance: Tolerance, kind: type[np.floating], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And flipped ones are found, by as many threads as there may be."""
    monkeypatch.setattr(kernels, "PARALLEL_FROM", 1)
    grid = Grid.parse(name)
    x, used = near_boundaries(np.random.default_rng(7), grid, tolerance, kind, 20_000)
    decisions, flipped, rest = count_decisions(x, used, tolerance, SCALE, grid)
    expected = exact_uses(x, used.astype(np.float64), tolerance, SCALE, grid)
    assert decisions == expected.decisions > 1000 and flipped == expected.flipped > 100
    assert rest.size == 0 if tolerance.step_exp is not None else rest.size >= expected.fine


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["plain", "transposed", "channels_last", "sliced"])
def test_values_are_taken_in_row_major_order(dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 8, 10, 12, dtype=dtype)
    x = {
        "plain": x,
        "transposed": x.transpose(1, 3),
        "channels_last": x.to(memory_format=torch.channels_last),
        "sliced": x[::2, :, 3:],
    }[kind]
    positions: NDArray[np.int64] = np.flatnonzero(np.random.default_rng(1).random(x.numel()) < 0.2)
    expected = x.reshape(-1).numpy()[positions]
    for threshold in (kernels.PARALLEL_FROM, 1):
        monkeypatch.setattr(kernels, "PARALLEL_FROM", threshold)
        found = values_at(x, positions)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("positions", "numel", "expected"),
    [([], 0, True), ([0], 1, True), ([0, 4], 5, True), ([0, 5], 5, False), ([-1, 2], 5, False), ([2, 2], 5, False),
     ([3, 2], 5, False), ([1, -(2**63), 4], 5, False)],
)  # fmt: skip
def test_places_ascend_inside_the_tensor(positions: list[int], numel: int, expected: bool) -> None:
    assert are_places(np.array(positions, np.int64), numel) is expected
