"""Compiled forward pass of the exact normalisations (CPU); see ``norms``. Loops run over slices: these are vectorised.

Floats in ascending order are integers in ascending order once the magnitude bits of negative ones are inverted: such
a *key* keeps the smallest and the largest value of a group, from which the largest of all later terms follows, for
each step of the form is monotonic. So every sum takes one pass, by the integers of ``_jit_units``.

``x`` and ``y`` are float64 or float32, all else is float64: what is read from ``x`` is widened before anything is done.

A group with a NaN, an infinity or a term of 2**480 and more is not ``fine`` and left to the plain form.
No fastmath: nothing is contracted to an FMA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_units import (
    LIMIT_BITS,
    MAGNITUDE,
    add_bits_each,
    shift_for,
    square_units_in,
    take_shifts_off,
    unit_of,
    units_in,
)

_LOWEST_KEY = np.int64(-0x8000000000000000)
PADDING = 8
"""Values between groups that are copied together: a power of two apart, they would share a few places of the cache."""


@compiled_ieee
def _key(bits: Any) -> Any:
    """Return the key of a pattern, and the pattern of a key."""
    return bits ^ ((bits >> 63) & MAGNITUDE)


@compiled_ieee
def _value(key: Any) -> Any:
    return np.int64(_key(key)).view(np.float64)


@compiled_ieee
def _largest(top: Any, bottom: Any) -> Any:
    """Return the bits of the largest magnitude between two keys; NaN is larger than infinity."""
    return max(top, -1 - bottom)


@compiled_ieee
def _largest_square(top: Any, bottom: Any, mean: Any) -> Any:
    """Return the bits of the largest (x - mean)**2 between two keys."""
    reach = max(abs(_value(top) - mean), abs(_value(bottom) - mean))
    return np.float64(reach * reach).view(np.int64)


@compiled_ieee
def _copy(x: Any, into: Any) -> Any:
    """Widen ``x`` into float64; return the keys of the largest and the smallest value."""
    top, bottom = _LOWEST_KEY, MAGNITUDE
    for i in range(x.size):
        value = np.float64(x[i])
        into[i] = value
        key = _key(value.view(np.int64))
        top = max(top, key)
        bottom = min(bottom, key)
    return top, bottom


@compiled_ieee
def _statistics(x: Any, top: Any, bottom: Any, bits: Any, centred: Any) -> Any:
    """Return mean, sum of squares and whether all is fine, for one group whose values lie between two keys."""
    mean = 0.0
    largest = _largest(top, bottom)
    if largest >= LIMIT_BITS:
        return mean, mean, False
    if centred:
        shift = shift_for(largest, bits)
        mean = (units_in(x, shift) * unit_of(shift)) / np.float64(x.size)
    largest = _largest_square(top, bottom, mean)
    if largest >= LIMIT_BITS:
        return mean, mean, False
    shift = shift_for(largest, bits)
    return mean, square_units_in(x, mean, shift) * unit_of(shift), True


@compiled_ieee
def _inverse(squares: Any, terms: Any, eps: Any) -> Any:
    return 1.0 / np.sqrt(squares / np.float64(terms) + eps)


@compiled_ieee
def _apply(x: Any, y: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> None:
    for i in range(x.size):
        y[i] = ((x[i] - mean) * invstd) * weight + bias


@compiled_ieee
def _apply_each(x: Any, y: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> None:
    for i in range(x.size):
        y[i] = ((x[i] - mean) * invstd) * weight[i] + bias[i]


@compiled_ieee
def _apply_columns(x: Any, y: Any, mean: Any, invstd: Any, weight: Any, bias: Any) -> None:
    for i in range(x.size):
        y[i] = ((x[i] - mean[i]) * invstd[i]) * weight[i] + bias[i]


@compiled_ieee
def rows(
    x: Any, y: Any, weight: Any, bias: Any, eps: Any, bits: Any, centred: Any, mean: Any, invstd: Any, fine: Any,
    begin: Any, end: Any,
) -> None:  # fmt: skip
    """Groups ``begin`` to ``end`` are rows as long as ``weight``."""
    width = weight.size
    row = np.empty(width)
    for j in range(begin, end):
        to = y[j * width : (j + 1) * width]
        top, bottom = _copy(x[j * width : (j + 1) * width], row)
        mean[j], squares, fine[j] = _statistics(row, top, bottom, bits, centred)
        if not fine[j]:
            return
        invstd[j] = _inverse(squares, width, eps)
        _apply_each(row, to, mean[j], invstd[j], weight, bias)


@compiled_ieee
def runs(
    x: Any, y: Any, weight: Any, bias: Any, sizes: Any, weights: Any, tile: Any, eps: Any, bits: Any, mean: Any,
    squares: Any, invstd: Any, fine: Any, buffer: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Groups ``begin`` to ``end`` are several runs of neighbours each; ``norm_layout.Runs`` says where they lie.

    They are copied together, ``tile`` groups at a time: far apart by powers of two, the runs would drive each other
    out of the cache, and short ones alone would be slow to fetch.
    """
    count, length, run_step, group_step = sizes
    period, group_weight, run_weight = weights
    terms = count * length
    pitch = terms + PADDING
    tops, bottoms = np.empty(tile, np.int64), np.empty(tile, np.int64)
    for first in range(begin, end, tile):
        last = min(first + tile, end)
        tops[:], bottoms[:] = _LOWEST_KEY, MAGNITUDE
        for i in range(count):
            for j in range(first, last):
                at, to, k = j * group_step + i * run_step, (j - first) * pitch + i * length, j - first
                top, bottom = _copy(x[at : at + length], buffer[to : to + length])
                tops[k], bottoms[k] = max(tops[k], top), min(bottoms[k], bottom)
        for j in range(first, last):
            k = j - first
            whole = buffer[k * pitch : k * pitch + terms]
            mean[j], squares[j], fine[j] = _statistics(whole, tops[k], bottoms[k], bits, True)
            if not fine[j]:
                return
            invstd[j] = _inverse(squares[j], terms, eps)
        for i in range(count):
            for j in range(first, last):
                at, to = j * group_step + i * run_step, (j - first) * pitch + i * length
                k = (j % period) * group_weight + i * run_weight
                _apply(buffer[to : to + length], y[at : at + length], mean[j], invstd[j], weight[k], bias[k])


