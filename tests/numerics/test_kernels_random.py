"""Kernels and reference agree on whole random tensors: blocks of every sort, mixed blocks, and sizes around a block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numerics_support import COMPUTE, GRIDS, NUMPY, TOLERANCES, bits

from vt_core.numerics import DEFAULT, Grid, OpClass, Tolerance, kernels, reference
from vt_core.numerics._jit_base import BLOCK

SIZES = [1, 2, 63, 65, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17, 20_011]


def values(kind: str, size: int, rng: np.random.Generator, grid: Grid) -> np.ndarray:
    x = rng.standard_normal(size)
    if kind == "every binade":
        return x * 2.0 ** rng.integers(-160, 130, size)
    if kind == "zeros":
        x *= 2.0 ** float(rng.integers(-140, 100))
        x[rng.random(size) < 0.4] = 0.0
        x[rng.random(size) < 0.1] = -0.0
    if kind == "tails":  # from 1 down to far below the smallest subnormal of every grid
        return np.exp(-rng.random(size) * 200.0)
    if kind == "non-finite":
        x[rng.random(size) < 0.01] = np.nan
        x[rng.random(size) < 0.002] = np.inf
        x[rng.random(size) < 0.002] = -np.inf
    if kind == "overflow":
        return grid.max_value * (1.0 + x * 2.0**-grid.precision)
    if kind == "powers of two":  # the boundary below is half as far as that above
        return np.copysign(2.0 ** rng.integers(grid.emin, 3, size) * (1.0 + 2.0**-50 * rng.integers(-3, 4, size)), x)
    if kind == "subnormals":
        return rng.integers(-9, 10, size) * 2.0 ** (grid.quantum_exponent - 2)
    return x


KINDS = ["normal", "every binade", "zeros", "tails", "non-finite", "overflow", "powers of two", "subnormals"]


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("kind", KINDS)
def test_random_tensors(kind: str, dtype: torch.dtype, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "PARALLEL_FROM", 1 << 12)
    monkeypatch.setattr(kernels, "worker_count", lambda: 3)
    rng = np.random.default_rng(KINDS.index(kind))
    grid = Grid.parse(name)
    policy = DEFAULT["float64" if dtype == torch.float64 else "float32"]
    tolerances = [*TOLERANCES[dtype], *(policy[c] for c in (OpClass.CONTRACTION, OpClass.TRANSCENDENTAL))]
    for turn, size in enumerate(SIZES):
        tolerance = tolerances[turn % len(tolerances)]
        floor = float(rng.choice([0.0, 0.0, 1.0, 1e30]))
        with np.errstate(all="ignore"):
            x = torch.from_numpy(values(kind, size, rng, grid).astype(NUMPY[dtype]))
        compare(x, tolerance, grid, floor, rng)


def compare(x: torch.Tensor, tolerance: Tolerance, grid: Grid, floor: float, rng: np.random.Generator) -> None:
    a, b = x.clone(), x.clone()
    log = kernels.trainer_round_(a, tolerance, grid, True, floor)
    assert log == reference.trainer_round_(b, tolerance, grid, True, floor)
    assert torch.equal(bits(a), bits(b))
    assert kernels.is_on_grid(a, grid)
    assert kernels.is_on_grid(x, grid) == reference.is_on_grid(x, grid)
    assert kernels.max_magnitude(x) == reference.max_magnitude(x)

    reach = x.abs() * tolerance.rtol + max(kernels.max_magnitude(x), floor) * tolerance.atol
    for factor in (0.9, 1.5):  # an honest auditor and one for whom some entries are implausible
        other = x + reach * torch.from_numpy(rng.uniform(-factor, factor, x.numel())).to(x.dtype)
        a, b = other.clone(), other.clone()
        audit = kernels.auditor_round_(a, tolerance, grid, log.entries, True, floor)
        assert repr(audit) == repr(reference.auditor_round_(b, tolerance, grid, log.entries, True, floor))
        assert torch.equal(bits(a), bits(b))

    a, b = x.clone(), x.clone()
    assert kernels.round_plain_(a, grid, True) == reference.round_plain_(b, grid, True)
    assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("dtype", COMPUTE)
def test_one_wild_element_among_tame_ones(dtype: torch.dtype) -> None:
    """A block that holds one NaN, infinity or overflowing value is rounded as a whole from the values before."""
    grid, tolerance = Grid.parse("float16"), Tolerance(None, -24)
    for value in (float("nan"), float("inf"), -float("inf"), grid.max_value, 65520.0, 65519.0, -1e30):
        for place in (0, BLOCK - 1, BLOCK, 2 * BLOCK):
            x = torch.randn(2 * BLOCK + 1, dtype=dtype, generator=torch.Generator().manual_seed(place))
            x[place] = value
            compare(x, tolerance, grid, 0.0, np.random.default_rng(place))


@pytest.mark.parametrize(
    ("dtype", "name", "tolerance", "value"),
    [
        # The boundary a quarter of a spacing below a power of two is within tau, the one above is not.
        (torch.float32, "bfloat16", Tolerance(-20, -12), 0.125),
        (torch.float64, "float32", Tolerance(-50, -26), 0.25),
        # Rounds to zero, yet neither by the zero rule nor with all of its window.
        (torch.float64, "float16", Tolerance(None, -26), 1.5 * 2.0**-26),
        (torch.float64, "float16", Tolerance(None, -36), 2.0**-25),
    ],
)
def test_a_lone_element_that_must_be_logged(dtype: torch.dtype, name: str, tolerance: Tolerance, value: float) -> None:
    for place in (0, 63, 64, BLOCK + 5):
        x = torch.zeros(2 * BLOCK, dtype=dtype)
        x[place] = value
        log = kernels.trainer_round_(x.clone(), tolerance, Grid.parse(name), False, 1.0).entries
        assert log is not None and log.positions.tolist() == [place]
        compare(x, tolerance, Grid.parse(name), 1.0, np.random.default_rng(0))


@pytest.mark.parametrize("change", ["full value", "position twice", "position outside", "parity"])
def test_a_log_that_was_tampered_with(change: str) -> None:
    grid, tolerance = Grid.parse("bfloat16"), Tolerance(-20, -14)
    x = torch.randn(3000, generator=torch.Generator().manual_seed(8))
    entries = kernels.trainer_round_(x.clone(), tolerance, grid, False).entries
    assert entries is not None and entries.full_index.size > 2
    if change == "full value":
        entries.full_values[1] += 2.0
    elif change == "position twice":
        parity_only = np.setdiff1d(np.arange(entries.positions.size), entries.full_index)
        j = next(int(k) for k in parity_only if k + 1 in parity_only)
        entries.positions[j + 1], entries.parity[j + 1] = entries.positions[j], entries.parity[j]
    elif change == "position outside":
        entries.positions[-1] = x.numel()
    else:
        entries.parity[np.setdiff1d(np.arange(9), entries.full_index)[0]] ^= 1
    a, b = x.clone(), x.clone()
    audit = kernels.auditor_round_(a, tolerance, grid, entries, True)
    assert repr(audit) == repr(reference.auditor_round_(b, tolerance, grid, entries, True))
    assert torch.equal(bits(a), bits(b))
    assert audit.finding_count + audit.disagreements > 0


def test_a_view_with_the_negative_bit() -> None:
    """The memory of such a view holds the values negated, even where it counts as contiguous."""
    pair = torch.tensor([1.0 + (2.0 + 2.0**-30) * 1j], dtype=torch.complex128)
    x = pair.conj().imag
    assert x.is_neg() and x.is_contiguous()
    kernels.round_plain_(x, Grid.parse("bfloat16"), False)
    assert x.item() == -2.0 and pair.imag.item() == 2.0
    assert kernels.fingerprint(x) == reference.fingerprint(torch.tensor([-2.0], dtype=torch.float64))
