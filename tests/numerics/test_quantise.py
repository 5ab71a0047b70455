"""Quantisation: compiled = reference, exact sums whatever the order, and a case just past the bound that is not."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics._jit_quantise import ROUND, SCALE, Scales
from vt_core.numerics.quantise import (
    MAX_BITS,
    product_bits,
    quantise,
    quantise_into,
    reference_quantise,
    sum_bits,
)

SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2.0**500, -(2.0**480), 2.0**-1074, 2.0**-500, 1.0]


def values(*shape: int, seed: int = 0) -> Tensor:
    """Values over many binades, both signs, some zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-30, 30, shape, generator=generator).double()) * (x.abs() > 0.02)


def same_bits(a: Tensor, b: Tensor) -> bool:
    both_nan = torch.isnan(a) & torch.isnan(b)
    equal = a.contiguous().view(torch.int64).view(a.shape) == b.contiguous().view(torch.int64).view(b.shape)
    return a.shape == b.shape and bool((equal | both_nan).all())


SHAPES = [(1,), (7,), (5, 9), (64, 700), (3, 4, 5), (2, 3, 4, 5), (8, 16, 20, 20), (3, 1, 4), (2, 3, 4, 5, 6)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [1, 19, MAX_BITS, 50])
def test_compiled_equals_reference_for_all_dimensions(shape: tuple[int, ...], bits: int) -> None:
    x = values(*shape)
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)[: x.numel()]
    for count in range(1, len(shape) + 1):
        for dims in itertools.combinations(range(len(shape)), count):
            assert same_bits(quantise(x, dims, bits), reference_quantise(x, dims, bits)), dims


def test_compiled_equals_reference_for_other_layouts() -> None:
    x = values(6, 5, 70)
    for y in (x.transpose(1, 2), x.transpose(0, 2), x[:, ::2], x[0].t(), x[0, :, ::3], x.permute(2, 0, 1)):
        for d in range(y.dim()):
            assert same_bits(quantise(y, (d,), 20), reference_quantise(y, (d,), 20))
            assert same_bits(quantise(y, (d - y.dim(),), 20), reference_quantise(y, (d,), 20))


def test_channels_last_keeps_its_layout() -> None:
    x = values(3, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    for dims in ((0,), (1,), (0, 2, 3), (1, 2, 3), (2, 3)):
        found = quantise(x, dims, 20)
        assert same_bits(found, reference_quantise(x, dims, 20)), dims
        assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("dim", [-1, -2])
def test_in_parts_with_the_scales_of_the_whole(dim: int, far: bool) -> None:
    x = values(300, 700)
    if far:
        x[7, 9], x[299, 0], x[0, 699] = float("nan"), float("inf"), 2.0**481
    for y in (x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, 3:703]):
        expected = reference_quantise(y, (y.dim() + dim,), 20)
        scales = Scales(y.shape[0] if dim == -1 else y.shape[1])
        quantise_into(y, dim, 20, torch.empty(0, dtype=torch.float64), SCALE, scales)
        for begin, end in ((0, 1), (1, 130), (130, 700)):
            part = (slice(None), slice(begin, end)) if dim == -1 else (slice(begin, min(end, 300)),)
            buffer = torch.full((y[part].numel() + 1,), 7.0, dtype=torch.float64)
            found = quantise_into(y[part], dim, 20, buffer, ROUND, scales)
            assert same_bits(found, expected[part]) and buffer[-1] == 7.0


def test_against_rational_arithmetic() -> None:
    x = values(4, 33)
    found = quantise(x, (1,), 12)
    for row, got in zip(x.tolist(), found.tolist(), strict=True):
        largest = max(abs(v) for v in row)
        unit = Fraction(1, 1 << 12)
        while unit * (1 << 12) <= Fraction(largest):
            unit *= 2
        while unit * (1 << 11) > Fraction(largest):
            unit /= 2
        for v, g in zip(row, got, strict=True):
            assert Fraction(g) == round(Fraction(v) / unit) * unit  # Python rounds ties to even too


def test_bits_are_the_largest_that_are_safe() -> None:
    for terms in [*range(1, 70), 1000, 1024, 1025, 1 << 20, (1 << 27) + 1]:
        bits = product_bits(terms)
        assert bits == MAX_BITS or terms * 4**bits <= 2**53 < (1 << (terms - 1).bit_length()) * 4 ** (bits + 1)
        assert terms * 2 ** sum_bits(terms) <= 2**53


@pytest.mark.parametrize("terms", [1, 2, 37, 256, 1500])
def test_products_are_exact_in_any_order(terms: int) -> None:
    bits = product_bits(terms)
    a, b = quantise(values(20, terms), (1,), bits), quantise(values(terms, 30, seed=1), (0,), bits)
    expected = a @ b
    exact = [
        [sum(Fraction(x) * Fraction(y) for x, y in zip(row, col, strict=True)) for col in b[:, :3].t().tolist()]
        for row in a[:3].tolist()
    ]
    assert expected[:3, :3].tolist() == [[float(v) for v in row] for row in exact]
    for seed in range(4):
        order = torch.randperm(terms, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(a[:, order] @ b[order], expected)
    blocks = range(0, terms, 7)
    assert torch.equal(sum((a[:, i : i + 7] @ b[i : i + 7] for i in blocks), torch.zeros_like(expected)), expected)


def test_without_quantisation_the_order_matters() -> None:
    a, b = values(20, 1500), values(1500, 30, seed=1)
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(a[:, order] @ b[order], a @ b)


def test_two_bits_past_the_bound_are_inexact() -> None:
    terms = 1500
    largest = (1 << (product_bits(terms) + 2)) - 1  # odd, so that no product has a factor of two
    a = torch.full((1, terms), float(largest), dtype=torch.float64)
    b = a.t() - 2.0 * (torch.arange(terms).double() % 3)[:, None]
    exact = sum(int(x) * int(y) for x, y in zip(a[0].tolist(), b[:, 0].tolist(), strict=True))
    assert exact > 2**53 and int((a @ b).item()) != exact
    within = (1 << product_bits(terms)) - 1
    a, b = a.clamp(max=within), b.clamp(max=within)
    exact = sum(int(x) * int(y) for x, y in zip(a[0].tolist(), b[:, 0].tolist(), strict=True))
    assert int((a @ b).item()) == exact


def test_quantised_values_stay_what_they_are() -> None:
    x = quantise(values(5, 40), (1,), 15)
    assert same_bits(quantise(x, (1,), 16), x)


def test_other_dtypes_are_refused_and_nothing_stays_nothing() -> None:
    with pytest.raises(PrecisionError):
        quantise(torch.zeros(3), (0,), 20)
    assert quantise(torch.zeros(0, 4, dtype=torch.float64), (1,), 20).shape == (0, 4)
