"""Exact convolutions: blocked products and the device's own kernels have the same bits, and logged ones stay close."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vt_core.engine import convolutions
from vt_core.engine.exact_contractions import FORMS
from vt_core.numerics import convolution as fast

USUAL = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
FIXED = {"transposed": False, "output_padding": [0, 0], "groups": 1}

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((6, 5, 9, 9), (16, 5, 3, 3), {}),
    "stride": ((6, 5, 9, 9), (16, 5, 3, 3), {"stride": [2, 2]}),
    "one number each": ((6, 5, 9, 9), (16, 5, 3, 3), {"stride": [2], "padding": [1], "dilation": [1]}),
    "1x1": ((6, 5, 8, 8), (16, 5, 1, 1), {"padding": [0, 0]}),
    "1d": ((4, 6, 30), (8, 6, 5), {"stride": [2], "padding": [2], "dilation": [1], "output_padding": [0]}),
    "several chunks": ((9, 3, 40, 40), (4, 3, 3, 3), {}),
}
OTHERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "groups": ((4, 6, 9, 9), (8, 3, 3, 3), {"groups": 2}),
    "transposed": ((4, 6, 5, 5), (6, 8, 3, 3), {"transposed": True}),
    "3d": (
        (2, 3, 5, 6, 7), (4, 3, 3, 3, 3),
        {"stride": [1] * 3, "padding": [1] * 3, "dilation": [1] * 3, "output_padding": [0] * 3},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule, answer in (("_pays", True), ("_fills", True), ("_is_product", False)):
        monkeypatch.setattr(fast, rule, lambda *sizes, answer=answer, **least: answer)


def tensor(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-9, 9, shape, generator=generator).double())


def given(name: str, with_bias: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the operation and of its backward pass."""
    x_shape, weight_shape, changes = {**CASES, **OTHERS}[name]
    settings = {**USUAL, **FIXED, **changes}
    outputs = weight_shape[1] * settings["groups"] if settings["transposed"] else weight_shape[0]
    x, weight = tensor(*x_shape, seed=1), tensor(*weight_shape, seed=2)
    bias = tensor(outputs, seed=3) if with_bias else None
    forward = {"input": x, "weight": weight, "bias": bias, **settings}
    grad = tensor(*torch.ops.aten.convolution(**forward).shape, seed=4)
    operands = {"grad_output": grad, "input": x, "weight": weight, "bias_sizes": [outputs]}
    return forward, {**operands, **settings, "output_mask": [True] * 3}


def results(forward: dict[str, Any], backward: dict[str, Any], slices: int) -> list[Tensor | None]:
    result, gradients = FORMS["convolution"](forward, slices), FORMS["convolution_backward"](backward, slices)
    assert isinstance(result, Tensor) and isinstance(gradients, tuple)
    return [result, *gradients]


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    assert a is not None and b is not None and a.shape == b.shape
    pairs = [(t + 0.0).contiguous().view(torch.int64) for t in (a, b)]  # the grid has no -0 either
    return bool(((pairs[0] == pairs[1]) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_devices_own_kernels(name: str, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def noting(name: str, function: Any) -> Any:
        def noted(*args: Any) -> Any:
            found = function(*args)
            called.append(name if found is not None else "nothing")
            return found

        return noted

    for function in ("convolution_forward", "convolution_backward_input", "convolution_backward_weight"):
        monkeypatch.setattr(fast, function, noting(function, getattr(fast, function)))
    found = results(*given(name), slices)
    assert len(set(called)) == 3 and "nothing" not in called, "or nothing is shown"
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    for got, expected in zip(found, results(*given(name), slices), strict=True):
        assert same_bits(got, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**490])
@pytest.mark.parametrize("name", ["3x3", "stride"])
def test_the_same_elements_are_not_finite(name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, backward = given(name)
    for t in (backward["grad_output"], forward["input"]):
        t[0, 0, 1, 1] = value
    found = results(forward, backward, 1)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    for got, expected in zip(found, results(forward, backward, 1), strict=True):
        assert expected is not None and not expected.isfinite().all() and same_bits(got, expected)


@pytest.mark.parametrize("name", CASES)
def test_logged_convolutions_are_close(name: str) -> None:
    forward, backward = given(name)
    kernel = torch.ops.aten.convolution_backward.default
    found = [convolutions.forward(forward), *(convolutions.backward(backward, kernel) or ())]
    expected = [torch.ops.aten.convolution(**forward), *kernel(**backward)]
    for got, wanted in zip(found, expected, strict=True):
        assert got is not None and float((got - wanted).abs().max()) < 1e-13 * float(wanted.abs().max())


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, True], [True, True, False], [False, False, True]])
def test_only_what_is_wanted(mask: list[bool]) -> None:
    _, backward = given("3x3")
    kernel = torch.ops.aten.convolution_backward.default
    found = convolutions.backward({**backward, "output_mask": mask}, kernel)
    if not any(mask[:2]):
        assert found is None, "a bias alone is left to the operation"
        return
    assert found is not None and [t is not None for t in found] == mask


def test_what_is_not_covered_goes_to_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    _, backward = given("3x3")
    kernel = torch.ops.aten.convolution_backward.default
    monkeypatch.setattr(fast, "convolution_backward_input", lambda *args: None)
    found = convolutions.backward(backward, kernel)
    assert found is not None and found[0] is not None
    assert torch.equal(found[0], kernel(**backward)[0]) and not torch.equal(found[1], kernel(**backward)[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_are_left_alone(name: str) -> None:
    forward, backward = given(name)
    assert convolutions.forward(forward) is None
    assert convolutions.backward(backward, None) is None
    lower = {k: v.float() if isinstance(v, Tensor) else v for k, v in given("3x3")[0].items()}
    assert convolutions.forward(lower) is None
