"""Convolutions as blocked products: equal to integer arithmetic, quantised as promised, for any number of threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vt_core.numerics import convolution as module
from vt_core.numerics import convolution_operands
from vt_core.numerics._jit_convolution import COLUMNS, ROWS
from vt_core.numerics.convolution import (
    Settings,
    convolution_backward_input,
    convolution_backward_weight,
    convolution_forward,
)
from vt_core.numerics.quantise import quantise

Pair = tuple[int, int]

# samples, channels, outputs, image, kernel, stride, padding, dilation
CASES: dict[str, tuple[int, int, int, Pair, Pair, Pair, Pair, Pair]] = {
    "3x3": (3, 17, 24, (9, 10), (3, 3), (1, 1), (1, 1), (1, 1)),
    "3x3, stride 2": (4, 8, 16, (8, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "1x1": (5, 33, 9, (8, 8), (1, 1), (1, 1), (0, 0), (1, 1)),
    "1x1, odd plane": (3, 7, 10, (5, 7), (1, 1), (1, 1), (0, 0), (1, 1)),
    "1x1, stride 2": (3, 8, 8, (8, 6), (1, 1), (2, 2), (0, 0), (1, 1)),
    "1x1, one stride": (3, 8, 8, (8, 8), (1, 1), (3, 1), (0, 0), (1, 1)),
    "1x1, padding": (2, 8, 8, (4, 4), (1, 1), (1, 1), (1, 2), (1, 1)),
    "dilation": (2, 5, 8, (12, 11), (3, 3), (1, 1), (2, 2), (2, 3)),
    "dilation and stride": (2, 5, 8, (12, 11), (3, 2), (2, 3), (2, 1), (2, 3)),
    "stride past the kernel": (2, 4, 8, (11, 11), (2, 2), (3, 4), (0, 0), (1, 1)),
    "padding past the kernel": (2, 4, 8, (3, 3), (2, 2), (1, 1), (3, 2), (1, 1)),
    "row": (4, 6, 8, (1, 30), (1, 5), (1, 1), (0, 2), (1, 1)),
    "column": (4, 6, 8, (30, 1), (5, 1), (2, 1), (2, 0), (1, 1)),
    "one of everything": (1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    "whole image": (3, 4, 8, (6, 6), (6, 6), (1, 1), (0, 0), (1, 1)),
    "long sums": (2, 130, 8, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    "long row": (1, 3, 4, (1, 700), (1, 3), (1, 1), (0, 1), (1, 1)),
    "many outputs": (2, 6, 100, (4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes as well: whether they pay is another question."""
    for rule, answer in (("_pays", True), ("_fills", True), ("_is_product", False)):
        monkeypatch.setattr(module, rule, lambda *sizes, answer=answer, **least: answer)


def shuffled() -> Iterator[tuple[str, tuple[int, int, int, Pair, Pair, Pair, Pair, Pair]]]:
    draw = random.Random(3)

    def two(low: int, high: int) -> Pair:
        return draw.randint(low, high), draw.randint(low, high)

    while True:
        sizes = draw.randint(1, 5), draw.randint(1, 40), draw.randint(1, 40)
        case = (*sizes, two(1, 20), two(1, 4), two(1, 3), two(0, 3), two(1, 3))
        if min(Settings(*case[5:]).output(case[3], case[4])) > 0:
            yield "random", case


def whole(*shape: int, seed: int) -> Tensor:
    return torch.randint(-50, 51, shape, generator=torch.Generator().manual_seed(seed)).double()


