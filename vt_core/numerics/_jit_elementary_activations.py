"""Cores of activations and their gradients (see ``_jit_elementary_base``); erf and gelu have their own file."""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary import (
    LN2_HIGH,
    LN2_LOW,
    NAN,
    PER_LN2,
    ROUNDER,
    ROUNDER_BITS,
    clamped,
    exp,
    expm1,
    expm1_small,
    log1p_unit,
)  # fmt: skip
from vt_core.numerics._jit_elementary_base import bits, core, number, select

_GELU_OUTER = 1.5957691216057308  # 2 sqrt(2 / pi)
_GELU_INNER = 0.044715


@core
def tanh(x: Any) -> Any:
    """tanh(x) within 3 ulp: -t / (t + 2) with t = exp(-2 |x|) - 1."""
    v = clamped(-2.0 * abs(x), -40.0, 0.0)
    t = v * PER_LN2 + ROUNDER
    k = t - ROUNDER
    power = number((bits(t) - (ROUNDER_BITS - 1023)) << 52)
    less = expm1_small((v - k * LN2_HIGH) - k * LN2_LOW) * power + (power - 1.0)
    y = -less / (less + 2.0)
    return select(x < 0.0, -y, y)


@core
def tanh_backward(grad: Any, y: Any) -> Any:
    """grad times the derivative of tanh where it is y."""
    return grad * ((1.0 - y) * (1.0 + y))


@core
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) within 2 ulp."""
    e = exp(-abs(x))
    return select(x < 0.0, e, 1.0) / (1.0 + e)


@core
def sigmoid_backward(grad: Any, y: Any) -> Any:
    """grad times the derivative of sigmoid where it is y."""
    return grad * ((1.0 - y) * y)


@core
def silu(x: Any) -> Any:
    """x sigmoid(x) within 3 ulp."""
    return x * sigmoid(x)


@core
def silu_backward(grad: Any, x: Any) -> Any:
    """grad times the derivative of silu, which has an error of 2**-51."""
    e = exp(-abs(x))
    below = x < 0.0
    share = 1.0 / (1.0 + e)
    rest = e * share
    return grad * (select(below, rest, share) * (1.0 + x * select(below, share, rest)))


@core
def gelu_tanh(x: Any) -> Any:
    """x sigmoid(u), u = 2 sqrt(2 / pi) (x + 0.044715 x**3), within 2**-50 (1 + |u|) of itself.

    It is x (1 + tanh(u / 2)) / 2, without the cancellation.
    """
    return x * sigmoid(_GELU_OUTER * (x * (1.0 + _GELU_INNER * (x * x))))


@core
def gelu_tanh_backward(grad: Any, x: Any) -> Any:
    """grad times the derivative of gelu_tanh, which has an error of 2**-50."""
    z = x * x
    u = _GELU_OUTER * (x * (1.0 + _GELU_INNER * z))
    slope = x * (_GELU_OUTER * (1.0 + (3.0 * _GELU_INNER) * z))
    e = exp(-abs(u))
    below = u < 0.0
    share = 1.0 / (1.0 + e)
    rest = e * share
    return grad * (select(below, rest, share) * (1.0 + slope * select(below, share, rest)))


@core
def mish(x: Any) -> Any:
    """x tanh(log(1 + exp(x))) within 6 ulp: with n = exp(x), the tanh is n (n + 2) / (n (n + 2) + 2)."""
    e = exp(-abs(x))
    part = select(x < 0.0, e * (e + 2.0), 1.0 + 2.0 * e)
    return x * (part / (part + select(x < 0.0, 2.0, 2.0 * (e * e))))


@core
def mish_backward(grad: Any, x: Any) -> Any:
    """grad times the derivative of mish, which has an error of 2**-50.

    With D = n (n + 2) + 2 it is n (n + 2) / D + 4 x n (n + 1) / D**2; for x >= 0 in terms of 1 / n.
    """
    e = exp(-abs(x))
    below = x < 0.0
    part = select(below, e * (e + 2.0), 1.0 + 2.0 * e)
    whole = part + select(below, 2.0, 2.0 * (e * e))
    slope = (4.0 * e * (1.0 + e)) * select(below, 1.0, e)
    return grad * (part / whole + x * (slope / (whole * whole)))


@core
def softplus(x: Any, beta: Any, threshold: Any) -> Any:
    """log(1 + exp(beta x)) / beta within 3 ulp of what it is for the rounded product; x above the threshold."""
    z = x * beta
    y = (select(z > 0.0, z, 0.0) + log1p_unit(exp(-abs(z)))) / beta
    return select(z > threshold, x, y)


@core
def softplus_backward(grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    """grad times the derivative of softplus."""
    z = x * beta
    return select(z > threshold, grad, grad * sigmoid(z))


@core
def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)) within 2 ulp."""
    return select(x < 0.0, x, 0.0) - log1p_unit(exp(-abs(x)))


@core
def exp_of_minus_magnitude(x: Any) -> Any:
    """exp(-|x|), what the forward pass of log_sigmoid leaves for the backward pass."""
    return exp(-abs(x))


@core
def log_sigmoid_backward(grad: Any, x: Any) -> Any:
    """grad times the derivative of log_sigmoid."""
    return grad * sigmoid(-x)


@core
def elu(x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """negative (exp(inner x) - 1) below zero, else positive x."""
    return select(x < 0.0, negative * expm1(x * inner), x * positive)


@core
def elu_backward(grad: Any, x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """grad times the derivative of elu at x."""
    return grad * select(x > 0.0, positive, (inner * negative) * exp(x * inner))


@core
def elu_backward_of_result(grad: Any, y: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """grad times the derivative of elu where it is y."""
    return grad * select(y > 0.0, positive, inner * (y + negative))


@core
def hardsigmoid(x: Any, six: Any) -> Any:
    """x + 3, kept between 0 and 6, over six."""
    return clamped(x + 3.0, 0.0, 6.0) / six


@core
def hardsigmoid_backward(grad: Any, x: Any, six: Any) -> Any:
    """grad times the derivative of hardsigmoid."""
    return select((x > -3.0) & (x < 3.0), grad / six, 0.0)


@core
def hardswish(x: Any, six: Any) -> Any:
    """x times hardsigmoid."""
    return x * clamped(x + 3.0, 0.0, 6.0) / six


@core
def hardswish_backward(grad: Any, x: Any, three: Any) -> Any:
    """grad times the derivative of hardswish."""
    return select(x <= -3.0, 0.0, select(x >= 3.0, grad, grad * (x / three + 0.5)))


@core
def logit_backward(grad: Any, x: Any, low: Any, high: Any) -> Any:
    """grad times the derivative of logit: none outside the bounds, NaN outside 0 to 1 if the bounds are infinite."""
    slope = grad / (x * (1.0 - x))
    return select((x < low) | (x > high), 0.0, select((x < 0.0) | (x > 1.0), NAN, slope))
