"""Compiled exact sums (CPU), in units; see ``sums`` and ``_jit_units``.

Those of float32 terms find the scale themselves, of integers half as wide: ``_jit_quantise`` does it for float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import both, compiled, float_of, larger
from vt_core.numerics._jit_units import (
    LIMIT_BITS,
    add_bits_each,
    magnitude,
    shift_for,
    take_shifts_off,
    unit_of,
    units_in,
)

_MAGNITUDE = np.int32(0x7FFFFFFF)


@compiled
def _add_bits_of_four(p: Any, q: Any, r: Any, s: Any, shifts: Any, into: Any) -> None:
    """Add the bits of four rows."""
    for i in range(p.size):
        shift = shifts[i]
        one = np.float64(p[i] + shift).view(np.int64) + np.float64(q[i] + shift).view(np.int64)
        two = np.float64(r[i] + shift).view(np.int64) + np.float64(s[i] + shift).view(np.int64)
        into[i] += one + two


@compiled
def _sum_along(x: Any, start: Any, a: Any, c: Any, step: Any, shift: Any) -> Any:
    """Return the sum of ``a`` runs of ``c`` neighbours."""
    total = np.int64(0)
    for i in range(a):
        at = start + i * step
        total += units_in(x[at : at + c], shift)
    return total * unit_of(shift)


@compiled
def _sum_across(x: Any, first: Any, a: Any, c: Any, steps: Any, shifts: Any, units: Any, out: Any) -> None:
    """Put the sums of neighbouring groups."""
    width, step, whole = out.size, steps[2], c - c % 4
    units[:] = 0
    for i in range(a):
        start = first + i * steps[0]
        for k in range(0, whole, 4):
            p = start + k * step
            q, r, s = p + step, p + 2 * step, p + 3 * step
            _add_bits_of_four(
                x[p : p + width], x[q : q + width], x[r : r + width], x[s : s + width], shifts, units
            )  # fmt: skip
        for k in range(whole, c):
            p = start + k * step
            add_bits_each(x[p : p + width], shifts, units)
    take_shifts_off(units, shifts, a * c)
    for i in range(width):
        out[i] = units[i] * unit_of(shifts[i])


@compiled
def along(x: Any, a: Any, c: Any, steps: Any, shifts: Any, out: Any, begin: Any, end: Any) -> None:
    """Sum groups ``begin`` to ``end`` of ``a`` runs of ``c`` neighbours."""
    for j in range(begin, end):
        out[j] = _sum_along(x, j * steps[1], a, c, steps[0], shifts[j])


@compiled
def across(x: Any, a: Any, c: Any, d: Any, steps: Any, tile: Any, shifts: Any, out: Any, begin: Any, end: Any) -> None:
    """Sum groups that lie side by side, ``d`` in a row; tiles ``begin`` to ``end`` of ``tile`` groups."""
    tiles = (d + tile - 1) // tile
    units = np.empty(tile, np.int64)
    for item in range(begin, end):
        j, first = item // tiles, item % tiles * tile
        width = min(tile, d - first)
        group = j * d + first
        mine, to = shifts[group : group + width], out[group : group + width]
        _sum_across(x, j * steps[1] + first, a, c, steps, mine, units[:width], to)


@compiled
def _largest_in(pattern: Any) -> Any:
    """Return the bits of the largest magnitude among those of float32 values; NaN and infinities count."""
    largest = np.int32(0)
    for i in range(pattern.size):
        largest = larger(largest, both(pattern[i], _MAGNITUDE))
    return largest


@compiled
def _each_largest(pattern: Any, into: Any) -> None:
    """Raise ``into`` to the bits of the magnitudes of a row."""
    for i in range(pattern.size):
        into[i] = larger(into[i], both(pattern[i], _MAGNITUDE))


@compiled
def _each_largest_of_four(p: Any, q: Any, r: Any, s: Any, into: Any) -> None:
    """Do the same for four rows at once."""
    for i in range(p.size):
        one = larger(both(p[i], _MAGNITUDE), both(q[i], _MAGNITUDE))
        two = larger(both(r[i], _MAGNITUDE), both(s[i], _MAGNITUDE))
        into[i] = larger(into[i], larger(one, two))


@compiled
def _largest_across(pattern: Any, first: Any, a: Any, c: Any, steps: Any, into: Any) -> None:
    """Put the bits of the largest magnitudes of neighbouring groups."""
    width, step, whole = into.size, steps[2], c - c % 4
    into[:] = 0
    for i in range(a):
        start = first + i * steps[0]
        for k in range(0, whole, 4):
            p = start + k * step
            q, r, s = p + step, p + 2 * step, p + 3 * step
            _each_largest_of_four(
                pattern[p : p + width], pattern[q : q + width], pattern[r : r + width], pattern[s : s + width], into
            )  # fmt: skip
        for k in range(whole, c):
            p = start + k * step
            _each_largest(pattern[p : p + width], into)


@compiled
def _widened(bits: Any) -> Any:
    """Return the bits of a float32 value in float64."""
    return magnitude(float_of(bits, np.float32(0.0)))


@compiled
def along_single(x: Any, a: Any, c: Any, steps: Any, bits: Any, fine: Any, out: Any, begin: Any, end: Any) -> None:
    """Do what ``along`` does with float32 terms of ``bits`` bits; a group that is not ``fine`` ends it."""
    pattern = x.view(np.int32)
    for j in range(begin, end):
        start, most = j * steps[1], np.int32(0)
        for i in range(a):
            at = start + i * steps[0]
            most = larger(most, _largest_in(pattern[at : at + c]))
        largest = _widened(most)
        fine[j] = largest < LIMIT_BITS
        if not fine[j]:
            return
        out[j] = _sum_along(x, start, a, c, steps[0], shift_for(largest, bits))


@compiled
def across_single(
    x: Any, a: Any, c: Any, d: Any, steps: Any, tile: Any, bits: Any, fine: Any, out: Any, begin: Any, end: Any
) -> None:  # fmt: skip
    """Do what ``across`` does with float32 terms of ``bits`` bits; a group that is not ``fine`` ends it."""
    pattern, tiles = x.view(np.int32), (d + tile - 1) // tile
    units, most, shifts = np.empty(tile, np.int64), np.empty(tile, np.int32), np.empty(tile)
    for item in range(begin, end):
        j, first = item // tiles, item % tiles * tile
        width = min(tile, d - first)
        group, start = j * d + first, j * steps[1] + first
        _largest_across(pattern, start, a, c, steps, most[:width])
        for i in range(width):
            largest = _widened(most[i])
            fine[group + i] = largest < LIMIT_BITS
            if not fine[group + i]:
                return
            shifts[i] = shift_for(largest, bits)
        _sum_across(x, start, a, c, steps, shifts[:width], units[:width], out[group : group + width])
