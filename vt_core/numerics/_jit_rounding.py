"""How compiled loops round one value onto a grid (CPU); ``_jit_base`` explains tame values and ``params``."""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import bits_of, both, compiled, float_of, larger, plus

EXPONENT_BITS = 0x7FF0000000000000


@compiled
def rnd(v: Any, params: Any) -> Any:
    """Round float64 onto the grid, for all grids below float64; -0 stays.

    Adding and subtracting ``c = 2**(E + 53 - precision)``, ``E`` the exponent of ``v`` (at least ``emin``),
    makes the adder round to the grid's last place, ties to even.
    """
    cap, max_value, smallest_binade, shift = params
    a = abs(v)
    a = cap if a > cap else a
    c = float_of(max(bits_of(a) & EXPONENT_BITS, smallest_binade) + shift, a)
    r = (a + c) - c
    r = np.inf if r > max_value else r
    return np.copysign(r, v)


@compiled
def binade_of(v: Any, exponent: Any, smallest: Any) -> Any:
    """Return the exponent bits of ``v``, or ``smallest`` if they are less."""
    return larger(both(bits_of(v), exponent), smallest)


@compiled
def tame(v: Any, exponent: Any, smallest: Any, shift: Any) -> Any:
    """Round a tame value, or one within tau of it, as ``rnd`` does.

    ``c`` is half as large again, so that it serves both signs; a zero is +0.
    """
    c = float_of(plus(binade_of(v, exponent, smallest), shift), v)
    return (v + c) - c
