"""Compiled preparation of a convolution's operands (CPU): scales, padded images, panels of weights.

Values are quantised on the way exactly as ``quantise`` does it. Functions take the range of the work that is a
thread's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled

_EXPONENT = np.int64(0x7FF0000000000000)


@compiled
def _field(pattern: Any) -> Any:
    """Return the exponent field (in place) of a float64's bits, 0 for NaN and infinities."""
    field = pattern & _EXPONENT
    return field if field != _EXPONENT else np.int64(0)


@compiled
def _one_largest(pattern: Any, largest: Any) -> Any:
    for i in range(pattern.size):
        largest = max(largest, _field(pattern[i]))
    return largest


@compiled
def _each_largest(pattern: Any, into: Any) -> None:
    for i in range(pattern.size):
        into[i] = max(into[i], _field(pattern[i]))


@compiled
def largest_fields(x: Any, into: Any, a: Any, b: Any, c: Any, b0: Any, b1: Any) -> None:
    """Put the largest finite exponent field of ``x`` (A, B, C) for each b, b0 <= b < b1, into ``into`` (B,)."""
    pattern = x.view(np.int64)
    into[b0:b1] = 0
    for i in range(a):
        if c == 1:
            _each_largest(pattern[i * b + b0 : i * b + b1], into[b0:b1])
            continue
        for j in range(b0, b1):
            at = (i * b + j) * c
            into[j] = _one_largest(pattern[at : at + c], into[j])


@compiled
def _round(value: Any, shift: Any, limit: Any) -> Any:
    """Quantise as ``quantise`` does; with ``shift`` 0 and ``limit`` infinity the value stays (but -0 becomes 0)."""
    rounded = (value + shift) - shift
    return np.copysign(np.inf, value) if abs(value) >= limit else rounded


@compiled
def _round_row(into: Any, source: Any, shift: Any, limit: Any) -> None:
    for i in range(into.size):
        into[i] = _round(source[i], shift, limit)


@compiled
def _round_strided(into: Any, source: Any, step: Any, shift: Any, limit: Any) -> None:
    for i in range(into.size):
        into[i] = _round(source[i * step], shift, limit)


@compiled
def stage(x: Any, out: Any, shifts: Any, group: Any, limit: Any, shape: Any, p0: Any, p1: Any) -> None:
    """Write the planes p0 to p1 of ``x`` (planes, H, W) with what windows see of them, quantised.

    ``shape``: (H, W, first row, rows, first column, step, columns): a plane of ``out`` is (rows, step, columns),
    column ``first column + step * q + phase`` at (phase, q), so that a window's columns are neighbours; zeros outside
    of the image. Plane p has the shift ``shifts[p // group[0] % group[1]]``.
    """
    height, width, first_row, rows, first_column, step, columns = shape
    for p in range(p0, p1):
        shift = shifts[p // group[0] % group[1]]
        for r in range(rows):
            y = r + first_row
            for phase in range(step):
                start = ((p * rows + r) * step + phase) * columns
                into = out[start : start + columns]
                column = first_column + phase  # that of q = 0
                begin = min(columns, max(0, (step - 1 - column) // step))
                end = max(begin, min(columns, (width - column + step - 1) // step))
                if y < 0 or y >= height:
                    begin, end = columns, columns
                into[:begin] = 0.0
                into[end:] = 0.0
                if begin == end:
                    continue
                at = (p * height + y) * width + column + begin * step
                if step == 1:
                    _round_row(into[begin:end], x[at : at + end - begin], shift, limit)
                else:
                    _round_strided(into[begin:end], x[at : (p * height + y + 1) * width], step, shift, limit)


@compiled
def pack_weights(
    weight: Any, out: Any, shifts: Any, limit: Any, strides: Any, sizes: Any, taps: Any, rows: Any, i0: Any, i1: Any
) -> None:
    """Write the panels i0 to i1 of ``rows`` outputs m each: for each term (channel, tap) their values, quantised.

    ``strides``: of m and of the channel; ``sizes``: outputs, channels; ``taps``: places of the taps. A last panel is
    filled up with zeros.
    """
    for i in range(i0, i1):
        to = i * sizes[1] * taps.size * rows
        for c in range(sizes[1]):
            for t in range(taps.size):
                for r in range(rows):
                    m = i * rows + r
                    if m < sizes[0]:
                        value = weight[m * strides[0] + c * strides[1] + taps[t]]
                        out[to + r] = _round(value, shifts[m], limit)
                    else:
                        out[to + r] = 0.0
                to += rows
