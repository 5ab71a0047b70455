"""``functions: exact`` for the losses of labels: the value that a label chooses, times its weight; exact sums.

A mean divides by the sum of the weights of the labels that count. In the gradient, ``grad_output`` (divided by that
sum) is multiplied by the weight; a label that does not count gives 0.

Tensors are float64 or float32. Results are float64, but the gradient, which has their dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.exact_sums import exact_sum
from vt_core.engine.forms import Form
from vt_core.numerics import _jit_labels as _jit
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.elementary import DTYPES
from vt_core.numerics.quantise import use_compiled

_NONE, _MEAN, _SUM = 0, 1, 2


def nll_forward_form(arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return (output, total_weight) of ``aten.nll_loss_forward`` or ``nll_loss2d_forward``.

    None if only PyTorch's own form fits the arguments, or if PyTorch has an error to raise.
    """
    if not _fits(arguments):
        return None
    x, weight, reduction = arguments["self"], arguments["weight"], arguments["reduction"]
    compiled = use_compiled(x) and x.is_contiguous()
    found = _compiled_terms(arguments) if compiled else _terms(arguments)
    if found is None:
        return None
    terms, weights, count = found
    if reduction == _NONE:
        return terms, weights if x.dim() == 1 else torch.zeros((), dtype=torch.float64, device=x.device)
    if weight is None and compiled:
        total = torch.tensor(float(count), dtype=torch.float64)
    else:
        total = exact_sum(weights, [])
    output = exact_sum(terms, [])
    return output / total if reduction == _MEAN else output, total


def nll_backward_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.nll_loss_backward`` or ``nll_loss2d_backward``; None as for the forward form."""
    grad, x, target, reduction = (arguments[k] for k in ("grad_output", "self", "target", "reduction"))
    if not _fits(arguments) or not is_like(grad, x):
        return None
    if grad.shape != target.shape if reduction == _NONE else grad.numel() != 1:
        return None
    grad = grad.double()
    if reduction != _NONE:
        grad = grad.reshape(())
    if reduction == _MEAN:
        grad = grad / arguments["total_weight"].double().reshape(())
    out = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    if use_compiled(x):
        return _compiled_placed(arguments, grad, out)
    found = _places(arguments)
    if found is None:
        return None
    places, ignored, weights = found
    dim = _class_dim(x)
    slopes = torch.where(ignored, 0.0, -(weights * grad))
    return out.scatter_(dim, places.unsqueeze(dim), slopes.to(x.dtype).unsqueeze(dim))


def _compiled_terms(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, int] | None:
    """Return the same as ``_terms``, for a contiguous ``self`` on the CPU."""
    x, target = arguments["self"], arguments["target"]
    terms, weights = (torch.empty(target.shape, dtype=torch.float64) for _ in range(2))
    flat, out = x.detach().view(-1).numpy(), (terms.view(-1).numpy(), weights.view(-1).numpy())
    labels, counts = _labels(arguments), list[int]()
    in_parts(lambda i, j: counts.append(_jit.choose(flat, *labels, *out, i, j)), target.numel(), target.numel())
    return None if min(counts) < 0 else (terms, weights, sum(counts))


def _compiled_placed(arguments: dict[str, Any], grad: Tensor, out: Tensor) -> Tensor | None:
    """Put the gradient at its places in zeros (on the CPU); None for a label out of range."""
    flat, to, size = grad.detach().contiguous().view(-1).numpy(), out.view(-1).numpy(), arguments["target"].numel()
    labels, step, failed = _labels(arguments), int(arguments["reduction"] == _NONE), list[int]()
    in_parts(lambda i, j: failed.append(_jit.place(flat, step, *labels, to, i, j)), size, size)
    return out if min(failed) == 0 else None


def _labels(arguments: dict[str, Any]) -> tuple[Any, Any, int, int, int]:
    """Return what describes labels to compiled loops."""
    x, target, weight = arguments["self"], arguments["target"], arguments["weight"]
    dim = _class_dim(x)
    inner = int(np.prod(x.shape[dim + 1 :]))
    values = _jit.NO_WEIGHT if weight is None else weight.detach().double().contiguous().numpy()
    return target.long().contiguous().view(-1).numpy(), values, arguments["ignore_index"], x.shape[dim], inner


def _terms(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, int] | None:
    """Return the terms and weights of all labels, by plain tensor operations, and their number."""
    found = _places(arguments)
    if found is None:
        return None
    x, (places, ignored, weights) = arguments["self"], found
    dim = _class_dim(x)
    values = x.detach().gather(dim, places.unsqueeze(dim)).squeeze(dim).double()
    return torch.where(ignored, 0.0, -(values * weights)), weights, weights.numel()


def _places(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the class, whether it is ignored (its class is then 0) and the weight (then 0) of each label."""
    x, target, weight = arguments["self"], arguments["target"], arguments["weight"]
    ignored = target == arguments["ignore_index"]
    places = torch.where(ignored, 0, target.long())
    if x.device.type == "cpu" and bool(((places < 0) | (places >= x.shape[_class_dim(x)])).any()):
        return None  # PyTorch says which; other devices do when they gather
    weights = torch.ones_like(places, dtype=torch.float64) if weight is None else weight.detach().double()[places]
    return places, ignored, torch.where(ignored, 0.0, weights)


def _class_dim(x: Tensor) -> int:
    return min(1, x.dim() - 1)


def is_like(x: Any, other: Any) -> bool:
    """Tell whether ``x`` is a dense tensor of float64 or float32, whichever ``other`` is, and on its device."""
    if not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return False
    return x.dtype in DTYPES and x.dtype == other.dtype and x.layout == torch.strided and x.device == other.device


def _fits(arguments: dict[str, Any]) -> bool:
    x, target, weight = arguments["self"], arguments["target"], arguments["weight"]
    if not is_like(x, x) or x.dim() not in (1, 2, 4) or target.dtype not in (torch.int64, torch.uint8):
        return False
    dim = _class_dim(x)
    classes = x.shape[dim]
    if target.shape != (*x.shape[:dim], *x.shape[dim + 1 :]) or not classes or target.device != x.device:
        return False
    if weight is not None and not (is_like(weight, x) and weight.shape == (classes,)):
        return False
    return arguments["reduction"] in (_NONE, _MEAN, _SUM)


FORMS: dict[str, Form] = {
    "nll_loss_forward": nll_forward_form,
    "nll_loss_backward": nll_backward_form,
    "nll_loss2d_forward": nll_forward_form,
    "nll_loss2d_backward": nll_backward_form,
}
FLOAT32 = frozenset(FORMS)
