"""Compiled exact sums of scattered rows (CPU); see ``scatter``.

As in ``_jit_sums`` the terms are counted in units as integers, whose sum no order changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled
from vt_core.numerics._jit_units import (
    EXPONENT,
    LIMIT_BITS,
    add_units_each,
    round_any,
    shift_for,
    unit_of,
)
from vt_core.numerics._jit_units import magnitude as bits_of_magnitude

TILE = 512


@compiled
def group(index: Any, size: Any) -> Any:
    """Group the terms by the row that ``index`` says, one of ``size``.

    Returns how many rows occur (-1 for an index outside), these rows, where each one's terms begin in the order, and
    the order.
    """
    terms = index.size
    slots, mine = np.full(size, -1, np.int64), np.empty(terms, np.int64)
    rows, counts = np.empty(terms, np.int64), np.zeros(terms, np.int64)
    order, offsets = np.empty(terms, np.int64), np.zeros(terms + 1, np.int64)
    used = 0
    for i in range(terms):
        r = index[i]
        if r < 0 or r >= size:
            return -1, rows, offsets, order
        s = slots[r]
        if s < 0:
            s = used
            slots[r] = s
            rows[s] = r
            used += 1
        mine[i] = s
        counts[s] += 1
    for s in range(used):
        offsets[s + 1] = offsets[s] + counts[s]
        counts[s] = offsets[s]
    for i in range(terms):
        s = mine[i]
        order[counts[s]] = i
        counts[s] += 1
    return used, rows, offsets, order


@compiled
def _bits(terms: Any) -> Any:
    """Return the bits of a term whose sum is exact, ``sum_bits(terms)``."""
    left, bits = terms - 1, 51
    while left > 0:
        left >>= 1
        bits -= 1
    return bits


@compiled
def _far_sum(x: Any, width: Any, column: Any, order: Any, bits: Any) -> Any:
    """Return the sum of terms with a NaN, an infinity or a magnitude of 2**480 and more, which counts as infinite."""
    largest = np.int64(0)
    for k in range(order.size):
        magnitude = bits_of_magnitude(x[order[k] * width + column])
        largest = max(largest, magnitude if magnitude < EXPONENT else np.int64(0))
    shift, total = shift_for(largest, bits), 0.0
    for k in range(order.size):
        total += round_any(x[order[k] * width + column], shift)
    return total


@compiled
def _raise(x: Any, into: Any) -> None:
    """Raise ``into`` to the bits of the magnitudes, NaN and infinities included."""
    for i in range(x.size):
        into[i] = max(into[i], bits_of_magnitude(x[i]))


@compiled
def _set_shifts(largest: Any, bits: Any, shifts: Any) -> None:
    for i in range(shifts.size):
        shifts[i] = shift_for(largest[i], bits)


@compiled
def _add_units(units: Any, shifts: Any, into: Any) -> None:
    for i in range(into.size):
        into[i] += units[i] * unit_of(shifts[i])


@compiled
def _add_one(x: Any, largest: Any, into: Any) -> None:
    """Add a row of terms that meet no others."""
    for i in range(into.size):
        shift = shift_for(largest[i], 51)
        into[i] += (x[i] + shift) - shift


@compiled
def _to_values(units: Any, shifts: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = units[i] * unit_of(shifts[i])


@compiled
def add_rows(x: Any, width: Any, rows: Any, offsets: Any, order: Any, out: Any, begin: Any, end: Any) -> None:
    """Add to rows of ``width`` of ``out`` the sums of their terms; items ``begin`` to ``end``, TILE columns each.

    Both may be float32: the sums are float64, and what is stored is cut.
    """
    tiles = (width + TILE - 1) // TILE
    largest, totals, shifts = np.empty(TILE, np.int64), np.empty(TILE, np.int64), np.empty(TILE, np.float64)
    for item in range(begin, end):
        s, first = item // tiles, item % tiles * TILE
        size = min(TILE, width - first)
        mine = order[offsets[s] : offsets[s + 1]]
        bits, to = _bits(mine.size), rows[s] * width + first
        big, units, scale, into = largest[:size], totals[:size], shifts[:size], out[to : to + size]
        big[:] = 0
        for k in range(mine.size):
            at = mine[k] * width + first
            _raise(x[at : at + size], big)
        if big.max() >= LIMIT_BITS:
            for i in range(size):
                into[i] += _far_sum(x, width, first + i, mine, bits)
            continue
        if mine.size == 1:
            at = mine[0] * width + first
            _add_one(x[at : at + size], big, into)
            continue
        _set_shifts(big, bits, scale)
        units[:] = 0
        for k in range(mine.size):
            at = mine[k] * width + first
            add_units_each(x[at : at + size], scale, scale.view(np.int64), units)
        _add_units(units, scale, into)


@compiled
def _largest_of_line(x: Any, index: Any, size: Any, largest: Any, counts: Any) -> Any:
    """Find each element's largest magnitude and number of terms; return the largest, -1 for an index outside."""
    tile = x.shape[1]
    most = np.int64(0)
    for i in range(x.shape[0]):
        for c in range(tile):
            r = index[i, c]
            if r < 0 or r >= size:
                return np.int64(-1)
            at, magnitude = r * tile + c, bits_of_magnitude(x[i, c])
            largest[at] = max(largest[at], magnitude)
            counts[at] += 1
            most = max(most, magnitude)
    return most


