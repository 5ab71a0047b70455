"""Cores of exponentials and logarithms (see ``_jit_elementary_base``).

Polynomials, here and in the other files, interpolate at Chebyshev nodes, computed with 60 digits; their coefficients
are rounded to float64, and the error that is named is what they then have.
"""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary_base import bits, core, number, polynomial, select

INF = float("inf")
NAN = float("nan")
ROUNDER = 6755399441055744.0  # 1.5 * 2**52: what is added to it is rounded to an integer, which stands in the low bits
ROUNDER_BITS = 0x4338000000000000
_BIASED = ROUNDER + 1023.0  # the low bits are those of a float's exponent: shifted left they make a power of two
_BIASED_TWICE = ROUNDER + 2046.0
MAGNITUDE = (1 << 63) - 1
_MANTISSA = (1 << 52) - 1
_ONE_BITS = 1023 << 52
_HALF_ROOT_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2), rounded up
_TINY = 2.0**-1022
LN2 = 0.6931471805599453
LN2_HIGH = float.fromhex("0x1.62e42fefa3800p-1")  # 42 bits, so that its products with exponents are exact
LN2_LOW = 5.497923018708371e-14
PER_LN2 = 1.4426950408889634
_PER_LN10 = 0.4342944819032518
_LOG10_2_HIGH = float.fromhex("0x1.34413509f7800p-2")  # 42 bits
_LOG10_2_LOW = 2.8363394551044964e-14

# (exp(r) - 1 - r - r**2 / 2) / r**3 for |r| <= ln(2) / 2; times r**3, the error is below 1e-18.
_EXP = (
    0.16666666666666669, 0.041666666666666664, 0.008333333333330039, 0.0013888888888886537, 0.00019841269863171557,
    2.4801587317228724e-05, 2.7557268276905696e-06, 2.7557282838800484e-07, 2.5100472505694996e-08,
    2.09112987659402e-09,
)  # fmt: skip
_EXP_EVEN, _EXP_ODD = _EXP[::2], _EXP[1::2]

# (2 artanh(s) / s - 2) / s**2 in powers of s**2, for 1 + f = (1 + s) / (1 - s) from sqrt(1/2) to sqrt(2): an error
# below 5e-18 of the logarithm.
_LOG = (
    0.666666666666667, 0.3999999999989938, 0.28571428626031065, 0.2222221112572281, 0.18182889786191042,
    0.15331699633543858, 0.14616721179861816,
)  # fmt: skip
LOG_EVEN, LOG_ODD = _LOG[::2], _LOG[1::2]


@core
def expm1_small(r: Any) -> Any:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    z = r * r
    return r + z * (0.5 + (r * polynomial(z, _EXP_EVEN) + z * polynomial(z, _EXP_ODD)))


@core
def _scaled(y: Any, t: Any, k: Any) -> Any:
    """y * 2**k for y near 1 and whole -1100 <= k <= 1100, rounded once; t is k + _BIASED_TWICE.

    By two powers of two whose exponents are half of k, and the rest.
    """
    half = bits(k * 0.5 + _BIASED)
    return (y * number(half << 52)) * number((bits(t) - half) << 52)


@core
def clamped(x: Any, low: Any, high: Any) -> Any:
    """Return x, or the bound that it passes; NaN stays."""
    v = select(x > high, high, x)
    return select(v < low, low, v)


@core
def exp_of(high: Any, low: Any) -> Any:
    """exp(high + low) for |high| < 760 and |low| < 2**-10, within 1 ulp."""
    t = high * PER_LN2 + _BIASED_TWICE
    k = t - _BIASED_TWICE
    r = (high - k * LN2_HIGH) - (k * LN2_LOW - low)
    return _scaled(1.0 + expm1_small(r), t, k)


@core
def exp(x: Any) -> Any:
    """exp(x) within 1 ulp; above the largest number infinity, below the normal numbers rounded to a subnormal one."""
    return exp_of(clamped(x, -746.0, 710.0), 0.0)


@core
def exp2(x: Any) -> Any:
    """2**x within 1 ulp."""
    v = clamped(x, -1080.0, 1030.0)
    t = v + _BIASED_TWICE
    k = t - _BIASED_TWICE
    return _scaled(1.0 + expm1_small((v - k) * LN2), t, k)


@core
def expm1_eighth(x: Any) -> Any:
    """(exp(x) - 1) / 8 for x < 711, within 2 ulp: an eighth, so that nothing here overflows."""
    v = clamped(x, -40.0, 711.0)
    t = v * PER_LN2 + ROUNDER
    k = t - ROUNDER
    power = number((bits(t) - (ROUNDER_BITS - 1020)) << 52)  # 2**(k - 3)
    return expm1_small((v - k * LN2_HIGH) - k * LN2_LOW) * power + (power - 0.125)


