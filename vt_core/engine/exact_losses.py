"""``functions: exact`` for losses: one value an element, exact sums, one division for a mean.

A gradient is the slope of the loss times ``grad_output``, which a mean first divides by the number of elements. The
other losses of PyTorch are made of operations that have forms of their own (``l1_loss``: ``sub``, ``abs``, ``mean``).

Tensors are float64 or float32; what is computed from either is float64, but for ``xlogy``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine import exact_labels
from vt_core.engine.exact_labels import is_like
from vt_core.engine.exact_sums import exact_sum
from vt_core.engine.forms import Form
from vt_core.numerics import _jit_elementary_losses as cores
from vt_core.numerics.elementary import apply

TensorForm = Callable[[dict[str, Any]], Tensor | None]

_NONE, _MEAN, _SUM = 0, 1, 2


def loss_form(core: Callable[..., Any], constant: str | None = None, least: float = 0.0) -> TensorForm:
    """Return the form of a loss of ``self`` and ``target`` whose elements are ``core``; weights multiply them.

    ``constant`` names the argument that is the core's third (1 by default, at least ``least``).
    """

    def form(arguments: dict[str, Any]) -> Tensor | None:
        if not _fits(arguments, constant, least):
            return None
        return _reduced(_weighted(_applied(core, arguments, constant), arguments), arguments)

    return form


def slope_form(core: Callable[..., Any], constant: str | None = None, least: float = 0.0) -> TensorForm:
    """Return the form of the gradient of such a loss, ``core`` being its slope."""

    def form(arguments: dict[str, Any]) -> Tensor | None:
        grad, x = arguments["grad_output"], arguments["self"]
        if not _fits(arguments, constant, least) or not is_like(grad, x):
            return None
        if not _extends(arguments["target"], x) or not _extends(grad, x):
            return None
        slope, grad = _weighted(_applied(core, arguments, constant), arguments), grad.double()
        if arguments.get("reduction", _MEAN) == _MEAN:
            grad = grad / torch.full_like(grad, slope.numel())
        return slope.mul_(grad)

    return form


def binary_cross_entropy_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.binary_cross_entropy``; None if only PyTorch's own form fits the arguments."""
    x, target = arguments["self"], arguments["target"]
    if x.shape != target.shape or not bool(((x >= 0) & (x <= 1)).all()):
        return None
    return loss_form(cores.binary_cross_entropy)(arguments)


def binary_cross_entropy_with_logits_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.binary_cross_entropy_with_logits``; None if only PyTorch's own form fits."""
    x, target, positive = arguments["self"], arguments["target"], arguments.get("pos_weight")
    if positive is None or x.shape != target.shape:
        return loss_form(cores.binary_cross_entropy_with_logits)(arguments) if x.shape == target.shape else None
    if not _fits(arguments, None, 0.0) or not is_like(positive, x) or not _extends(positive, x):
        return None
    x, target = x.double(), target.double()
    factor = (positive.double() - 1.0) * target + 1.0
    value = (1.0 - target) * x - apply(cores.log_sigmoid, x) * factor
    return _reduced(_weighted(value, arguments), arguments)


def xlogy_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.xlogy`` of two tensors; None if only PyTorch's own form fits the arguments."""
    x, y = arguments["self"], arguments["other"]
    if not is_like(x, x) or not is_like(y, x) or _common_shape(x, y) is None:
        return None
    return apply(cores.xlogy, x, y)


def _common_shape(*tensors: Tensor) -> torch.Size | None:
    try:
        return torch.Size(np.broadcast_shapes(*(tuple(t.shape) for t in tensors)))
    except ValueError:
        return None


def _extends(x: Tensor, to: Tensor) -> bool:
    """Tell whether ``x`` can be expanded to the shape of ``to``."""
    return _common_shape(x, to) == to.shape


def _fits(arguments: dict[str, Any], constant: str | None, least: float) -> bool:
    x, target, weight = arguments["self"], arguments["target"], arguments.get("weight")
    if not is_like(x, x) or not is_like(target, x):
        return False
    shape = _common_shape(x, target)
    if shape is None or arguments.get("reduction", _MEAN) not in (_NONE, _MEAN, _SUM):
        return False
    if weight is not None and not (is_like(weight, x) and _extends(weight, x)):
        return False
    return constant is None or arguments.get(constant, 1.0) >= least


def _applied(core: Callable[..., Any], arguments: dict[str, Any], constant: str | None) -> Tensor:
    """Return the values of a core, in float64."""
    numbers = () if constant is None else (float(arguments.get(constant, 1.0)),)
    return apply(core, arguments["self"], arguments["target"], numbers=numbers, dtype=torch.float64)


def _weighted(value: Tensor, arguments: dict[str, Any]) -> Tensor:
    weight = arguments.get("weight")
    return value if weight is None else value.mul_(weight.double())


def _reduced(value: Tensor, arguments: dict[str, Any]) -> Tensor:
    reduction = arguments.get("reduction", _MEAN)
    if reduction == _NONE:
        return value
    total = exact_sum(value, [])
    # Divided by a tensor: on some devices a division by a number is a multiplication by its reciprocal.
    return total / torch.full_like(total, value.numel()) if reduction == _MEAN else total


_SMALLEST = 2.0**-1074

FORMS: dict[str, Form] = {
    **exact_labels.FORMS,
    "mse_loss": loss_form(cores.squared_error),
    "mse_loss_backward": slope_form(cores.squared_error_slope),
    "smooth_l1_loss": loss_form(cores.smooth_l1, "beta"),
    "smooth_l1_loss_backward": slope_form(cores.smooth_l1_slope, "beta"),
    "huber_loss": loss_form(cores.huber, "delta", _SMALLEST),
    "huber_loss_backward": slope_form(cores.huber_slope, "delta", _SMALLEST),
    "binary_cross_entropy": binary_cross_entropy_form,
    "binary_cross_entropy_backward": slope_form(cores.binary_cross_entropy_slope),
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits_form,
    "soft_margin_loss": loss_form(cores.soft_margin),
    "soft_margin_loss_backward": slope_form(cores.soft_margin_slope),
    "xlogy": xlogy_form,
}
FLOAT32 = frozenset(FORMS)
