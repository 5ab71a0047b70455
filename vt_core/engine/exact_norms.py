"""``functions: exact`` for normalisations: batch, group and layer norm and the root mean square, without a log.

``norm_steps`` says what is computed. Batch norm in training mode also moves the running statistics, in place:
``running = (1 - momentum) * running + momentum * statistic``, with the variance ``sum(d * d) / (n - 1)``.
Arguments that do not fit each other are left to PyTorch, which says what is wrong.

All floating tensors are float64 or all are float32; then the input and the gradient are widened as they are read, and
the small tensors here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine import norm_steps
from vt_core.engine.forms import Form
from vt_core.numerics.elementary import DTYPES
from vt_core.numerics.norm_gradients import Gradients
from vt_core.numerics.norm_layout import Groups

DEFAULT_EPS = 2.0**-52
"""What a missing ``eps`` of a root mean square stands for: the rounding step of float64."""


def _fit(x: Any, size: int | None, *vectors: Any) -> bool:
    """Return whether ``x`` is dense and has a dtype for forms, and each vector is None or of ``size`` such values."""
    if not isinstance(x, Tensor) or x.dtype not in DTYPES or x.layout != torch.strided:
        return False
    return all(
        v is None or (v.dtype == x.dtype and v.device == x.device and (size is None or v.numel() == size))
        for v in vectors
    )


def _wide(vector: Any) -> Any:
    return None if vector is None else vector.double()


def _channels(x: Tensor) -> Groups:
    return Groups((x.shape[0], x.shape[1], prod(x.shape[2:])))


def _batch_norm(arguments: dict[str, Any], training: bool) -> tuple[Tensor, Tensor, Tensor] | None:
    x, weight, bias = arguments["input"], arguments.get("weight"), arguments.get("bias")
    running = [arguments.get("running_mean"), arguments.get("running_var")]
    if not isinstance(x, Tensor) or x.dim() < 2 or not _fit(x, x.shape[1], weight, bias, *running):
        return None
    groups, eps, momentum = _channels(x), float(arguments["eps"]), float(arguments["momentum"])
    if not training:
        mean, variance = running
        if mean is None or variance is None:
            return None
        invstd = norm_steps.inverse_deviation(_wide(variance), eps)
        y = norm_steps.apply_statistics(x, _wide(mean), invstd, _wide(weight), _wide(bias), groups)
        return y, x.new_empty(0), x.new_empty(0)
    if x.numel() == 0:
        return None
    y, mean, squares, invstd = norm_steps.normalise(x, _wide(weight), _wide(bias), eps, groups)
    assert squares is not None
    unbiased = squares / torch.full_like(squares, groups.terms - 1)
    for kept, statistic in zip(running, (mean, unbiased), strict=True):
        if kept is not None:
            kept.copy_(_wide(kept) * (1.0 - momentum) + statistic * momentum)
    return y, mean, invstd


def native_batch_norm(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (output, mean, 1 / deviation) and move the running statistics; in evaluation mode the latter are empty."""
    return _batch_norm(arguments, bool(arguments["training"]))