@core
def expm1(x: Any) -> Any:
    """exp(x) - 1 within 2 ulp."""
    return 8.0 * expm1_eighth(x)


@core
def log_parts(x: Any) -> Any:
    """Return f and k with x = (1 + f) * 2**k and sqrt(1/2) <= 1 + f < sqrt(2), for 0 < x < infinity."""
    small = x < _TINY
    moved = bits(select(small, x * 2.0**54, x)) + (_ONE_BITS - _HALF_ROOT_BITS)
    f = number((moved & _MANTISSA) + _HALF_ROOT_BITS) - 1.0
    field = number(((moved & MAGNITUDE) >> 52) | 0x4330000000000000) - 2.0**52
    return f, field - select(small, 1077.0, 1023.0)


@core
def _log_tail(f: Any) -> Any:
    """f - log(1 + f) for sqrt(1/2) <= 1 + f < sqrt(2).

    With s = f / (2 + f): log(1 + f) = 2 s + s R(s**2), and 2 s = f - f s.
    """
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    half = 0.5 * f * f
    return half - s * (half + (z * polynomial(w, LOG_EVEN) + w * polynomial(w, LOG_ODD)))


@core
def _log_sum(f: Any, k: Any, low: Any) -> Any:
    """log(1 + f) + k log(2) + low, within 1 ulp."""
    return k * LN2_HIGH - ((_log_tail(f) - (k * LN2_LOW + low)) - f)


@core
def _log_limits(x: Any, y: Any) -> Any:
    """Return the logarithm y of x, or what it is for zero, infinity, negative numbers and NaN."""
    y = select(x < INF, y, x)
    y = select(x == 0.0, -INF, y)
    return select(x < 0.0, NAN, y)


@core
def log(x: Any) -> Any:
    """log(x) within 1 ulp; of zero minus infinity, of negative numbers NaN."""
    f, k = log_parts(x)
    return _log_limits(x, _log_sum(f, k, 0.0))


@core
def log2(x: Any) -> Any:
    """log2(x) within 2 ulp, exact for powers of two."""
    f, k = log_parts(x)
    return _log_limits(x, k + (f - _log_tail(f)) * PER_LN2)


@core
def log10(x: Any) -> Any:
    """log10(x) within 3 ulp."""
    f, k = log_parts(x)
    return _log_limits(x, k * _LOG10_2_HIGH + (k * _LOG10_2_LOW + (f - _log_tail(f)) * _PER_LN10))


@core
def log1p(x: Any) -> Any:
    """log(1 + x) within 1 ulp."""
    u = 1.0 + x
    whole = u - 1.0
    lost = (1.0 - (u - whole)) + (x - whole)  # of 1 + x
    f, k = log_parts(u)
    return _log_limits(select(x < INF, u, x), _log_sum(f, k, select(u == 0.0, 0.0, lost / u)))


@core
def log1p_unit(x: Any) -> Any:
    """log(1 + x) for 0 <= x <= 1, within 1 ulp."""
    u = 1.0 + x
    f, k = log_parts(u)
    return _log_sum(f, k, (x - (u - 1.0)) / u)


@core
def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)): an error of 2**-52 of the larger magnitude of x and y, or of 1."""
    apart = select(x == y, 0.0, abs(x - y))
    return select(x > y, x, y) + log1p_unit(exp(-apart))


@core
def logaddexp2(x: Any, y: Any) -> Any:
    """log2(2**x + 2**y): an error of 2**-51 of the larger magnitude of x and y, or of 1."""
    apart = select(x == y, 0.0, abs(x - y))
    return select(x > y, x, y) + log1p_unit(exp2(-apart)) * PER_LN2


@core
def logit(x: Any, low: Any, high: Any) -> Any:
    """log(v / (1 - v)) within 4 ulp, for v = x between the bounds."""
    v = clamped(x, low, high)
    middle = abs(v - 0.5) < 0.25  # there 2 v - 1 is exact: log1p((2 v - 1) / (1 - v))
    ratio = select(middle, 2.0 * v - 1.0, v) / (1.0 - v)
    u = select(middle, 1.0 + ratio, ratio)
    whole = u - 1.0
    lost = (1.0 - (u - whole)) + (ratio - whole)
    f, k = log_parts(u)
    return _log_limits(u, _log_sum(f, k, select(middle, lost / u, 0.0)))