@compiled
def _shifts_of_line(largest: Any, counts: Any, shifts: Any) -> None:
    for i in range(shifts.size):
        length = (np.float64(counts[i] - 1).view(np.int64) >> 52) - 1022  # the bit length of a positive number
        shifts[i] = shift_for(largest[i], 51 - (length if counts[i] > 1 else 0))


@compiled
def _units_of_line(x: Any, index: Any, shifts: Any, totals: Any) -> None:
    tile, origins = x.shape[1], shifts.view(np.int64)
    for i in range(x.shape[0]):
        for c in range(tile):
            at = index[i, c] * tile + c
            totals[at] += np.float64(x[i, c] + shifts[at]).view(np.int64) - origins[at]


@compiled
def _far_line(x: Any, index: Any, largest: Any, counts: Any, shifts: Any, sums: Any) -> None:
    """Sum a line with a NaN, an infinity or a magnitude of 2**480 and more, which counts as infinite."""
    tile = x.shape[1]
    largest[:] = 0
    for i in range(x.shape[0]):
        for c in range(tile):
            at, magnitude = index[i, c] * tile + c, bits_of_magnitude(x[i, c])
            largest[at] = max(largest[at], magnitude if magnitude < EXPONENT else np.int64(0))
    _shifts_of_line(largest, counts, shifts)
    sums[:] = 0.0
    for i in range(x.shape[0]):
        for c in range(tile):
            at = index[i, c] * tile + c
            sums[at] += round_any(x[i, c], shifts[at])


@compiled
def _add_line(sums: Any, counts: Any, out: Any) -> None:
    tile = out.shape[1]
    for i in range(out.shape[0]):
        for c in range(tile):
            out[i, c] = out[i, c] + sums[i * tile + c] if counts[i * tile + c] > 0 else out[i, c]


@compiled
def add_lines(x: Any, index: Any, out: Any, tile: Any, begin: Any, end: Any) -> Any:
    """Add elements ``x`` along dimension 1 of ``out``, where ``index`` says; False for an index outside.

    All three are [lines, elements, columns]; an item is ``tile`` columns of a line.
    """
    size, columns = out.shape[1], out.shape[2]
    tiles = (columns + tile - 1) // tile
    space, scale = np.empty((3, size * tile), np.int64), np.empty(size * tile, np.float64)
    for item in range(begin, end):
        o, first = item // tiles, item % tiles * tile
        last = min(first + tile, columns)
        used = size * (last - first)
        largest, counts, totals, shifts = space[0, :used], space[1, :used], space[2, :used], scale[:used]
        mine, where = x[o, :, first:last], index[o, :, first:last]
        largest[:] = 0
        counts[:] = 0
        totals[:] = 0
        most = _largest_of_line(mine, where, size, largest, counts)
        if most < 0:
            return False
        sums = totals.view(np.float64)
        if most >= LIMIT_BITS:
            _far_line(mine, where, largest, counts, shifts, sums)
        else:
            _shifts_of_line(largest, counts, shifts)
            _units_of_line(mine, where, shifts, totals)
            _to_values(totals, shifts, sums)
        _add_line(sums, counts, out[o, :, first:last])
    return True
