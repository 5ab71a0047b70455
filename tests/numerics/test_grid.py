"""Rounding onto the grids against oracles that share no code with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import COMPUTE, GRIDS, bits, exact_rounding, nasty_values

from vt_core.errors import PrecisionError, SpecError
from vt_core.numerics import Grid, kernels, reference
from vt_core.numerics.grid import lattice_index, lattice_value, round_array

MODULES = [kernels, reference]


@pytest.mark.parametrize("name", ["float64", "float32-d0", "float32-d17", "float32-d01", "float32-d1 ", "", "FLOAT32"])
def test_unknown_grids_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match="grid"):
        Grid.parse(name)


def test_grid_parameters() -> None:
    assert Grid.parse("float32").max_value == np.finfo(np.float32).max
    assert Grid.parse("float16").max_value == 65504.0
    assert Grid.parse("bfloat16").max_value == torch.finfo(torch.bfloat16).max
    dropped = Grid.parse("float32-d8")
    assert (dropped.precision, dropped.emin, dropped.storage) == (16, -126, torch.float32)


@pytest.mark.parametrize("module", MODULES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_rounding_is_exact_rational_rounding(module: object, data: st.DataObject) -> None:
    grid = Grid.parse(data.draw(st.sampled_from(GRIDS)))
    x = data.draw(nasty_values(data.draw(st.sampled_from(COMPUTE)), grid))
    y = x.clone()
    module.round_to_grid_(y, grid)  # type: ignore[attr-defined]
    for before, after in zip(x.tolist(), y.tolist(), strict=True):
        if np.isfinite(before):
            assert after == exact_rounding(before, grid), (before.hex(), grid.name)
            assert np.copysign(1, after) == 1 or after < 0  # no negative zero
        else:
            assert after == before or (np.isnan(before) and np.isnan(after))
    nan = 0x7FF8000000000000 if x.dtype == torch.float64 else 0x7FC00000
    assert bits(y)[torch.isnan(x)].tolist() == [nan] * int(torch.isnan(x).sum())


def random_doubles(seed: int, size: int) -> np.ndarray:
    """Doubles spread over all float32 exponents, with many ties of float32 and float16."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size) * 2.0 ** rng.integers(-155, 130, size)
    with np.errstate(over="ignore"):
        x[::3] = (x[::3].astype(np.float32)).astype(np.float64) * (1 + 2.0**-24)
    return x


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_rounding_equals_the_casts_of_numpy_and_torch(module: object, name: str) -> None:
    wide = random_doubles(1, 20000)
    with np.errstate(over="ignore", under="ignore"):
        if name == "bfloat16":  # torch rounds float32 to bfloat16 once; from double it would round twice
            wide = wide.astype(np.float32).astype(np.float64)
            expected = torch.from_numpy(wide).float().bfloat16().double().numpy()
        else:
            expected = wide.astype(name).astype(np.float64)
    y = torch.from_numpy(wide.copy())
    module.round_to_grid_(y, Grid.parse(name))  # type: ignore[attr-defined]
    assert np.array_equal(y.numpy(), expected + 0.0)


@pytest.mark.parametrize("name", GRIDS)
def test_lattice_is_monotone_and_inverts(name: str) -> None:
    grid = Grid.parse(name)
    top = int(lattice_index(np.array([grid.max_value]), grid)[0])
    half = 1 << (grid.precision - 1)
    around = np.concatenate([np.arange(c - 5, c + 6) for c in (0, half, 2 * half, -half, top - 5, 5 - top)])
    values = lattice_value(around, grid)
    assert np.array_equal(lattice_index(values, grid), around)
    assert np.array_equal(round_array(values, grid), values)  # every index is a grid value
    order = np.argsort(around)
    assert np.all(np.diff(values[order])[np.diff(around[order]) > 0] > 0)
    assert lattice_index(np.array([np.inf, -np.inf]), grid).tolist() == [top + 1, -top - 1]


@pytest.mark.parametrize("module", MODULES)
def test_other_dtypes_are_refused(module: object) -> None:
    with pytest.raises(PrecisionError, match="bfloat16"):
        module.round_to_grid_(torch.ones(3, dtype=torch.bfloat16), Grid.parse("float32"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", COMPUTE)
def test_square_root_is_correctly_rounded(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 50000, generator=generator, dtype=dtype).t()  # not contiguous
    y = kernels.correctly_rounded_sqrt(x)
    assert np.array_equal(y.numpy(), np.sqrt(x.numpy()))
    for a, root in zip(x[:200, 0].tolist(), y[:200, 0].tolist(), strict=True):
        kind = np.float64 if dtype == torch.float64 else np.float32
        from fractions import Fraction

        below = (Fraction(root) + Fraction(float(np.nextafter(kind(root), kind(0))))) / 2
        above = (Fraction(root) + Fraction(float(np.nextafter(kind(root), kind(np.inf))))) / 2
        assert below**2 <= Fraction(a) <= above**2
