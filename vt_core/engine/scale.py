"""A lower bound for the scale of a result, taken from the operation's inputs.

The tolerance is relative to the largest magnitude of the result. Where a sum cancels as a whole, that magnitude
is itself rounding noise, and a tolerance relative to it is too narrow: the gradient of a bias in front of a
batch norm, or of a key projection's bias in front of a softmax, is zero in exact arithmetic. The error of a sum
is relative to its *terms*, so for sums of products the scale never falls below the size of a single term. The
inputs are equal to the bit on both sides, so both compute the same bound.

That error also grows with the *length* of a sum: measured between CPUs, about in proportion to it (``growth``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from vt_core.numerics import max_magnitude

_PRODUCTS = {
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "mv": ("self", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
    "addmm": ("mat1", "mat2"),
    "addbmm": ("batch1", "batch2"),
    "baddbmm": ("batch1", "batch2"),
    "addmv": ("mat", "vec"),
    "convolution": ("input", "weight"),
    "linear": ("input", "weight"),
}
_PLAIN_LENGTH = 11
"""Sums of up to ``2**11`` terms are what a policy's tolerances are for."""
LEAST_GROWTH, _MOST_GROWTH = -3, 6

_NORM_BACKWARD = {
    "native_layer_norm_backward": "grad_out",
    "native_group_norm_backward": "grad_out",
    "native_batch_norm_backward": "grad_out",
    "_fused_rms_norm_backward": "grad_out",
}

_BY_CHANNEL = frozenset({
    "native_batch_norm", "_native_batch_norm_legit", "native_batch_norm_backward", "_batch_norm_with_update",
    "batch_norm_backward",
})  # fmt: skip


class Bound(NamedTuple):
    """What the tolerance at a site depends on beside op class and values; equal to the bit on both sides.

    ``floor`` is a lower bound of the tensor's scale (a magnitude, finite, >= 0); the policy's tolerance counts
    ``2**growth`` times.
    """

    floor: float = 0.0
    growth: int = 0


def growth(terms: int, least: int = 0) -> int:
    """Return by which power of two the tolerance of sums of so many terms is larger than the policy's, or smaller."""
    return min(max((max(terms, 1) - 1).bit_length() - _PLAIN_LENGTH, least), _MOST_GROWTH)


def growths(name: str, arguments: dict[str, Any], outputs: int) -> tuple[int, ...]:
    """Return the growth of the tolerance of each of the operation's outputs.

    Products of all lengths have one, short ones a narrower tolerance; other sums only where they are long.
    """
    if name in _PRODUCTS:
        return (growth(_products_added(name, arguments), LEAST_GROWTH),) * outputs
    if name == "convolution_backward":
        grad, x, weight = arguments["grad_output"], arguments["input"], arguments["weight"]
        transposed = bool(arguments["transposed"])
        taps = math.prod(weight.shape[2:])
        by_weight = taps * (weight.shape[1] if transposed else weight.shape[0] // max(1, arguments["groups"]))
        by_input = len(x) * math.prod((x if transposed else grad).shape[2:])
        by_ones = growth(grad.numel() // max(1, grad.shape[1]))
        return (growth(by_weight, LEAST_GROWTH), growth(by_input, LEAST_GROWTH), by_ones)[:outputs]
    if name in _BY_CHANNEL:
        x = arguments["input"]
        return (growth(x.numel() // max(1, x.shape[1])),) * outputs
    return (0,) * outputs


def _products_added(name: str, arguments: dict[str, Any]) -> int:
    """Return how many products make one element of the result."""
    a = arguments[_PRODUCTS[name][0]]
    if name == "convolution":
        weight = arguments["weight"]
        channels = weight.shape[0] // max(1, arguments["groups"]) if arguments["transposed"] else weight.shape[1]
        return int(channels * math.prod(weight.shape[2:]))
    batches = a.shape[0] if name == "addbmm" else 1
    return int(batches * a.shape[-1]) if a.dim() else 1


def scale_floors(name: str, arguments: dict[str, Any], outputs: int) -> tuple[float, ...]:
    """Return a lower bound of the scale (a magnitude, finite, >= 0) for each of the operation's outputs."""
    if name in _PRODUCTS:
        a, b = _PRODUCTS[name]
        factor = abs(float(arguments.get("alpha", 1)))  # addmm and its kin scale the product
        return (_finite(factor * _product(arguments[a], arguments[b])),) * outputs
    if name in ("sum", "mean", "cumsum") and arguments["self"].is_floating_point():
        x = arguments["self"]
        return (_sum(x, None, name == "mean", max_magnitude(x)),) * outputs
    if name == "convolution_backward":
        grad = arguments["grad_output"]
        largest = max_magnitude(grad)
        by_weight, by_input = (_finite(largest * max_magnitude(arguments[key])) for key in ("weight", "input"))
        return (by_weight, by_input, _sum(grad, grad.shape[1], False, largest))[:outputs]
    if name in _NORM_BACKWARD:
        return (0.0,) + (max_magnitude(arguments[_NORM_BACKWARD[name]]),) * (outputs - 1)
    return (0.0,) * outputs


def _product(a: Tensor, b: Tensor) -> float:
    return _finite(max_magnitude(a) * max_magnitude(b))


def _sum(x: Tensor, outputs_numel: int | None, mean: bool, largest: float) -> float:
    """A term's size, times sqrt(terms) / 64 for long sums, whose rounding errors add up like a random walk."""
    terms = max(1, x.numel() // (outputs_numel or 1))
    if mean:
        return _finite(largest / terms)
    # terms is a bound (the sum may run over some dimensions only); a power of two keeps this exact.
    return _finite(largest * 2.0 ** max(0, math.ceil(math.log2(terms) / 2) - 6))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0
