"""Compiled exact sums of squared deviations (CPU); see ``squares``.

The squares are counted in units (``_jit_units``), in two passes that the second cache holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled
from vt_core.numerics._jit_units import magnitude, shift_for, square_units_in, unit_of

_LIMIT_BITS = np.int64((1023 + 240) << 52)


@compiled
def _largest_deviation(x: Any, centre: Any) -> Any:
    """Return the bits of the largest magnitude; NaN and infinities count, and are larger than all others."""
    largest = np.int64(0)
    for i in range(x.size):
        largest = max(largest, magnitude(x[i] - centre))
    return largest


@compiled
def squares(x: Any, terms: Any, centres: Any, bits: Any, out: Any, begin: Any, end: Any) -> Any:
    """Sum the squared deviations of groups ``begin`` to ``end`` of ``terms`` neighbours; False for values too large."""
    for g in range(begin, end):
        mine, centre = x[g * terms : (g + 1) * terms], centres[g]
        largest = _largest_deviation(mine, centre)
        if largest >= _LIMIT_BITS:
            return False
        d = np.int64(largest).view(np.float64)
        shift = shift_for(magnitude(d * d), bits)  # below 2**480 by the limit
        out[g] = square_units_in(mine, centre, shift) * unit_of(shift)
    return True
