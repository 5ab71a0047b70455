"""``contractions: exact``: matrix products and convolutions without a rounding log, for their sums have no rounding.

Operands are quantised (``numerics/quantise.py``) so that every product and partial sum is exact in float64; the
device's own kernel then gives the same bits whatever its order, blocking or use of FMA. What remains (alpha, beta, a
bias, a second slice, chunks of a long sum) is a fixed sequence of correctly rounded operations. So nobody has a choice
to make: no tolerance, no log, and nothing for a lying log to steer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vt_core.engine.exact_convolution import convolution, convolution_backward
from vt_core.engine.exact_products import matmul
from vt_core.engine.plans import Plan, by_name

if TYPE_CHECKING:
    from vt_core.engine.mode import VerifiedMode

Form = Callable[[dict[str, Any], int], Tensor | tuple[Tensor | None, ...]]


def _scaled(arguments: dict[str, Any], bias: Tensor, product: Tensor) -> Tensor:
    """Return ``beta * bias + alpha * product``, each operation correctly rounded."""
    alpha, beta = arguments.get("alpha", 1), arguments.get("beta", 1)
    bias = bias.expand_as(product)  # RuntimeError for one that is larger, as PyTorch
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias * beta if beta != 1 else bias)


def _mm(arguments: dict[str, Any], slices: int) -> Tensor:
    return matmul(arguments["self"], arguments["mat2"], slices)


def _mv(arguments: dict[str, Any], slices: int) -> Tensor:
    return matmul(arguments["self"], arguments["vec"][:, None], slices)[:, 0]


def _dot(arguments: dict[str, Any], slices: int) -> Tensor:
    other = arguments["tensor"] if "tensor" in arguments else arguments["other"]
    return matmul(arguments["self"][None], other[:, None], slices)[0, 0]


def _addmm(arguments: dict[str, Any], slices: int) -> Tensor:
    return _scaled(arguments, arguments["self"], matmul(arguments["mat1"], arguments["mat2"], slices))


def _addmv(arguments: dict[str, Any], slices: int) -> Tensor:
    product = matmul(arguments["mat"], arguments["vec"][:, None], slices)[:, 0]
    return _scaled(arguments, arguments["self"], product)


def _baddbmm(arguments: dict[str, Any], slices: int) -> Tensor:
    return _scaled(arguments, arguments["self"], matmul(arguments["batch1"], arguments["batch2"], slices))


FORMS: dict[str, Form] = {
    "mm": _mm,
    "bmm": _mm,
    "mv": _mv,
    "dot": _dot,
    "vdot": _dot,
    "addmm": _addmm,
    "addmv": _addmv,
    "baddbmm": _baddbmm,
    "convolution": convolution,
    "convolution_backward": convolution_backward,
}


def treatment(slices: int) -> Callable[[VerifiedMode, Plan, Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return the treatment of contractions with one or two slices; other forms of them stay inexact, with a log."""

    def exact(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = FORMS.get(plan.name)
        arguments = by_name(plan, args, kwargs)
        floating = [v.dtype for v in arguments.values() if isinstance(v, Tensor)]
        if form is None or plan.in_place or any(d != torch.float64 for d in floating):
            return mode.run_inexact(plan, func, args, kwargs)
        result = form(arguments, slices)
        for tensor in result if isinstance(result, tuple) else (result,):
            if tensor is not None and tensor.numel():
                mode.put_on_grid(plan, tensor)
        return result

    return exact
