"""Cores of losses of one prediction ``x`` and one target ``t`` (see ``_jit_elementary_base``) and their slopes in x.

The constants of PyTorch, where it has some (the bound -100 of a logarithm), are the same here.
"""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary import NAN, exp, log, log1p, log1p_unit
from vt_core.numerics._jit_elementary_base import core, select

_EPSILON = 9.999999960041972e-13  # 1e-12 in float32


@core
def squared_error(x: Any, t: Any) -> Any:
    """(x - t)**2."""
    d = x - t
    return d * d


@core
def squared_error_slope(x: Any, t: Any) -> Any:
    """2 (x - t)."""
    return (x - t) * 2.0


@core
def smooth_l1(x: Any, t: Any, beta: Any) -> Any:
    """Half of (x - t)**2 / beta below beta, then |x - t| - beta / 2."""
    z = abs(x - t)
    return select(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)


@core
def smooth_l1_slope(x: Any, t: Any, beta: Any) -> Any:
    """(x - t) / beta between -1 and 1."""
    d = x - t
    return select(d <= -beta, -1.0, select(d >= beta, 1.0, d / beta))


@core
def huber(x: Any, t: Any, delta: Any) -> Any:
    """Half of (x - t)**2 up to delta, then delta (|x - t| - delta / 2)."""
    z = abs(x - t)
    return select(z <= delta, 0.5 * z * z, delta * (z - 0.5 * delta))


@core
def huber_slope(x: Any, t: Any, delta: Any) -> Any:
    """(x - t) between -delta and delta."""
    d = x - t
    return select(d < -delta, -delta, select(d > delta, delta, d))


@core
def _softplus(z: Any) -> Any:
    """log(1 + exp(z))."""
    return select(z < 0.0, 0.0, z) + log1p_unit(exp(-abs(z)))


@core
def log_sigmoid(x: Any) -> Any:
    """-log(1 + exp(-x))."""
    return -_softplus(-x)


@core
def binary_cross_entropy(x: Any, t: Any) -> Any:
    """-(t log(x) + (1 - t) log(1 - x)) for x from 0 to 1, logarithms at least -100."""
    one, other = log(x), log1p(-x)
    one = select(one < -100.0, -100.0, one)
    other = select(other < -100.0, -100.0, other)
    return (t - 1.0) * other - t * one


@core
def binary_cross_entropy_slope(x: Any, t: Any) -> Any:
    """(x - t) / (x (1 - x)), the divisor at least 1e-12 (as a float32, in PyTorch)."""
    v = (1.0 - x) * x
    return (x - t) / select(v < _EPSILON, _EPSILON, v)


@core
def binary_cross_entropy_with_logits(x: Any, t: Any) -> Any:
    """(1 - t) x - log_sigmoid(x)."""
    return (1.0 - t) * x + _softplus(-x)


@core
def soft_margin(x: Any, t: Any) -> Any:
    """log(1 + exp(-t x))."""
    return _softplus(-(t * x))


@core
def soft_margin_slope(x: Any, t: Any) -> Any:
    """-t / (1 + exp(t x))."""
    z = t * x
    e = exp(-abs(z))
    return -(t * (select(z > 0.0, e, 1.0) / (1.0 + e)))


@core
def xlogy(x: Any, y: Any) -> Any:
    """x log(y), 0 for x of 0 and any y but NaN."""
    return select(y != y, NAN, select(x == 0.0, x * 0.0, x * log(y)))
