"""Cores of the error function and what is made of it (see ``_jit_elementary_base``).

The complement comes from exp(x**2) erfc(x), which one polynomial covers for all x >= 0, so that its tail and that of
gelu keep their relative accuracy; the square in the exponential is that of the upper half of x, which is exact, and a
correction.
"""

from __future__ import annotations

from typing import Any

from vt_core.numerics._jit_elementary import INF, NAN, clamped, exp_of, log
from vt_core.numerics._jit_elementary_base import bits, core, number, polynomial, root, select

_UPPER_HALF = ~((1 << 27) - 1)
_ROOT_HALF = 0.7071067811865476
_PER_ROOT_2PI = 0.3989422804014327
_TWO_PER_ROOT_PI = 1.1283791670955126

# (1 + 2 x) exp(x**2) erfc(x) for 0 <= x <= 28 in powers of (x - 3.5) / (x + 3.5); relative error 2e-17.
_COMPLEMENT = (
    1.2423492448711544, -0.1400091801376194, -0.01055559633221672, 0.0975190951532564, -0.11508959816029005,
    0.08798315382496273, -0.04882332582549299, 0.019099330940569065, -0.004215019938415131, -0.0003022678590732155,
    0.0005643846469939224, -0.00012151253078729825, -4.2783309692173314e-05, 2.426135327666471e-05,
    2.331582282314354e-06, -3.815475922801578e-06, -5.063489253619096e-08, 6.020760226252401e-07,
    -1.5499690462950355e-10, -9.52273777109586e-08, -4.77568259240498e-09, 1.1900522717370351e-08,
    1.5919191796770944e-09, -4.5715906580257253e-10,
)  # fmt: skip
_COMPLEMENT_EVEN, _COMPLEMENT_ODD = _COMPLEMENT[::2], _COMPLEMENT[1::2]

# erf(x) / x - 1 for |x| <= 1 in powers of x**2; relative error 2e-17.
_NEAR_ZERO = (
    0.12837916709551256, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
    -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)  # fmt: skip
_NEAR_ZERO_EVEN, _NEAR_ZERO_ODD = _NEAR_ZERO[::2], _NEAR_ZERO[1::2]

# erfinv to 1e-5: over x in powers of w = -log(1 - x**2) up to 5, then itself in powers of sqrt(w).
_INVERSE = (
    0.8862263780403664, 0.23202778302084298, 0.011487865993264342, -0.002230183103392054, -0.00021839925164218805,
    8.981545378348538e-05, -9.406510159157402e-06, 3.561808433218279e-07,
)  # fmt: skip
_INVERSE_TAIL = (
    0.15484577597728952, 0.5942820329319555, 0.21265456120352325, -0.06187779569004798, 0.011058603128064087,
    -0.0012088071658483983, 7.441275718490507e-05, -1.981352442659665e-06,
)  # fmt: skip


@core
def _bell(x: Any, factor: Any) -> Any:
    """exp(-factor x**2) for 0 <= x <= 40 and a factor of 1 or 1/2, within 2 ulp."""
    upper = number(bits(x) & _UPPER_HALF)
    return exp_of(-factor * (upper * upper), -factor * ((x - upper) * (x + upper)))


@core
def _complement_over_bell(x: Any) -> Any:
    """exp(x**2) erfc(x) for 0 <= x <= 28."""
    q = (x - 3.5) / (x + 3.5)
    z = q * q
    return (polynomial(z, _COMPLEMENT_EVEN) + q * polynomial(z, _COMPLEMENT_ODD)) / (1.0 + 2.0 * x)


@core
def erfc(x: Any) -> Any:
    """1 - erf(x) within 2**-49 of itself."""
    a = clamped(abs(x), 0.0, 28.0)
    tail = _bell(a, 1.0) * _complement_over_bell(a)
    return select(x < 0.0, 2.0 - tail, tail)


@core
def _erf_near_zero(x: Any) -> Any:
    """erf(x) for |x| <= 1, within 1 ulp."""
    z = x * x
    w = z * z
    return x + x * (polynomial(w, _NEAR_ZERO_EVEN) + z * polynomial(w, _NEAR_ZERO_ODD))


@core
def erf(x: Any) -> Any:
    """erf(x) within 2 ulp."""
    a = clamped(abs(x), 0.0, 6.0)
    far = 1.0 - exp_of(-(a * a), 0.0) * _complement_over_bell(a)
    return select(a < 1.0, _erf_near_zero(x), select(x < 0.0, -far, far))


@core
def erfinv(x: Any) -> Any:
    """The inverse of erf within 2**-49 of itself: a start, and one step of Halley's method, which triples the digits.

    From 1/2 on the step works with the complements, of which 1 - |x| is exact.
    """
    a = abs(x)
    b = 1.0 - a
    w = -log(b * (1.0 + a))
    start = select(w < 5.0, a * polynomial(w, _INVERSE), polynomial(root(w), _INVERSE_TAIL))
    start = clamped(start, 0.0, 6.0)
    bell = _bell(start, 1.0)
    apart = select(a < 0.5, _erf_near_zero(start) - a, b - bell * _complement_over_bell(start))
    step = apart / (_TWO_PER_ROOT_PI * bell)
    y = start - step / (1.0 + start * step)
    y = select(a < 1.0, y, select(a == 1.0, INF, NAN))
    return select(x < 0.0, -y, y)


@core
def _normal(x: Any) -> Any:
    """Return the distribution function of the standard normal distribution at x, and exp(-x**2 / 2)."""
    a = clamped(abs(x), 0.0, 39.0)
    bell = _bell(a, 0.5)
    tail = 0.5 * bell * _complement_over_bell(a * _ROOT_HALF)
    return select(x > 0.0, 1.0 - tail, tail), bell


@core
def gelu(x: Any) -> Any:
    """x times the distribution function at x, within 2**-49 of itself."""
    share, _ = _normal(x)
    return x * share


@core
def gelu_backward(grad: Any, x: Any) -> Any:
    """grad times the derivative of gelu, which has an error of 2**-51."""
    share, bell = _normal(x)
    return grad * (share + x * (bell * _PER_ROOT_2PI))
