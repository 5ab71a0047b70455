"""Cores of circular and hyperbolic functions and their inverses (see ``_jit_elementary_base``)."""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary import INF, LN2, NAN, ROUNDER, expm1_eighth, log1p
from vt_core.numerics._jit_elementary_base import bits, core, polynomial, root, select

LARGEST_ANGLE = 2.0**20
"""Up to here the reduction of angles keeps all digits."""
_PER_HALF_PI = 0.6366197723675814
_HALF_PI_1 = float.fromhex("0x1.921fb54400000p+0")  # 33 bits each: products with integers up to 2**20 are exact
_HALF_PI_2 = float.fromhex("0x1.0b4611a600000p-34")
_HALF_PI_3 = 2.0222662487959506e-21
_HALF_PI = 1.5707963267948966
_HALF_PI_LOW = 6.123233995736766e-17
_QUARTER_PI = 0.7853981633974483
_QUARTER_PI_LOW = 3.061616997868383e-17

# (sin(x) - x) / x**3 and (cos(x) - 1 + x**2 / 2) / x**4 in powers of x**2, for |x| <= pi / 4; errors below 6e-18.
_SIN = (
    -0.16666666666666666, 0.008333333333333331, -0.00019841269841265017, 2.755731921930192e-06,
    -2.5052106219521895e-08, 1.6058529572267877e-10, -7.586576588171073e-13,
)  # fmt: skip
_COS = (
    0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05, -2.7557317260008837e-07,
    2.0876143827993133e-09, -1.1382456778061306e-11,
)  # fmt: skip

# (atan(t) - t) / t**3 in powers of t**2 for |t| <= tan(pi / 8), (asin(s) - s) / s**3 for |s| <= 1 / 2; below 3e-18.
_ATAN = (
    -0.3333333333333333, 0.19999999999999804, -0.14285714285659779, 0.11111111105150588, -0.09090908753259112,
    0.07692296368042296, -0.0666642476020052, 0.05878927554473807, -0.05230443640686948, 0.045515447340221615,
    -0.03456931506332609, 0.016284375050043393,
)  # fmt: skip
_ASIN = (
    0.16666666666666666, 0.07500000000000119, 0.04464285714255019, 0.030381944475693704, 0.022372157435623815,
    0.017352816768546473, 0.013963775787848137, 0.011566511821890942, 0.00962140274734483, 0.009322101501082774,
    0.0030350071727267623, 0.019579201619744684, -0.019277545928584557, 0.02963502626354855,
)  # fmt: skip


@core
def _sin_cos(x: Any) -> Any:
    """Return sine and cosine of x less a multiple of pi / 2, and the multiple's last bits, for |x| <= LARGEST_ANGLE."""
    t = x * _PER_HALF_PI + ROUNDER
    k = t - ROUNDER
    first = x - k * _HALF_PI_1  # exact
    second = k * _HALF_PI_2
    r = first - second
    shifted = r - first
    lost = (first - (r - shifted)) - (second + shifted)
    correction = lost - k * _HALF_PI_3
    y = r + correction
    low = (r - y) + correction
    z = y * y
    half = 0.5 * z
    sine = y + (y * z * polynomial(z, _SIN) + low * (1.0 - half))
    near = 1.0 - half
    cosine = near + (((1.0 - near) - half) + (z * z * polynomial(z, _COS) - y * low))
    return sine, cosine, bits(t)


@core
def sin(x: Any) -> Any:
    """sin(x) within 1 ulp for |x| <= LARGEST_ANGLE."""
    sine, cosine, quadrant = _sin_cos(x)
    y = select((quadrant & 1) == 0, sine, cosine)
    return select((quadrant & 2) == 0, y, -y)


@core
def cos(x: Any) -> Any:
    """cos(x) within 1 ulp for |x| <= LARGEST_ANGLE."""
    sine, cosine, quadrant = _sin_cos(x)
    y = select((quadrant & 1) == 0, cosine, sine)
    return select(((quadrant + 1) & 2) == 0, y, -y)


@core
def tan(x: Any) -> Any:
    """tan(x) within 3 ulp for |x| <= LARGEST_ANGLE."""
    sine, cosine, quadrant = _sin_cos(x)
    even = (quadrant & 1) == 0
    return select(even, sine, -cosine) / select(even, cosine, sine)


