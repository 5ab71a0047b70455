"""Exact sums: compiled = reference, equal to rational arithmetic, and a case just past the bound that is not."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import sums
from vt_core.numerics._jit_quantise import PART
from vt_core.numerics.quantise import reference_quantise, sum_bits
from vt_core.numerics.sums import quantised_sum


def values(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-30, 30, shape, generator=generator).double())


def same_bits(a: Tensor, b: Tensor) -> bool:
    equal = a.contiguous().view(torch.int64) == b.contiguous().view(torch.int64)
    return a.shape == b.shape and bool((equal | (a.isnan() & b.isnan())).all())


def reference(x: Tensor, dims: tuple[int, ...], bits: int) -> Tensor:
    return reference_quantise(x, dims, bits).sum(dim=dims)


SHAPES = [(1,), (7,), (5, 9), (1, 9), (9, 1), (64, 1300), (3, 4, 5), (2, 3, 4, 5), (4, 6, 11, 11), (2, 3, 2, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_equals_reference_for_all_dimensions(shape: tuple[int, ...]) -> None:
    x = values(*shape)
    for count in range(1, len(shape) + 1):
        for dims in itertools.combinations(range(len(shape)), count):
            bits = min(50, sum_bits(max(2, x.numel())))
            assert same_bits(quantised_sum(x, dims, bits), reference(x, dims, bits)), dims
            assert same_bits(quantised_sum(x, [d - len(shape) for d in dims], bits), reference(x, dims, bits))


def test_compiled_equals_reference_for_other_layouts() -> None:
    x = values(6, 5, 7, 8)
    layouts = (
        x.transpose(1, 2), x.contiguous(memory_format=torch.channels_last), x[:, ::2], x.permute(3, 1, 0, 2),
        x[0, 0].t(), x[:1].expand(4, 5, 7, 8),
    )  # fmt: skip
    for y in layouts:
        for dims in itertools.chain(
            ((d,) for d in range(y.dim())), itertools.combinations(range(y.dim()), y.dim() - 1)
        ):
            assert same_bits(quantised_sum(y, dims, 30), reference(y, dims, 30)), (y.stride(), dims)


def test_large_enough_for_threads() -> None:
    x = values(700, 1100)
    assert x.numel() > 2 * PART
    for dims in ((0,), (1,), (0, 1)):
        assert same_bits(quantised_sum(x, dims, 30), reference(x, dims, 30))


def test_the_plain_path_is_taken_where_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    x = values(40, 50)
    usual = quantised_sum(x, (0,), 30)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    monkeypatch.setattr(sums, "_compiled", None)
    assert same_bits(quantised_sum(x, (0,), 30), usual)


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_special_values(dims: tuple[int, ...]) -> None:
    for special in (
        [float("nan")],
        [float("inf")],
        [float("inf"), float("-inf")],
        [2.0**480],
        [-(2.0**1000)],
        [2.0**479],
    ):
        x = values(30, 30)
        x[3, : len(special)] = torch.tensor(special, dtype=torch.float64)
        assert same_bits(quantised_sum(x, dims, 40), reference(x, dims, 40)), special
    for small in (2.0**-1074, 2.0**-500, 2.0**-401, -0.0):
        x = torch.full((30, 30), small, dtype=torch.float64)
        found = quantised_sum(x, dims, 40)
        assert same_bits(found, reference(x, dims, 40)) and not bool(torch.signbit(found).any()), small


def test_against_rational_arithmetic_in_any_order() -> None:
    x = values(5000, seed=4)
    bits = sum_bits(5000)
    exact = sum((Fraction(v) for v in reference_quantise(x, (0,), bits).tolist()), Fraction(0))
    assert Fraction(quantised_sum(x, (0,), bits).item()) == exact
    quantised = reference_quantise(x, (0,), bits)
    for seed in range(5):
        order = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))
        assert Fraction(quantised_sum(x[order], (0,), bits).item()) == exact == Fraction(quantised[order].sum().item())


def test_past_the_bound_a_sum_is_inexact() -> None:
    terms = 1 << 12
    bits = sum_bits(terms)
    for extra, is_exact in ((0, True), (2, True), (5, False)):  # two bits are in reserve
        largest = (1 << (bits + extra)) - 1
        x = torch.full((terms,), float(largest), dtype=torch.float64) - 2.0 * (torch.arange(terms) % 3).double()
        exact = sum(int(v) for v in x.tolist())
        in_order = 0.0
        for v in x.tolist():
            in_order += v
        assert (int(in_order) == exact) is is_exact, extra


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(PrecisionError):
        quantised_sum(torch.zeros(3), (0,), 20)
