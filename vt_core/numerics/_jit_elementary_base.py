"""What the elementary functions are written in: code that runs on numbers in compiled loops and on whole tensors alike.

A *core* is such a function: additions, multiplications, divisions, comparisons, integer operations and the helpers
below, no branches. Called from Python it is a sequence of plain tensor operations on any device; called from a
compiled loop it is inlined, and LLVM vectorises it. Both round each operation once, so both give the same bits. No
division by a Python number: for tensors, some devices turn it into a multiplication.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numba.extending import overload, register_jitable

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics.dispatch import correctly_rounded_sqrt

_Function = TypeVar("_Function", bound=Callable[..., Any])


def core(function: _Function) -> _Function:
    """Let compiled loops inline ``function``, which stays what it is for Python."""
    return register_jitable(forceinline=True, error_model="numpy")(function)


def select(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a`` where the condition holds, else ``b``."""
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        a = torch.full_like(condition, a, dtype=torch.float64)
    return torch.where(condition, a, b)


def bits(x: Any) -> Any:
    """Return the pattern of a float64 as an integer."""
    return x.view(torch.int64)


def number(pattern: Any) -> Any:
    """Return the float64 of a pattern."""
    return pattern.view(torch.float64)


def root(x: Any) -> Any:
    """Return the square root, correctly rounded."""
    return correctly_rounded_sqrt(x)


def polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Return the polynomial with these coefficients, the constant one first, by Horner's rule."""
    value: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        value = c + x * value
    return value


_INLINED: dict[str, Any] = {"jit_options": {"forceinline": True}, "strict": False}


@overload(select, **_INLINED)
def _select(condition: Any, a: Any, b: Any) -> Any:
    return lambda condition, a, b: a if condition else b


@overload(bits, **_INLINED)
def _bits(x: Any) -> Any:
    return lambda x: np.float64(x).view(np.int64)


@overload(number, **_INLINED)
def _number(pattern: Any) -> Any:
    return lambda pattern: np.int64(pattern).view(np.float64)


@overload(root, **_INLINED)
def _root(x: Any) -> Any:
    return lambda x: np.sqrt(x)


@overload(polynomial, **_INLINED)
def _polynomial(x: Any, coefficients: Any) -> Any:
    """Written out, for a loop in a loop stops LLVM from vectorising the outer one."""
    places = range(coefficients.count - 1)
    text = "".join(f"coefficients[{i}] + x * (" for i in places)
    return eval(f"lambda x, coefficients: {text}coefficients[{len(places)}]" + ")" * len(places))


def kernel(function: Callable[..., Any], inputs: int) -> Callable[..., None]:
    """Return the compiled loop over a core of one or two flat arrays and numbers: ``loop(*arrays, out, numbers)``.

    Arrays of float32 are widened value by value and ``out`` of float32 cuts what is stored.
    """

    def one(x: Any, out: Any, numbers: Any) -> None:
        for i in range(x.size):
            out[i] = function(np.float64(x[i]), *numbers)

    def two(x: Any, y: Any, out: Any, numbers: Any) -> None:
        for i in range(x.size):
            out[i] = function(np.float64(x[i]), np.float64(y[i]), *numbers)

    loop = (one, two)[inputs - 1]
    loop.__qualname__ = f"{function.__name__}-{inputs}"
    return compiled_ieee(loop)
