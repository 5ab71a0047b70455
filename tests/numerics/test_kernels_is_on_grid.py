"""``is_on_grid`` is true exactly where rounding changes no bit."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import BITS, COMPUTE, GRIDS, bits, nasty_values

from vt_core.errors import PrecisionError
from vt_core.numerics import Grid, is_on_grid, kernels, reference

MODULES = [kernels, reference]


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_true_iff_rounding_changes_no_bit(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(COMPUTE))
    grid = Grid.parse(data.draw(st.sampled_from(GRIDS)))
    for x in data.draw(nasty_values(dtype, grid)).split(1):
        rounded = x.clone()
        reference.round_to_grid_(rounded, grid)
        expected = torch.equal(bits(x), bits(rounded))
        assert kernels.is_on_grid(x, grid) == reference.is_on_grid(x, grid) == expected
        assert kernels.is_on_grid(rounded, grid) and reference.is_on_grid(rounded, grid)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("name", GRIDS)
def test_last_place_signs_and_special_values(name: str, dtype: torch.dtype, module: ModuleType) -> None:
    grid = Grid.parse(name)
    smallest = 2.0**grid.quantum_exponent
    good = [
        0.0,
        1.0,
        -1.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        grid.max_value,
        smallest,
        -smallest,
        3 * smallest,
    ]
    for value in good:
        assert module.is_on_grid(torch.tensor([value], dtype=dtype), grid), value
    bad = [-0.0, 1.0 + 2.0**-grid.precision, grid.max_value * (1.0 + 2.0 ** -(grid.precision + 1)), smallest * 0.5]
    for value in bad:
        x = torch.tensor([value], dtype=dtype)
        if float(x) == value:  # float32 lacks some of these
            assert not module.is_on_grid(x, grid), value


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", COMPUTE)
def test_a_nan_that_is_not_canonical_is_not_on_the_grid(dtype: torch.dtype, module: ModuleType) -> None:
    canonical = torch.tensor([float("nan")], dtype=dtype)
    for change in (1, torch.iinfo(BITS[dtype]).min):  # payload, sign
        x = (canonical.view(BITS[dtype]) ^ change).view(dtype)
        assert torch.isnan(x).all() and not module.is_on_grid(x, Grid.parse("float32"))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("size", [1, 7, 255, 256, 257, 5000])
def test_one_wrong_element_anywhere(size: int, dtype: torch.dtype, module: ModuleType) -> None:
    grid = Grid.parse("bfloat16")
    x = torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(size)).bfloat16().to(dtype)
    assert module.is_on_grid(x, grid)
    for place in {0, size // 2, size - 1}:
        y = x.clone()
        y[place] = 1.0 + 2.0**-9
        assert not module.is_on_grid(y, grid)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_threads(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(kernels, "PARALLEL_FROM", 1)
    monkeypatch.setattr(kernels, "worker_count", lambda: workers)
    grid = Grid.parse("bfloat16")
    x = torch.randn(60_001, generator=torch.Generator().manual_seed(1)).bfloat16().double()
    assert kernels.is_on_grid(x, grid)
    for place in np.random.default_rng(1).integers(0, x.numel(), 20):
        y = x.clone()
        y[int(place)] = -0.0
        assert not kernels.is_on_grid(y, grid)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("dtype", COMPUTE)
def test_any_strides_and_x_is_left_alone(dtype: torch.dtype, module: ModuleType) -> None:
    grid = Grid.parse("bfloat16")
    base = torch.randn(4, 6, 5, 7, dtype=dtype, generator=torch.Generator().manual_seed(2)).bfloat16().to(dtype)
    views = [
        base.to(memory_format=torch.channels_last),
        base.permute(3, 1, 0, 2),
        base[::2, 1:5, ::3, 2:],
        base[:1, :1, :1, :1].expand(3, 4, 5, 6),
        base[0, 0, 0, 0],
        base[:0],
    ]
    for view in views:
        assert module.is_on_grid(view, grid)
        if not view.numel():
            continue
        spoilt = view.clone(memory_format=torch.preserve_format)
        spoilt[(-1,) * spoilt.dim()] = 1.0 + 2.0**-9
        before = bits(spoilt).clone()
        assert not module.is_on_grid(spoilt, grid)
        assert torch.equal(bits(spoilt), before)
    holes = torch.full((8,), 1.0 + 2.0**-9, dtype=dtype)
    holes[::2] = 1.0
    assert module.is_on_grid(holes[::2], grid) and not module.is_on_grid(holes, grid)


@pytest.mark.parametrize("function", [is_on_grid, kernels.is_on_grid, reference.is_on_grid])
def test_other_dtypes_are_refused(function: object) -> None:
    with pytest.raises(PrecisionError):
        function(torch.ones(3, dtype=torch.bfloat16), Grid.parse("bfloat16"))  # type: ignore[operator]