def real(*shape: int, seed: int) -> Tensor:
    """Values over many binades."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-9, 9, shape, generator=generator).double())


def operands(case: tuple[Any, ...], make: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor, Settings]:
    """Return input, weight, a gradient of the result, and the settings."""
    samples, channels, outputs, image, kernel = case[:5]
    settings = Settings(*case[5:])
    grad = make(samples, outputs, *settings.output(image, kernel), seed=3)
    return make(samples, channels, *image, seed=1), make(outputs, channels, *kernel, seed=2), grad, settings


def integers(x: Tensor, weight: Tensor, grad: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Return result and gradients of input and weight by sums over the taps, in int64."""
    a, w, g = (t.long().numpy() for t in (x, weight, grad))
    (up, left), (high, wide) = settings.padding, grad.shape[2:]
    padded = np.pad(a, ((0, 0), (0, 0), (up, up), (left, left)))
    result, by_input, by_weight = np.zeros_like(g), np.zeros_like(padded), np.zeros_like(w)
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            top, first = i * settings.dilation[0], j * settings.dilation[1]
            rows = slice(top, top + (high - 1) * settings.stride[0] + 1, settings.stride[0])
            columns = slice(first, first + (wide - 1) * settings.stride[1] + 1, settings.stride[1])
            seen = padded[:, :, rows, columns]
            result += np.einsum("oc,nchw->nohw", w[:, :, i, j], seen)
            by_input[:, :, rows, columns] += np.einsum("oc,nohw->nchw", w[:, :, i, j], g)
            by_weight[:, :, i, j] = np.einsum("nohw,nchw->oc", g, seen)
    by_input = by_input[:, :, up : up + a.shape[2], left : left + a.shape[3]]
    return tuple(torch.from_numpy(np.ascontiguousarray(t)).double() for t in (result, by_input, by_weight))  # type: ignore[return-value]


def three(x: Tensor, weight: Tensor, grad: Tensor, settings: Settings, *bits: int) -> tuple[Tensor | None, ...]:
    """Return result and gradients of input and weight, with the bits of each."""
    b = [*bits, *[None] * 3][:3]
    image, kernel = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
    return (
        convolution_forward(x, weight, None, settings, b[0]),
        convolution_backward_input(grad, weight, image, settings, b[1]),
        convolution_backward_weight(grad, x, kernel, settings, b[2]),
    )


def plain(x: Tensor, weight: Tensor, grad: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    given = [list(settings.stride), list(settings.padding), list(settings.dilation), False, [0, 0], 1]
    mask = [True, True, False]
    by_input, by_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *given, mask)
    return torch.ops.aten.convolution(x, weight, None, *given), by_input, by_weight


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    assert a is not None and b is not None
    return a.shape == b.shape and bool((a.contiguous().view(torch.int64) == b.contiguous().view(torch.int64)).all())


@pytest.mark.parametrize("name", CASES)
def test_equal_to_integer_arithmetic(name: str) -> None:
    given = operands(CASES[name], whole)
    for found, expected in zip(three(*given), integers(*given), strict=True):
        assert same_bits(found, expected + 0.0)


def test_equal_to_integer_arithmetic_for_random_shapes() -> None:
    for _, (name, case) in zip(range(80), shuffled(), strict=False):
        given = operands(case, whole)
        for found, expected in zip(three(*given), integers(*given), strict=True):
            assert same_bits(found, expected + 0.0), (name, case)


@pytest.mark.parametrize("name", CASES)
def test_close_to_the_usual_kernels(name: str) -> None:
    x, weight, grad, settings = operands(CASES[name], real)
    terms = plain(x.abs(), weight.abs(), grad.abs(), settings)
    for found, expected, size in zip(
        three(x, weight, grad, settings), plain(x, weight, grad, settings), terms, strict=True
    ):
        assert found is not None and bool(((found - expected).abs() <= 1e-13 * size).all())