@compiled_ieee
def runs_apply(
    x: Any, y: Any, weight: Any, bias: Any, sizes: Any, mean: Any, invstd: Any, begin: Any, end: Any
) -> None:  # fmt: skip
    """Normalise groups ``begin`` to ``end`` by given statistics, one weight a group."""
    count, length, run_step, group_step = sizes
    for i in range(count):
        for j in range(begin, end):
            at = j * group_step + i * run_step
            _apply(x[at : at + length], y[at : at + length], mean[j], invstd[j], weight[j], bias[j])


@compiled_ieee
def _wider(x: Any, top: Any, bottom: Any, new_top: Any, new_bottom: Any) -> None:
    """Put the larger and the smaller keys elsewhere: in place it would be a masked store, slow on some processors."""
    for i in range(x.size):
        key = _key(np.float64(x[i]).view(np.int64))
        new_top[i] = max(top[i], key)
        new_bottom[i] = min(bottom[i], key)


@compiled_ieee
def _add_square_bits(x: Any, mean: Any, shifts: Any, into: Any) -> None:
    for i in range(x.size):
        d = x[i] - mean[i]
        into[i] += np.float64(d * d + shifts[i]).view(np.int64)


@compiled_ieee
def column_keys(x: Any, top: Any, bottom: Any, begin: Any, end: Any) -> None:
    """Put the keys of the largest and the smallest value of each column in rows ``begin`` to ``end``."""
    width = top.size
    top[:], bottom[:] = _LOWEST_KEY, MAGNITUDE
    other_top, other_bottom = np.empty_like(top), np.empty_like(top)
    for r in range(begin, end, 2):
        s = min(r + 1, end - 1)
        _wider(x[r * width : (r + 1) * width], top, bottom, other_top, other_bottom)
        _wider(x[s * width : (s + 1) * width], other_top, other_bottom, top, bottom)


@compiled_ieee
def column_units(x: Any, shifts: Any, into: Any, begin: Any, end: Any) -> None:
    """Put each column's sum over rows ``begin`` to ``end`` in units."""
    width = into.size
    into[:] = 0
    for r in range(begin, end):
        add_bits_each(x[r * width : (r + 1) * width], shifts, into)
    take_shifts_off(into, shifts, end - begin)


@compiled_ieee
def column_square_units(x: Any, mean: Any, shifts: Any, into: Any, begin: Any, end: Any) -> None:
    """Put each column's sum of (x - mean)**2 over rows ``begin`` to ``end`` in units."""
    width = into.size
    into[:] = 0
    for r in range(begin, end):
        _add_square_bits(x[r * width : (r + 1) * width], mean, shifts, into)
    take_shifts_off(into, shifts, end - begin)


@compiled_ieee
def column_shifts(top: Any, bottom: Any, bits: Any, shifts: Any) -> Any:
    """Put the shifts of the columns' sums; return whether all are fine."""
    fine = True
    for j in range(top.size):
        largest = _largest(top[j], bottom[j])
        fine &= largest < LIMIT_BITS
        shifts[j] = shift_for(largest, bits)
    return fine


@compiled_ieee
def column_means(
    units: Any, top: Any, bottom: Any, terms: Any, bits: Any, mean: Any, shifts: Any
) -> Any:  # fmt: skip
    """Put the means, and in ``shifts`` those of the sums of squares; return whether all are fine."""
    fine = True
    for j in range(units.size):
        mean[j] = (units[j] * unit_of(shifts[j])) / np.float64(terms)
        largest = _largest_square(top[j], bottom[j], mean[j])
        fine &= largest < LIMIT_BITS
        shifts[j] = shift_for(largest, bits)
    return fine


@compiled_ieee
def column_inverses(units: Any, shifts: Any, terms: Any, eps: Any, squares: Any, invstd: Any) -> None:
    """Put the sums of squares and the inverse standard deviations."""
    for j in range(units.size):
        squares[j] = units[j] * unit_of(shifts[j])
        invstd[j] = _inverse(squares[j], terms, eps)


@compiled_ieee
def column_apply(
    x: Any, y: Any, mean: Any, invstd: Any, weight: Any, bias: Any, begin: Any, end: Any
) -> None:  # fmt: skip
    """Normalise rows ``begin`` to ``end``, whose columns are the groups."""
    width = mean.size
    for r in range(begin, end):
        at = r * width
        _apply_columns(x[at : at + width], y[at : at + width], mean, invstd, weight, bias)
