"""Core of powers (see ``_jit_elementary_base``): exp(y log x), the logarithm with twice the digits."""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary import INF, LN2_HIGH, LN2_LOW, LOG_EVEN, LOG_ODD, NAN, clamped, exp_of, log_parts
from vt_core.numerics._jit_elementary_base import bits, core, number, polynomial, select

_UPPER_HALF = ~((1 << 27) - 1)


@core
def _product_error(a: Any, b: Any, product: Any) -> Any:
    """a * b - product, for the rounded product, to within 2**-105 of it."""
    a_high, b_high = number(bits(a) & _UPPER_HALF), number(bits(b) & _UPPER_HALF)
    a_low, b_low = a - a_high, b - b_high
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


@core
def _log_twice(x: Any) -> Any:
    """log(x) as a sum of two numbers within 2**-58 of itself, for 0 < x < infinity.

    As ``_jit_elementary.log``, with s, which has nearly all of it, as a sum of two numbers.
    """
    f, k = log_parts(x)
    d = 2.0 + f
    d_low = f - (d - 2.0)
    s = f / d
    product = s * d
    s_low = (((f - product) - _product_error(s, d, product)) - s * d_low) / d
    z = s * s
    w = z * z
    tail = s * (z * polynomial(w, LOG_EVEN) + w * polynomial(w, LOG_ODD))
    whole = k * LN2_HIGH
    high = whole + 2.0 * s
    low = (2.0 * s - (high - whole)) + (k * LN2_LOW + (2.0 * s_low + tail))
    total = high + low
    return total, low - (total - high)


@core
def _whole(v: Any) -> Any:
    a = abs(v)
    return (a >= 2.0**52) | (((a + 2.0**52) - 2.0**52) == a)


@core
def power(x: Any, y: Any) -> Any:
    """x**y within 3 ulp where |y log x| < 64, within 2**-47 of itself elsewhere; the limits are those of IEEE 754."""
    a = abs(x)
    high, low = _log_twice(a)
    high = select(a < INF, high, a)
    high = select(a == 0.0, -INF, high)
    product = high * y
    error = _product_error(high, y, product) + low * y
    value = exp_of(clamped(product, -750.0, 750.0), select(abs(product) < 750.0, error, 0.0))
    finite = (a > 0.0) & (a < INF)
    turned = select(_whole(y), select(_whole(0.5 * y), value, -value), select(finite, NAN, value))
    value = select(bits(x) < 0, turned, value)
    value = select((x == -1.0) & (abs(y) == INF), 1.0, value)
    return select((y == 0.0) | (x == 1.0), 1.0, value)


@core
def power_of_number(y: Any, x: Any) -> Any:
    """x**y, in the order in which ``kernel`` has arrays and numbers."""
    return power(x, y)