@pytest.mark.parametrize("name", CASES)
def test_quantised_as_quantise_does(name: str) -> None:
    """Tiny, subnormal and many-binade values; the sums are exact, so all orders have the same bits."""
    x, weight, grad, settings = operands(CASES[name], real)
    x.view(-1)[0], grad.view(-1)[-1] = 2.0**-1074, -(2.0**-500)
    each, channel = [1, 2, 3], [0, 2, 3]
    found = three(x, weight, grad, settings, 20, 19, 18)
    forward = plain(quantise(x, each, 20), quantise(weight, each, 20), grad, settings)[0]
    by_input = plain(x, quantise(weight, channel, 19), quantise(grad, each, 19), settings)[1]
    by_weight = plain(quantise(x, channel, 18), weight, quantise(grad, channel, 18), settings)[2]
    for got, expected in zip(found, (forward, by_input, by_weight), strict=True):
        assert same_bits(got, expected + 0.0)


def test_without_quantisation_other_bits() -> None:
    """Or the test above shows nothing."""
    x, weight, grad, settings = operands(CASES["3x3"], real)
    for exact, usual in zip(
        three(x, weight, grad, settings, 20, 19, 18), three(x, weight, grad, settings), strict=True
    ):
        assert not same_bits(exact, usual)


@pytest.mark.parametrize("name", ["3x3", "3x3, stride 2", "1x1", "long sums", "many outputs"])
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    samples, *rest = CASES[name]
    x, weight, grad, settings = operands((samples * 12, *rest), real)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(three(x, weight, grad, settings))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(found[0], other, strict=True))


def test_more_threads_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands((40, *CASES["3x3"][1:]), real)
    found = three(*given)
    monkeypatch.setattr(convolution_operands, "threads", lambda: 5)
    monkeypatch.setattr(module, "threads", lambda: 5)
    assert all(same_bits(a, b) for a, b in zip(found, three(*given), strict=True))


def test_bias() -> None:
    x, weight, _, settings = operands(CASES["3x3, stride 2"], real)
    bias = real(len(weight), seed=4)
    without, found = (convolution_forward(x, weight, b, settings) for b in (None, bias))
    assert without is not None and same_bits(found, without + bias[:, None, None])


@pytest.mark.parametrize("name", ["3x3", "1x1", "1x1, stride 2"])
def test_other_layouts(name: str) -> None:
    x, weight, grad, settings = operands(CASES[name], real)
    expected = three(x, weight, grad, settings)
    last = [t.to(memory_format=torch.channels_last) for t in (x, weight, grad)]
    found = three(*last, settings)
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    for t in found[:2]:
        assert t is not None and t.is_contiguous(memory_format=torch.channels_last)
    spread = [torch.stack([t, t], -1)[..., 0] for t in (x, weight, grad)]
    turned = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (x, weight, grad)]
    for strided in (spread, turned):
        assert not strided[0].is_contiguous()
        assert all(same_bits(a, b) for a, b in zip(three(*strided, settings), expected, strict=True))


def test_operands_stay_and_results_are_their_own() -> None:
    x, weight, grad, settings = operands(CASES["3x3"], real)
    copies = [t.clone() for t in (x, weight, grad)]
    found = three(x.requires_grad_(), weight.requires_grad_(), grad, settings, 20, 20, 20)
    kept = [t.clone() for t in found if t is not None]
    three(*(real(*t.shape, seed=9) for t in (x, weight, grad)), settings)
    assert all(same_bits(a, b) for a, b in zip(found, kept, strict=True))
    assert all(same_bits(a.detach(), b) for a, b in zip((x, weight, grad), copies, strict=True))
    assert not any(t.requires_grad for t in found if t is not None)


