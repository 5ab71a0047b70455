"""Canonical forms: a fixed sequence of exact operations in place of a kernel that differs between machines.

``torch.sqrt`` on x86 is not correctly rounded; ``addcmul``, ``lerp`` and ``add`` with alpha use FMA in some
builds and not in others. Each form below is made of operations that IEEE 754 defines to the bit (separate
multiply and add, correctly rounded square root), so its result is the same everywhere and is then rounded onto
the grid without a log. This makes whole optimizer steps log-free, and it removes the structural ties of
``0.9 * m``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vt_core.numerics import correctly_rounded_sqrt

# A form gets the operation's arguments by name and returns the value, or None if it has no form for them.
Form = Callable[..., Tensor | None]

_EXACT_POWERS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)


def _sqrt(self: Tensor) -> Tensor:
    return correctly_rounded_sqrt(self)


def _rsqrt(self: Tensor) -> Tensor:
    return torch.reciprocal(correctly_rounded_sqrt(self))


def _square(self: Tensor) -> Tensor:
    return self * self


def _pow(self: Tensor | float, exponent: Tensor | float) -> Tensor | None:
    if isinstance(self, Tensor) and not isinstance(exponent, Tensor) and float(exponent) in _EXACT_POWERS:
        return _power(self, float(exponent))
    return None


def _power(x: Tensor, exponent: float) -> Tensor:
    if exponent < 0:
        return torch.reciprocal(_power(x, -exponent))
    if exponent == 0.5:
        return correctly_rounded_sqrt(x)
    result = x.clone() if exponent == 1.0 else x * x
    return result * result if exponent == 4.0 else result * x if exponent == 3.0 else result


def _lerp(self: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    if not isinstance(weight, Tensor) and weight >= 0.5:
        return end - (end - self) * (1.0 - weight)  # the accurate side, as the kernels choose it
    return self + (end - self) * weight


def _addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    product = tensor1 * tensor2
    return self + (product if value == 1 else product * value)


def _addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: float = 1) -> Tensor:
    quotient = tensor1 / tensor2
    return self + (quotient if value == 1 else quotient * value)


def _add(self: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    return self + other * alpha


def _sub(self: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    return self - other * alpha


def _rsub(self: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    return other - self * alpha


def _native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (grad_output * mask).mul_(scale)


FORMS: dict[str, Form] = {
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "square": _square,
    "pow": _pow,
    "lerp": _lerp,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "native_dropout_backward": _native_dropout_backward,
}


def apply_form(name: str, arguments: dict[str, Any]) -> Tensor | None:
    """Compute the canonical value of operation ``name`` from its arguments by name, or None without a form.

    The result is a new floating tensor in the compute dtype, not yet rounded onto the grid.
    """
    return FORMS[name](**arguments)


def stable_order(name: str, arguments: dict[str, Any]) -> Any:
    """Compute ``sort``, ``argsort`` or ``topk`` so that equal elements keep their order on every device.

    ``topk`` has no stable form of its own: it is the head of a stable sort. Returns None for out= variants.
    """
    x, dim = arguments["self"], arguments.get("dim", -1)
    if name == "topk":
        if "values" in arguments or x.dim() == 0:
            return None
        found, places = torch.sort(x, dim=dim, descending=arguments.get("largest", True), stable=True)
        count = arguments["k"]
        if count > x.size(dim):
            return None  # PyTorch's own message
        return found.narrow(dim, 0, count).contiguous(), places.narrow(dim, 0, count).contiguous()
    if "values" in arguments or "out" in arguments:
        return None
    result = torch.sort(x, dim=dim, descending=arguments.get("descending", False), stable=True)
    return result.indices if name == "argsort" else tuple(result)
