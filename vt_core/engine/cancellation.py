"""Lower bounds for the scale where a kernel subtracts two terms that may be almost equal.

``scale.py`` covers sums of products. The kernels here compute a difference of a few terms for each element, and their
error is relative to the *terms*, whichever way a machine orders or fuses them:

* softmax backward ``y * (g - sum(g * y))`` and log-softmax backward ``g - exp(y) * sum(g)``, where a model is
  sure of its answers: all results are tiny differences of numbers near ``g``;
* GELU ``x / 2 * (1 + erf(x / sqrt 2))`` and its derivative far below zero; ``1 - tanh(x)^2`` where tanh is near 1;
* normalisation ``x * rstd - mean * rstd``, where the mean is large against the deviation.

Between two CPU profiles in float64 these went up to 5e8 (softmax backward) and 4e13 (GELU) tolerances without a bound.
All bounds come from tensors that are equal to the bit on both sides.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from vt_core.numerics import max_magnitude

# The measured error is one to two units in the last place of the terms, while the tolerance of reductions is 256 units
# (64 in float32): an eighth keeps a wide margin, and models whose terms are not far above the result keep their scale.
_SHARE = 2.0**-3

# Outputs of a normalisation, in the order of rounding: the result last, since its bound needs the rounded rstd.
NORM_ORDER: dict[str, tuple[int, ...]] = {
    "native_layer_norm": (1, 2, 0),
    "native_group_norm": (1, 2, 0),
    "native_batch_norm": (1, 2, 0),
}
_NORM_GRADIENT = {
    "native_layer_norm_backward": "rstd",
    "native_group_norm_backward": "rstd",
    "native_batch_norm_backward": "save_invstd",
}
_GRADIENT_ITSELF = frozenset({"tanh_backward", "silu_backward", "mish_backward"})


def first_floor(name: str, arguments: dict[str, Any]) -> float:
    """Return a lower bound (finite, >= 0) of the scale of the first output of operation ``name``."""
    if name == "_softmax_backward_data":
        return _product(_SHARE, arguments["grad_output"], arguments["output"])
    if name == "_log_softmax_backward_data":
        return _product(_SHARE, arguments["grad_output"])
    if name == "gelu":
        return _product(1.0, arguments["self"])
    if name == "gelu_backward":
        # The derivative has terms up to |x|, but 1/2 near zero.
        return _product(max(1.0, max_magnitude(arguments["self"])), arguments["grad_output"])
    if name in _GRADIENT_ITSELF:
        return _product(1.0, arguments["grad_output"])
    if name in _NORM_GRADIENT:
        return _normalised(arguments["grad_out"], arguments.get(_NORM_GRADIENT[name]), arguments.get("weight"))
    return 0.0


def norm_floor(arguments: dict[str, Any], rstd: Tensor) -> float:
    """Return a lower bound of the scale of a normalised result; ``rstd`` is rounded already."""
    return _normalised(arguments["input"], rstd, arguments.get("weight"))


def _normalised(x: Tensor, rstd: Tensor | None, weight: Tensor | None) -> float:
    if rstd is None or rstd.numel() == 0:  # batch norm with its running statistics saves none
        return 0.0
    return _product(_SHARE, x, rstd) if weight is None else _product(_SHARE, x, rstd, weight)


def _product(factor: float, *tensors: Tensor) -> float:
    """Return ``factor`` times the largest magnitude of each tensor, 0 if that overflows."""
    value = factor
    for tensor in tensors:
        value *= max_magnitude(tensor)
    return value if math.isfinite(value) else 0.0
