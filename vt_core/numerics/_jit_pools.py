"""Compiled weighted windows and plane-wise scatters (CPU); see ``pools``.

Every output is ``((0 + w[0] x[0]) + w[1] x[1]) + ...``: each multiplication and addition rounded, in this order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled, compiled_ieee

CHANNELS = 64
"""Channels side by side that one item of ``scatter_channels`` handles."""


@compiled
def _one(x: Any, v: Any, into: Any) -> None:
    for i in range(into.size):
        into[i] = x[i] * v + 0.0


@compiled
def _two(x: Any, v: Any, y: Any, w: Any, into: Any) -> None:
    for i in range(into.size):
        into[i] = (x[i] * v + 0.0) + y[i] * w


@compiled
def _next(x: Any, v: Any, into: Any) -> None:
    for i in range(into.size):
        into[i] += x[i] * v


@compiled
def _weighted(x: Any, start: Any, width: Any, count: Any, weights: Any, into: Any) -> None:
    """Add ``count`` rows of ``width`` from ``start`` on, each times its weight."""
    if count == 0:
        into[:] = 0.0
        return
    if count == 1:
        _one(x[start : start + width], weights[0], into)
        return
    p = start + width
    _two(x[start:p], weights[0], x[p : p + width], weights[1], into)
    for k in range(2, count):
        p = start + k * width
        _next(x[p : p + width], weights[k], into)


@compiled
def _single(line: Any, starts: Any, weights: Any, into: Any) -> None:
    for o in range(into.size):
        into[o] = line[starts[o]] * weights[o] + 0.0


@compiled
def _pairs(line: Any, starts: Any, first: Any, second: Any, into: Any) -> None:
    for o in range(into.size):
        i = starts[o]
        into[o] = (line[i] * first[o] + 0.0) + line[i + 1] * second[o]


@compiled
def _along(line: Any, starts: Any, counts: Any, weights: Any, into: Any) -> None:
    for o in range(into.size):
        i, total = starts[o], 0.0
        for k in range(counts[o]):
            total += line[i + k] * weights[k, o]
        into[o] = total


@compiled_ieee
def _divide_by(row: Any, factor: Any, divisors: Any) -> None:
    for i in range(row.size):
        row[i] = row[i] / (factor * divisors[i])


@compiled_ieee
def _next_divided(x: Any, factor: Any, divisors: Any, into: Any) -> None:
    for i in range(into.size):
        into[i] += x[i] / (factor * divisors[i])


@compiled
def _divided(x: Any, start: Any, width: Any, by_row: Any, divisors: Any, into: Any) -> None:
    """Add as many rows of ``width`` as ``by_row`` has elements, from ``start`` on, each divided."""
    into[:] = 0.0
    for k in range(by_row.size):
        p = start + k * width
        _next_divided(x[p : p + width], by_row[k], divisors, into)


@compiled
def _across(
    line: Any, starts: Any, counts: Any, by_output: Any, by_tap: Any, uniform: Any, channels: Any, row: Any
) -> None:  # fmt: skip
    """Make one row of the output of ``line``: the windows across."""
    if channels > 1:
        for o in range(starts.size):
            into = row[o * channels : (o + 1) * channels]
            _weighted(line, starts[o] * channels, channels, counts[o], by_output[o], into)
    elif uniform == 1:
        _single(line, starts, by_tap[0], row)
    elif uniform == 2:
        _pairs(line, starts, by_tap[0], by_tap[1], row)
    else:
        _along(line, starts, counts, by_tap, row)


@compiled
def windows(
    x: Any, sizes: Any, rows: Any, columns: Any, by_tap: Any, uniform: Any, divisors: Any, before: Any, out: Any,
    begin: Any, end: Any,
) -> None:  # fmt: skip
    """Make rows ``begin`` to ``end`` of the output of flat planes of ``sizes`` (height, width, channels).

    ``rows`` and ``columns`` are (starts, counts, weights) of the windows down and across, the weights [outputs, taps];
    ``by_tap`` is the transpose of the latter. No columns: the windows across are single elements. ``uniform`` is the
    number of taps of all windows across, 0 if they differ. ``divisors`` are two factors, by row and by column, of what
    each output is divided by, or with ``before`` each element (of windows of weight 1); channels count as columns. Both
    are empty for none.
    """
    height, width, channels = sizes
    row_starts, row_counts, row_weights = rows
    starts, counts, weights = columns
    by_row, by_column = divisors
    high, length = row_starts.size, width * channels
    wide = starts.size if starts.size else width
    line = np.empty(length, np.float64)
    for item in range(begin, end):
        r = item % high
        first, count = row_starts[r], row_counts[r]
        start = (item // high * height + first) * length
        row = out[item * wide * channels : (item + 1) * wide * channels]
        sums = line if starts.size else row
        if before:
            _divided(x, start, length, by_row[first : first + count], by_column, sums)
        else:
            _weighted(x, start, length, count, row_weights[r], sums)
        if starts.size:
            _across(line, starts, counts, weights, by_tap, uniform, channels, row)
        if by_row.size and not before:
            _divide_by(row, by_row[r], by_column)


@compiled
def _scatter(terms: Any, index: Any, into: Any) -> Any:
    into[:] = 0.0
    for o in range(terms.size):
        i = index[o]
        if i < 0 or i >= into.size:
            return False
        into[i] += terms[o]
    return True


@compiled
def scatter(terms: Any, index: Any, count: Any, size: Any, out: Any, begin: Any, end: Any) -> Any:
    """Add ``count`` terms to planes ``begin`` to ``end`` of ``size``, in order; False for an index outside a plane."""
    for plane in range(begin, end):
        mine, where = terms[plane * count : (plane + 1) * count], index[plane * count : (plane + 1) * count]
        if not _scatter(mine, where, out[plane * size : (plane + 1) * size]):
            return False
    return True


@compiled
def scatter_single(terms: Any, index: Any, count: Any, size: Any, out: Any, begin: Any, end: Any) -> Any:
    """Do the same with float32 terms: sums are float64 and cut to float32 at last."""
    sums = np.empty(size)
    for plane in range(begin, end):
        mine, where = terms[plane * count : (plane + 1) * count], index[plane * count : (plane + 1) * count]
        if not _scatter(mine, where, sums):
            return False
        out[plane * size : (plane + 1) * size] = sums
    return True


@compiled
def _scatter_tile(terms: Any, index: Any, steps: Any, count: Any, size: Any, width: Any, into: Any) -> Any:
    """Scatter ``width`` planes side by side; ``steps`` are those of the outputs and of the elements."""
    step, to_step = steps
    for i in range(size):
        into[i * to_step : i * to_step + width] = 0.0
    for o in range(count):
        mine, where = terms[o * step : o * step + width], index[o * step : o * step + width]
        for c in range(width):
            i = where[c]
            if i < 0 or i >= size:
                return False
            into[i * to_step + c] += mine[c]
    return True


@compiled
def scatter_channels(
    terms: Any, index: Any, count: Any, size: Any, channels: Any, out: Any, begin: Any, end: Any
) -> Any:
    """Do the same for planes that lie side by side, ``channels`` in a row; an item is CHANNELS of them."""
    tiles = (channels + CHANNELS - 1) // CHANNELS
    for item in range(begin, end):
        plane, first = item // tiles, item % tiles * CHANNELS
        width = min(CHANNELS, channels - first)
        at, to = plane * count * channels + first, plane * size * channels + first
        if not _scatter_tile(terms[at:], index[at:], (channels, channels), count, size, width, out[to:]):
            return False
    return True


@compiled
def scatter_channels_single(
    terms: Any, index: Any, count: Any, size: Any, channels: Any, out: Any, begin: Any, end: Any
) -> Any:
    """Do the same with float32 terms: sums are float64 and cut to float32 at last."""
    tiles = (channels + CHANNELS - 1) // CHANNELS
    sums = np.empty(size * CHANNELS)
    for item in range(begin, end):
        plane, first = item // tiles, item % tiles * CHANNELS
        width = min(CHANNELS, channels - first)
        at, to = plane * count * channels + first, plane * size * channels + first
        if not _scatter_tile(terms[at:], index[at:], (channels, CHANNELS), count, size, width, sums):
            return False
        for i in range(size):
            out[to + i * channels : to + i * channels + width] = sums[i * CHANNELS : i * CHANNELS + width]
    return True