@pytest.mark.parametrize("name", ["3x3", "1x1", "3x3, stride 2"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2.0**480])
def test_what_is_not_finite_is_left_to_the_device(name: str, value: float) -> None:
    """Also 2**480, which quantisation makes infinite; and nothing of it stays behind in memory that is used again."""
    x, weight, grad, settings = operands(CASES[name], real)
    clean = three(x, weight, grad, settings, 20, 20, 20)
    bad = [t.clone() for t in (x, weight, grad)]
    for t in bad:
        t[0, 0, 0, 0] = value
    assert three(bad[0], weight, bad[2], settings, 20, 20, 20) == (None, None, None)
    assert three(x, bad[1], grad, settings, 20, 20, 20)[:2] == (None, None)
    if value != 2.0**480:
        assert three(bad[0], weight, bad[2], settings) == (None, None, None)
    assert all(same_bits(a, b) for a, b in zip(clean, three(x, weight, grad, settings, 20, 20, 20), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_what_was_in_used_memory_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_operands, "threads", lambda: 1)
    given = operands(CASES[name], real)
    clean = three(*given, 20, 20, 20)
    for kept in convolution_operands.room.arrays.values():
        if kept.dtype == np.float64:
            kept.fill(np.nan)
    assert all(same_bits(a, b) for a, b in zip(clean, three(*given, 20, 20, 20), strict=True))


def test_overflow_is_left_to_the_device() -> None:
    x, weight, grad, settings = operands(CASES["3x3"], real)
    assert three(x * 2.0**600, weight * 2.0**600, grad * 2.0**600, settings) == (None, None, None)


def test_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, grad, settings = operands(CASES["3x3"], real)
    nothing = (None, None, None)
    assert three(x.float(), weight.float(), grad.float(), settings) == nothing
    assert three(x[:0], weight, grad[:0], settings) == nothing, "an empty batch"
    assert three(x[:, 1:], weight, grad, settings)[0] is None, "other channels"
    assert three(x, weight, grad[:, :, 1:], settings)[1:] == (None, None), "a gradient of another size"
    assert three(x, weight, grad, Settings((1, 1), (-1, 1), (1, 1))) == nothing
    assert convolution_forward(x[..., :1], weight, None, Settings((1, 1), (0, 0), (1, 1))) is None, "no place to stand"
    assert convolution_forward(x[0], weight, None, settings) is None
    assert convolution_forward(x[:, :, None], weight[:, :, None], None, settings) is None, "three dimensions"
    assert convolution_forward(x, weight, real(3, seed=1), settings) is None, "a bias of another size"
    assert convolution_forward(x, weight, real(24, seed=1).float(), settings) is None
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert three(x, weight, grad, settings) == nothing


def test_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def covered(case: tuple[Any, ...], *bits: int) -> list[bool]:
        return [t is not None for t in three(*operands(case, real), *bits)]

    small = (1, *CASES["3x3"][1:])
    assert covered(small) == [True, True, True]
    monkeypatch.undo()
    unit, none = (1, 1), (0, 0)
    assert covered(small) == [False, False, False]
    assert covered((32, 64, 64, (16, 16), (3, 3), unit, unit, unit)) == [True, True, True]
    # Tiles are as large as the machine's registers allow.
    fill, three_rows = 0.6 * COLUMNS * -(-27 // COLUMNS) <= 27, 0.6 * ROWS <= 3
    assert covered((64, 3, 64, (32, 32), (3, 3), unit, unit, unit)) == [True, False, fill], "they fill no tile"
    assert covered((64, 64, 3, (32, 32), (3, 3), unit, unit, unit)) == [three_rows, True, three_rows]
    assert covered((2, 512, 512, (4, 4), (3, 3), unit, unit, unit)) == [False, False, False], "too few positions"
    assert covered((16, 64, 128, (32, 32), (3, 3), (2, 2), unit, unit)) == [True, False, True]
    product = (8, 64, 64, (32, 32), (1, 1), unit, none, unit)
    assert covered(product) == [False, False, False], "PyTorch has nothing to copy"
    assert covered(product, 20, 20, 20) == [True, True, True], "but it would have to quantise"


def test_phases_without_a_tap_are_zero() -> None:
    x, weight, grad, settings = operands(CASES["stride past the kernel"], real)
    torch.full((200_000,), float("nan"), dtype=torch.float64)  # memory that is not zero
    found = three(x, weight, grad, settings)[1]
    assert found is not None and bool((found[:, :, 2::3] == 0).all()) and bool((found[..., 2::4] == 0).all())
