"""Exact sums and means: as accurate as promised, independent of any order, log-free in the dispatch mode."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from exact_support import make_mode, same_bits
from torch import Tensor

from vt_core.engine import exact_sums
from vt_core.engine.exact_sums import MAX_SUM_TERMS, MIN_SUM_BITS, exact_sum, mean_form, sum_form
from vt_core.engine.mode import VerifiedMode
from vt_core.errors import PrecisionError
from vt_core.numerics import OpClass
from vt_core.numerics.quantise import sum_bits


def tensor(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-6, 6, shape, generator=generator).double())


CALLS: dict[str, tuple[Tensor, dict[str, Any]]] = {
    "all": (tensor(4, 5, 6), {}),
    "all, by an empty list": (tensor(4, 5, 6), {"dim": []}),
    "all, by none": (tensor(4, 5, 6), {"dim": None, "keepdim": True}),
    "first": (tensor(4, 5, 6), {"dim": [0]}),
    "last, kept": (tensor(4, 5, 6), {"dim": [-1], "keepdim": True}),
    "middle": (tensor(4, 5, 6), {"dim": [1]}),
    "two, unsorted": (tensor(4, 5, 6), {"dim": [2, 0]}),
    "two, kept": (tensor(4, 5, 6), {"dim": [2, 0], "keepdim": True}),
    "channels_last": (tensor(4, 5, 6, 7).contiguous(memory_format=torch.channels_last), {"dim": [0, 2, 3]}),
    "not contiguous": (tensor(4, 5, 6).permute(2, 0, 1)[::2], {"dim": [1]}),
    "expanded": (tensor(4, 1, 6).expand(4, 5, 6), {"dim": [0, 1]}),
    "one term": (tensor(4, 1, 6), {"dim": [1]}),
    "no dimension": (tensor(), {}),
    "no dimension, named": (tensor(), {"dim": [0], "keepdim": True}),
    "nothing": (tensor(0), {}),
    "nothing along": (tensor(3, 0), {"dim": [1]}),
    "nothing across": (tensor(3, 0), {"dim": [0]}),
    "dtype": (tensor(4, 5), {"dtype": torch.float64}),
}


@pytest.mark.parametrize("name", CALLS)
def test_like_the_operations(name: str) -> None:
    x, more = CALLS[name]
    for operation, form in ((torch.ops.aten.sum, sum_form), (torch.ops.aten.mean, mean_form)):
        found, expected = form({"self": x, **more}), operation(x, **more)
        assert found is not None and found.shape == expected.shape
        assert torch.allclose(found, expected, rtol=1e-8, atol=1e-8 * float(x.abs().sum()), equal_nan=True)
        assert not found.numel() or found.data_ptr() != x.data_ptr()


def test_what_has_no_exact_form_is_left_to_pytorch() -> None:
    y = tensor(4, 5)
    for x, more in (
        (y.float(), {}), (y, {"dtype": torch.float32}), (y.long(), {}), (y.bool(), {"dtype": torch.float64}),
        (y, {"dim": [2]}), (y, {"dim": [0, 0]}), (y, {"dim": [0, -2]}), (y, {"dim": ["rows"]}), (y.to_sparse(), {}),
    ):  # fmt: skip
        assert sum_form({"self": x, **more}) is None and mean_form({"self": x, **more}) is None


def test_a_mean_is_the_exact_sum_divided_once() -> None:
    x = tensor(7, 33)
    found = mean_form({"self": x, "dim": [1]})
    assert found is not None
    bits = sum_bits(33)
    for row, mean in zip(x.tolist(), found.tolist(), strict=True):
        unit = Fraction(2) ** (max(Fraction(abs(v)) for v in row).__ceil__().bit_length() + 20)
        while unit > max(Fraction(abs(v)) for v in row):
            unit /= 2
        unit = unit * 2 / 2**bits  # below 2**bits units
        total = sum((round(Fraction(v) / unit) * unit for v in row), Fraction(0))
        assert mean == float(total / 33)  # Fraction to float rounds to nearest


def test_no_order_changes_a_bit() -> None:
    x = tensor(300, 40) * torch.exp2(torch.arange(300).double() - 150)[:, None]
    assert not torch.equal(x.flip(0).sum(0), x.sum(0)), "or nothing is shown"
    for dims in ([0], [0, 1]):
        found = exact_sum(x, dims)
        for seed in range(3):
            order = torch.randperm(300, generator=torch.Generator().manual_seed(seed))
            assert same_bits(exact_sum(x[order], dims), found)


def test_more_accurate_than_float32() -> None:
    for shape in ((1 << 19,), (100, 700), (40000, 3)):
        x = tensor(*shape).float().double()
        exact, single = exact_sum(x, [0]), x.float().sum(0).double()
        sums = [float(sum(map(Fraction, column), Fraction(0))) for column in x.reshape(len(x), -1).t().tolist()]
        exactly = torch.tensor(sums, dtype=torch.float64)
        error = (exact.reshape(-1) - exactly).abs().max()
        assert float(error) <= x.abs().max() * len(x) * 2.0 ** -(sum_bits(len(x)) + 1)
        assert float(error) <= float((single.reshape(-1) - exactly).abs().max())


def test_long_sums_are_cut_in_row_major_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum_bits(MAX_SUM_TERMS) == MIN_SUM_BITS > sum_bits(MAX_SUM_TERMS + 1)
    monkeypatch.setattr(exact_sums, "MAX_SUM_TERMS", 8)
    x = tensor(5, 3, 4, seed=3)
    found = exact_sum(x, [0, 2])
    for channel in range(3):
        terms = x[:, channel].reshape(-1)
        expected = torch.zeros((), dtype=torch.float64)
        for i in range(0, 20, 8):
            expected = expected + exact_sum(terms[i : i + 8], [])
        assert same_bits(found[channel], expected)
    other = x.transpose(0, 2).contiguous().transpose(0, 2)
    assert same_bits(exact_sum(other, [2, 0]), found), "the layout in memory is nobody's business"


def test_a_long_sum_as_it_is() -> None:
    x = tensor(MAX_SUM_TERMS + 3)
    parts = exact_sum(x[:MAX_SUM_TERMS], []) + exact_sum(x[MAX_SUM_TERMS:], [])
    assert same_bits(exact_sum(x, []), parts)


def test_special_values_go_where_they_belong() -> None:
    x = tensor(6, 5)
    x[0, 0], x[1, 1], x[1, 2], x[2, 0], x[3, 0] = float("nan"), float("inf"), float("-inf"), float("-inf"), 2.0**490
    found = exact_sum(x, [1])
    assert found[:2].isnan().all() and found[2] == -torch.inf and found[3] == torch.inf and found[4:].isfinite().all()


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(PrecisionError):
        exact_sum(torch.zeros(3), [0])


@pytest.fixture
def mode() -> VerifiedMode:
    return make_mode()


def test_sums_and_means_have_no_log(mode: VerifiedMode) -> None:
    x = tensor(64, 50).float().double()
    with mode:
        results = x.sum(), x.sum(0), x.mean(), x.mean(1, keepdim=True)
    elements = mode.rounding.counters.by_class[OpClass.REDUCTION].elements
    assert elements == 0 and mode.rounding.counters.plain == 1 + 50 + 1 + 64
    for found, expected in zip(results, (x.sum(), x.sum(0), x.mean(), x.mean(1, keepdim=True)), strict=True):
        assert same_bits(found, found.float().double()) and torch.allclose(found, expected, rtol=1e-6)


def test_what_has_no_form_keeps_its_log(mode: VerifiedMode) -> None:
    x = tensor(64, 50).float().double()
    with mode:
        x.prod(1), torch.sum(x, 0, out=torch.empty(50, dtype=torch.float64))
    assert mode.rounding.counters.by_class[OpClass.REDUCTION].elements == 64 + 50


def test_sums_of_integers_stay_as_they_are(mode: VerifiedMode) -> None:
    with mode:
        found = torch.arange(10).sum()
    assert found.item() == 45 and found.dtype == torch.int64


def test_the_error_of_pytorch_is_kept(mode: VerifiedMode) -> None:
    x = tensor(3, 4)
    with mode, pytest.raises(IndexError):
        torch.ops.aten.sum.dim_IntList(x, [5])
    with mode, pytest.raises(RuntimeError, match="multiple times"):
        torch.ops.aten.sum.dim_IntList(x, [0, 0])
