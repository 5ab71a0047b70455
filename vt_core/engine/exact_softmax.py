"""``functions: exact`` for softmax, log_softmax, logsumexp and their gradients: see ``numerics.softmax``.

Tensors are float64 or float32, results have their dtype.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics import softmax
from vt_core.numerics.elementary import DTYPES
from vt_core.numerics.softmax import MAX_ROW


def softmax_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten._softmax`` with these arguments; None if only PyTorch's own form fits them."""
    x, dim = arguments["self"], arguments["dim"]
    return None if arguments["half_to_float"] or not _has_rows(x, dim) else softmax.softmax(x, dim)


def safe_softmax_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten._safe_softmax``, 0 in rows of -inf alone; None if only PyTorch's own form fits."""
    x, dim = arguments["self"], arguments["dim"]
    if arguments.get("dtype") not in (None, x.dtype) or not _has_rows(x, dim):
        return None
    return softmax.softmax(x, dim, empty=0.0)


def log_softmax_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten._log_softmax`` with these arguments; None if only PyTorch's own form fits them."""
    x, dim = arguments["self"], arguments["dim"]
    return None if arguments["half_to_float"] or not _has_rows(x, dim) else softmax.log_softmax(x, dim)


def softmax_backward_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten._softmax_backward_data``; None if only PyTorch's own form fits the arguments."""
    if not _is_backward(arguments):
        return None
    return softmax.softmax_backward(arguments["grad_output"], arguments["output"], arguments["dim"])


def log_softmax_backward_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten._log_softmax_backward_data``; None if only PyTorch's own form fits the arguments."""
    if not _is_backward(arguments):
        return None
    return softmax.log_softmax_backward(arguments["grad_output"], arguments["output"], arguments["dim"])


def logsumexp_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.logsumexp`` with these arguments; None if only PyTorch's own form fits them."""
    x, dims = arguments["self"], arguments["dim"]
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims or x.dim() == 0 or x.numel() == 0 or not all(_has_rows(x, d) for d in dims):
        return None
    reduced = {d % x.dim() for d in dims}
    if len(reduced) < len(dims) or prod(x.shape[d] for d in reduced) > MAX_ROW:
        return None
    found = softmax.logsumexp(x, sorted(reduced))
    if not arguments.get("keepdim", False):
        return found
    return found.view([1 if d in reduced else n for d, n in enumerate(x.shape)])


def _has_rows(x: Tensor, dim: Any) -> bool:
    if x.dtype not in DTYPES or x.layout != torch.strided or not isinstance(dim, int):
        return False
    rank = max(1, x.dim())
    return -rank <= dim < rank and (x.dim() == 0 or x.shape[dim] <= MAX_ROW)


def _is_backward(arguments: dict[str, Any]) -> bool:
    g, y = arguments["grad_output"], arguments["output"]
    if not arguments["input_dtype"] == g.dtype == y.dtype or g.shape != y.shape or g.device != y.device:
        return False
    return _has_rows(g, arguments["dim"]) and _has_rows(y, arguments["dim"])


FORMS: dict[str, Form] = {
    "_softmax": softmax_form,
    "_softmax_backward_data": softmax_backward_form,
    "_log_softmax": log_softmax_form,
    "_log_softmax_backward_data": log_softmax_backward_form,
    "_safe_softmax": safe_softmax_form,
    "logsumexp": logsumexp_form,
}
FLOAT32 = frozenset(FORMS)
