"""Sums in units, for all compiled files (CPU): terms that are multiples of one power of two are counted as integers.

With ``shift`` of 1.5 * 2**52 units, the bits of ``v + shift`` are those of ``shift`` plus the number of units in ``v``,
rounded. So the sums are sums of integers, which LLVM vectorises: their order is nobody's choice, and since they wrap
around, the bits of ``shift`` may be taken off once for all terms. Groups with a NaN, an infinity or a term of 2**480
and more cannot be counted so. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled

MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)
EXPONENT = np.int64(0x7FF0000000000000)
LOWEST = np.int64(1022 - 400)
HIGHEST = np.int64(1022 + 480)
LIMIT = 2.0**480
LIMIT_BITS = np.int64((1023 + 480) << 52)
_HALF = np.int64(1 << 51)


@compiled
def shift_for(largest: Any, bits: Any) -> Any:
    """Return 1.5 * 2**52 units for a group whose largest finite magnitude has the bits ``largest``."""
    field = min(max(largest >> 52, LOWEST), HIGHEST)
    return np.int64(((field + 53 - bits) << 52) | (1 << 51)).view(np.float64)


@compiled
def unit_of(shift: Any) -> Any:
    """Return the unit of a shift."""
    return np.int64(np.float64(shift).view(np.int64) - _HALF).view(np.float64) * 2.0**-52


@compiled
def units_in(x: Any, shift: Any) -> Any:
    """Return the sum of ``x`` in units."""
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(x[i] + shift).view(np.int64)
    return without_shift(total, shift, x.size)


@compiled
def without_shift(bits: Any, shift: Any, count: Any) -> Any:
    """Return the units in a sum of the bits of ``count`` terms, each with ``shift``."""
    return bits - np.int64(count) * np.float64(shift).view(np.int64)


@compiled
def take_shifts_off(bits: Any, shifts: Any, count: Any) -> None:
    """Do the same for neighbouring sums, in place, each with its own shift."""
    for i in range(bits.size):
        bits[i] = without_shift(bits[i], shifts[i], count)


@compiled
def magnitude(value: Any) -> Any:
    """Return the bits of a magnitude; NaN and infinities are larger than all others."""
    return np.float64(value).view(np.int64) & MAGNITUDE


@compiled
def largest_in(pattern: Any) -> Any:
    """Return the bits of the largest magnitude among those of ``pattern``; NaN and infinities count."""
    largest = np.int64(0)
    for i in range(pattern.size):
        largest = max(largest, pattern[i] & MAGNITUDE)
    return largest


@compiled
def raise_to(x: Any, most: Any, new: Any) -> None:
    """Put the larger bits elsewhere: in place it would be a masked store, slow on some processors."""
    for i in range(x.size):
        new[i] = max(most[i], magnitude(x[i]))


@compiled
def each_largest(pattern: Any, into: Any) -> None:
    """Raise ``into`` to the bits of the magnitudes, NaN and infinities included."""
    for i in range(pattern.size):
        into[i] = max(into[i], pattern[i] & MAGNITUDE)


@compiled
def add_units_each(x: Any, shifts: Any, origins: Any, into: Any) -> None:
    """Add a row of terms to its sums in units, each with its own shift; ``origins`` are the bits of ``shifts``."""
    for i in range(x.size):
        into[i] += np.float64(x[i] + shifts[i]).view(np.int64) - origins[i]


@compiled
def add_bits_each(x: Any, shifts: Any, into: Any) -> None:
    """Add the bits of a row of terms, each with its own shift."""
    for i in range(x.size):
        into[i] += np.float64(x[i] + shifts[i]).view(np.int64)


@compiled
def square_units_in(x: Any, centre: Any, shift: Any) -> Any:
    """Return the sum of ``(x - centre)**2`` in units."""
    total = np.int64(0)
    for i in range(x.size):
        d = x[i] - centre
        total += np.float64(d * d + shift).view(np.int64)
    return without_shift(total, shift, x.size)


@compiled
def round_any(v: Any, shift: Any) -> Any:
    """Round one value of any kind to whole units: magnitudes of 2**480 and more become infinite, NaN stays."""
    r = (v + shift) - shift
    far = np.copysign(np.inf, v)
    r = far if abs(v) >= LIMIT else r
    return r if v == v else v