def batch_norm_no_training(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the same in evaluation mode."""
    return _batch_norm(arguments, False)


def batch_norm_with_update(arguments: dict[str, Any]) -> tuple[Tensor, ...] | None:
    """Return the same in training mode, and what PyTorch reserves for the backward pass: nothing."""
    return _with_reserve(_batch_norm(arguments, True))


def batch_norm_no_update(arguments: dict[str, Any]) -> tuple[Tensor, ...] | None:
    """Return the same in evaluation mode, and what PyTorch reserves for the backward pass: nothing."""
    return _with_reserve(_batch_norm(arguments, False))


def _with_reserve(found: tuple[Tensor, Tensor, Tensor] | None) -> tuple[Tensor, ...] | None:
    return None if found is None else (*found, torch.empty(0, dtype=torch.uint8, device=found[0].device))


def native_batch_norm_backward(arguments: dict[str, Any]) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of input, weight and bias that are asked for."""
    return _batch_norm_backward(arguments, "save_invstd", bool(arguments["train"]))


def batch_norm_backward(arguments: dict[str, Any]) -> tuple[Tensor | None, ...] | None:
    """Return the same; ``save_var`` is what the forward pass returned: 1 / deviation."""
    return _batch_norm_backward(arguments, "save_var", bool(arguments["update"]))


def _batch_norm_backward(arguments: dict[str, Any], inverse: str, training: bool) -> tuple[Tensor | None, ...] | None:
    x, dy, weight = arguments["input"], arguments["grad_out"], arguments.get("weight")
    names = ("save_mean", inverse) if training else ("running_mean", "running_var")
    mean, spread = (arguments.get(name) for name in names)
    if (
        not isinstance(x, Tensor)
        or x.dim() < 2
        or not _fit(x, x.shape[1], weight, mean, spread)
        or not _fit(x, x.numel(), dy)
        or dy.shape != x.shape
        or mean is None
        or spread is None
    ):
        return None
    weight, mean, spread = _wide(weight), _wide(mean), _wide(spread)
    invstd = spread if training else norm_steps.inverse_deviation(spread, float(arguments["eps"]))
    mask = _mask(arguments)
    return tuple(norm_steps.gradients(x, dy, weight, mean, invstd, _channels(x), mask, training=training))


def native_group_norm(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (output, means, 1 / deviations), the latter of each sample and group."""
    x, weight, bias = arguments["input"], arguments.get("weight"), arguments.get("bias")
    groups = _channel_groups(arguments)
    if groups is None or not _fit(x, arguments["C"], weight, bias) or groups.terms == 0:
        return None
    y, mean, _, invstd = norm_steps.normalise(x, _wide(weight), _wide(bias), float(arguments["eps"]), groups)
    return y, mean.view(groups.shape[:2]), invstd.view(groups.shape[:2])


def native_group_norm_backward(arguments: dict[str, Any]) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of input, weight and bias that are asked for; None for that of a missing weight."""
    x, dy, weight = arguments["input"], arguments["grad_out"], arguments.get("weight")
    groups, mean, invstd = _channel_groups(arguments), arguments["mean"], arguments["rstd"]
    if (
        groups is None
        or not _fit(x, arguments["C"], weight)
        or not _fit(x, prod(groups.shape[:2]), mean, invstd)
        or not _fit(x, x.numel(), dy)
        or groups.terms == 0
    ):
        return None
    mask = _mask(arguments)
    mask = mask[0], _both(mask[1], weight), mask[2]
    return tuple(norm_steps.gradients(x, dy, _wide(weight), _wide(mean), _wide(invstd), groups, mask))


def _channel_groups(arguments: dict[str, Any]) -> Groups | None:
    x, count = arguments["input"], arguments["group"]
    samples, channels, places = (int(arguments[name]) for name in ("N", "C", "HxW"))
    if not _fit(x, None) or x.numel() != samples * channels * places or count < 1 or channels % count:
        return None
    return Groups((samples, count, channels // count, places))


def native_layer_norm(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return (output, means, 1 / deviations), the latter with sizes of 1 for the dimensions that are normalised."""
    x, weight, bias = arguments["input"], arguments.get("weight"), arguments.get("bias")
    shape = tuple(arguments["normalized_shape"])
    groups = _rows(x, shape, weight, bias)
    if groups is None:
        return None
    y, mean, _, invstd = norm_steps.normalise(x, _wide(weight), _wide(bias), float(arguments["eps"]), groups)
    kept = _kept(x, shape)
    return y, mean.view(kept), invstd.view(kept)


def native_layer_norm_backward(arguments: dict[str, Any]) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of input, weight and bias that are asked for; None for those of a missing weight or bias."""
    weight, bias, mean = arguments.get("weight"), arguments.get("bias"), arguments["mean"]
    mask = _mask(arguments)
    mask = mask[0], _both(mask[1], weight), _both(mask[2], bias)
    found = _gradients_of_rows(arguments, bias, mean, mask, True)
    if found is None:
        return None
    shape = tuple(arguments["normalized_shape"])
    return found.x, *(t if t is None else t.view(shape) for t in (found.weight, found.bias))


def fused_rms_norm(arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return (output, 1 / root mean square); a missing ``eps`` is ``DEFAULT_EPS``."""
    x, weight, shape = arguments["input"], arguments.get("weight"), tuple(arguments["normalized_shape"])
    groups, eps = _rows(x, shape, weight), arguments.get("eps")
    if groups is None:
        return None
    eps = DEFAULT_EPS if eps is None else float(eps)
    y, _, _, invstd = norm_steps.normalise(x, _wide(weight), None, eps, groups, False)
    return y, invstd.view(_kept(x, shape))


def fused_rms_norm_backward(arguments: dict[str, Any]) -> tuple[Tensor | None, Tensor | None] | None:
    """Return the gradients of input and weight that are asked for; None for that of a missing weight."""
    wanted = tuple(arguments["output_mask"])
    mask = bool(wanted[0]), _both(bool(wanted[1]), arguments.get("weight")), False
    mean = torch.zeros_like(arguments["rstd"])
    found = _gradients_of_rows(arguments, None, mean, mask, False)
    if found is None:
        return None
    return found.x, None if found.weight is None else found.weight.view(tuple(arguments["normalized_shape"]))


def _gradients_of_rows(
    arguments: dict[str, Any], bias: Tensor | None, mean: Tensor, mask: tuple[bool, bool, bool], centred: bool
) -> Gradients | None:
    x, dy, weight, invstd = arguments["input"], arguments["grad_out"], arguments.get("weight"), arguments["rstd"]
    groups = _rows(x, tuple(arguments["normalized_shape"]), weight, bias)
    if groups is None or not _fit(x, x.numel(), dy) or not _fit(x, groups.shape[0], mean, invstd):
        return None
    return norm_steps.gradients(x, dy, _wide(weight), _wide(mean), _wide(invstd), groups, mask, centred)


def _rows(x: Any, shape: Sequence[int], *vectors: Any) -> Groups | None:
    width = prod(shape)
    if not _fit(x, width, *vectors) or not shape or tuple(x.shape[-len(shape) :]) != tuple(shape) or width == 0:
        return None
    return Groups((x.numel() // width, width))


def _kept(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    return (*x.shape[: x.dim() - len(shape)], *(1 for _ in shape))


def _mask(arguments: dict[str, Any]) -> tuple[bool, bool, bool]:
    first, second, third = arguments["output_mask"]
    return bool(first), bool(second), bool(third)


def _both(wanted: bool, argument: Any) -> bool:
    return wanted and argument is not None


FORMS: dict[str, Form] = {
    "native_batch_norm": native_batch_norm,
    "_native_batch_norm_legit": native_batch_norm,
    "_native_batch_norm_legit_no_training": batch_norm_no_training,
    "_batch_norm_with_update": batch_norm_with_update,
    "_batch_norm_no_update": batch_norm_no_update,
    "native_batch_norm_backward": native_batch_norm_backward,
    "batch_norm_backward": batch_norm_backward,
    "native_group_norm": native_group_norm,
    "native_group_norm_backward": native_group_norm_backward,
    "native_layer_norm": native_layer_norm,
    "native_layer_norm_backward": native_layer_norm_backward,
    "_fused_rms_norm": fused_rms_norm,
    "_fused_rms_norm_backward": fused_rms_norm_backward,
}
FLOAT32 = frozenset(FORMS)