@core
def _angle(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y) of the first quadrant and what it lacks: pi / 2, pi / 4 or nothing."""
    large = y > 2.414213562373095 * x
    middle = y > 0.41421356237309503 * x
    t = select(large, -x, select(middle, y - x, y)) / select(large, y, select(middle, y + x, x))
    z = t * t
    near = t * z * polynomial(z, _ATAN)
    high = select(large, _HALF_PI, select(middle, _QUARTER_PI, 0.0))
    low = select(large, _HALF_PI_LOW, select(middle, _QUARTER_PI_LOW, 0.0))
    return high + (t + (near + low))


@core
def atan(x: Any) -> Any:
    """atan(x) within 2 ulp."""
    y = _angle(abs(x), 1.0)
    return select(x < 0.0, -y, y)


@core
def atan2(y: Any, x: Any) -> Any:
    """Return the angle of the point (x, y) within 3 ulp."""
    a, b = abs(y), abs(x)
    scale = select((a > 2.0**1000) | (b > 2.0**1000), 2.0**-100, 1.0)
    endless = (a == INF) & (b == INF)
    zero = (a == 0.0) & (b == 0.0)
    angle = _angle(select(endless, 1.0, a * scale), select(endless | zero, 1.0, b * scale))
    angle = select(bits(x) < 0, 2.0 * _HALF_PI - (angle - 2.0 * _HALF_PI_LOW), angle)
    return select(bits(y) < 0, -angle, angle)


@core
def _arc(x: Any) -> Any:
    """Return s and asin(s) - s: s is |x| up to 1 / 2, else sqrt((1 - |x|) / 2), the sine of half the complement."""
    a = abs(x)
    z = select(a <= 0.5, a * a, (1.0 - a) * 0.5)
    s = select(a <= 0.5, a, root(z))
    return s, s * z * polynomial(z, _ASIN)


@core
def asin(x: Any) -> Any:
    """asin(x) within 2 ulp."""
    s, more = _arc(x)
    y = select(abs(x) <= 0.5, s + more, _HALF_PI - (2.0 * (s + more) - _HALF_PI_LOW))
    return select(x < 0.0, -y, y)


@core
def acos(x: Any) -> Any:
    """acos(x) within 2 ulp."""
    s, more = _arc(x)
    small = _HALF_PI - (x - (_HALF_PI_LOW - select(x < 0.0, -more, more)))
    large = select(x < 0.0, 2.0 * (_HALF_PI - (s + (more - _HALF_PI_LOW))), 2.0 * (s + more))
    return select(abs(x) <= 0.5, small, large)


@core
def sinh(x: Any) -> Any:
    """sinh(x) within 4 ulp."""
    a = abs(x)
    eighth = expm1_eighth(a)
    t = 8.0 * eighth
    y = 4.0 * eighth + 0.5 * select(a > 40.0, 1.0, t / (t + 1.0))
    return select(x < 0.0, -y, y)


@core
def cosh(x: Any) -> Any:
    """cosh(x) within 2 ulp; from exp(|x|) / 8, which does not overflow where the result does not."""
    eighth = expm1_eighth(abs(x)) + 0.125
    return 4.0 * eighth + 0.0625 / eighth


@core
def asinh(x: Any) -> Any:
    """asinh(x) within 4 ulp."""
    a = abs(x)
    huge = a > 2.0**60
    v = select(huge, 1.0, a)
    square = v * v
    y = log1p(select(huge, a, v + square / (1.0 + root(1.0 + square)))) + select(huge, LN2, 0.0)
    return select(x < 0.0, -y, y)


@core
def acosh(x: Any) -> Any:
    """acosh(x) within 4 ulp."""
    huge = x > 2.0**60
    t = select(huge, 1.0, x - 1.0)
    y = log1p(select(huge, x, t + root(t * (2.0 + t)))) + select(huge, LN2, 0.0)
    return select(x < 1.0, NAN, y)


@core
def atanh(x: Any) -> Any:
    """atanh(x) within 4 ulp."""
    a = abs(x)
    y = 0.5 * log1p((a + a) / (1.0 - a))
    return select(x < 0.0, -y, y)


@core
def hypot(x: Any, y: Any) -> Any:
    """sqrt(x**2 + y**2) within 2 ulp, without overflow of the squares."""
    a, b = abs(x), abs(y)
    large = (a > 2.0**500) | (b > 2.0**500)
    small = (a < 2.0**-400) & (b < 2.0**-400)
    scale = select(large, 2.0**-600, select(small, 2.0**600, 1.0))
    back = select(large, 2.0**600, select(small, 2.0**-600, 1.0))
    p, q = a * scale, b * scale
    return select((a == INF) | (b == INF), INF, root(p * p + q * q) * back)
