"""Compiled quantisation (CPU); see ``quantise``. Loops run over slices: only then does LLVM vectorise them.

The scale of a group needs the exponent of its largest magnitude alone, so the first pass is an integer maximum. The
second, ``(v + shift) - shift``, follows while the group is in the cache. Groups with a NaN, an infinity or a magnitude
of 2**480 and more take the slow path. No fastmath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled
from vt_core.numerics._jit_units import (
    EXPONENT,
    LIMIT_BITS,
    MAGNITUDE,
    each_largest,
    largest_in,
    round_any,
    shift_for,
)
from vt_core.numerics.threads import share, worker_count

PART = 1 << 16
"""Fewest values that another thread is asked to handle."""
TILE = 2048
"""Columns side by side: wide enough for the processor to fetch ahead, and their shifts stay in its first cache."""
SCALE, ROUND, BOTH = 1, 2, 3
Sizes = tuple[int, int, int, int]
Steps = tuple[int, int, int]


@compiled
def _largest_finite(pattern: Any) -> Any:
    """Return the largest finite magnitude's bits."""
    largest = np.int64(0)
    for i in range(pattern.size):
        magnitude = pattern[i] & MAGNITUDE
        largest = max(largest, magnitude if magnitude < EXPONENT else np.int64(0))
    return largest


@compiled
def _each_largest_of_four(p: Any, q: Any, r: Any, s: Any, into: Any) -> None:
    """Do the same for four rows at once."""
    for i in range(p.size):
        one = max(p[i] & MAGNITUDE, q[i] & MAGNITUDE)
        two = max(r[i] & MAGNITUDE, s[i] & MAGNITUDE)
        into[i] = max(into[i], max(one, two))


@compiled
def _each_largest_finite(pattern: Any, into: Any) -> None:
    """Raise ``into`` to the bits of the finite magnitudes."""
    for i in range(pattern.size):
        magnitude = pattern[i] & MAGNITUDE
        into[i] = max(into[i], magnitude if magnitude < EXPONENT else np.int64(0))


@compiled
def _round_all(x: Any, out: Any, shift: Any) -> None:
    for i in range(x.size):
        out[i] = (x[i] + shift) - shift


@compiled
def _round_all_far(x: Any, out: Any, shift: Any) -> None:
    for i in range(x.size):
        out[i] = round_any(x[i], shift)


@compiled
def _round_each(x: Any, out: Any, shifts: Any) -> None:
    for i in range(x.size):
        out[i] = (x[i] + shifts[i]) - shifts[i]


@compiled
def _round_each_of_two(x: Any, y: Any, out: Any, to: Any, shifts: Any) -> None:
    for i in range(x.size):
        shift = shifts[i]
        out[i] = (x[i] + shift) - shift
        to[i] = (y[i] + shift) - shift


@compiled
def _round_each_far(x: Any, out: Any, shifts: Any) -> None:
    for i in range(x.size):
        out[i] = round_any(x[i], shifts[i])


@compiled
def _run_largest(pattern: Any, start: Any, a: Any, c: Any, step: Any) -> Any:
    """Return the largest finite magnitude's bits of a group of ``a`` runs of ``c`` neighbours, and if any is far."""
    largest = np.int64(0)
    for i in range(a):
        at = start + i * step
        largest = max(largest, largest_in(pattern[at : at + c]))
    if largest < LIMIT_BITS:
        return largest, False
    largest = np.int64(0)
    for i in range(a):
        at = start + i * step
        largest = max(largest, _largest_finite(pattern[at : at + c]))
    return largest, True


@compiled
def _columns_largest(pattern: Any, start: Any, a: Any, c: Any, steps: Any, into: Any) -> Any:
    """Put the largest finite magnitudes' bits of neighbouring groups into ``into``; say whether any value is far."""
    width, step = into.size, steps[2]
    whole = c - c % 4
    into[:] = 0
    for i in range(a):
        at = start + i * steps[0]
        for k in range(0, whole, 4):
            p = at + k * step
            q, r, s = p + step, p + 2 * step, p + 3 * step
            _each_largest_of_four(
                pattern[p : p + width], pattern[q : q + width], pattern[r : r + width], pattern[s : s + width], into
            )
        for k in range(whole, c):
            p = at + k * step
            each_largest(pattern[p : p + width], into)
    if largest_in(into) < LIMIT_BITS:
        return False
    into[:] = 0
    for i in range(a):
        for k in range(c):
            p = start + i * steps[0] + k * step
            _each_largest_finite(pattern[p : p + width], into)
    return True


@compiled
def _along(
    x: Any, out: Any, a: Any, c: Any, steps: Any, to_steps: Any, shifts: Any, far: Any, stages: Any, bits: Any,
    begin: Any, end: Any,
) -> None:  # fmt: skip
    """Groups ``begin`` to ``end`` of ``a`` runs of ``c`` neighbours: their shifts, the rounding, or both."""
    pattern = x.view(np.int64)
    for j in range(begin, end):
        start, to_start = j * steps[1], j * to_steps[1]
        if stages & SCALE:
            largest, far[j] = _run_largest(pattern, start, a, c, steps[0])
            shifts[j] = shift_for(largest, bits)
        if stages & ROUND:
            for i in range(a):
                at, to = start + i * steps[0], to_start + i * to_steps[0]
                if far[j]:
                    _round_all_far(x[at : at + c], out[to : to + c], shifts[j])
                else:
                    _round_all(x[at : at + c], out[to : to + c], shifts[j])


@compiled
def _round_rows(x: Any, out: Any, at: Any, to: Any, rows: Any, step: Any, to_step: Any, shifts: Any, far: Any) -> None:
    """Round ``rows`` rows of neighbouring groups, from ``at`` in ``x`` to ``to`` in ``out``."""
    width = shifts.size
    if far:
        for k in range(rows):
            p, q = at + k * step, to + k * to_step
            _round_each_far(x[p : p + width], out[q : q + width], shifts)
        return
    for k in range(0, rows - 1, 2):
        p, q = at + k * step, to + k * to_step
        r, s = p + step, q + to_step
        _round_each_of_two(x[p : p + width], x[r : r + width], out[q : q + width], out[s : s + width], shifts)
    if rows % 2:
        p, q = at + (rows - 1) * step, to + (rows - 1) * to_step
        _round_each(x[p : p + width], out[q : q + width], shifts)


@compiled
def _across(
    x: Any, out: Any, a: Any, c: Any, d: Any, steps: Any, to_steps: Any, tile: Any, shifts: Any, far: Any, stages: Any,
    bits: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Groups lie side by side, ``d`` in a row; tiles ``begin`` to ``end`` of ``tile`` groups: shifts, or both."""
    pattern = x.view(np.int64)
    tiles = (d + tile - 1) // tile
    largest = np.empty(tile, np.int64)
    for item in range(begin, end):
        j, first = item // tiles, item % tiles * tile
        width = min(tile, d - first)
        group = j * d + first
        start, to_start = j * steps[1] + first, j * to_steps[1] + first
        mine = shifts[group : group + width]
        any_far = _columns_largest(pattern, start, a, c, steps, largest[:width])
        far[group : group + width] = any_far
        for i in range(width):
            mine[i] = shift_for(largest[i], bits)
        if stages & ROUND:
            for i in range(a):
                at, to = start + i * steps[0], to_start + i * to_steps[0]
                _round_rows(x, out, at, to, c, steps[2], to_steps[2], mine, any_far)


@compiled
def _round_across(x: Any, out: Any, steps: Any, to_steps: Any, shifts: Any, far: Any, begin: Any, end: Any) -> None:
    """Round rows ``begin`` to ``end`` of one matrix whose columns are the groups."""
    at, to = begin * steps[2], begin * to_steps[2]
    _round_rows(x, out, at, to, end - begin, steps[2], to_steps[2], shifts, far.any())


class Scales:
    """The shifts of the groups (b, d), and which groups hold values that need the slow path."""

    def __init__(self, groups: int) -> None:
        self.shifts, self.far = np.empty(groups, np.float64), np.empty(groups, np.bool_)


def quantise(
    x: Any, out: Any, sizes: Sizes, steps: Steps, to_steps: Steps, bits: int, stages: int = BOTH,
    scales: Scales | None = None,
) -> None:  # fmt: skip
    """Quantise flat float64 ``x`` into ``out``: the value (i, j, k, l) lies at ``steps . (i, j, k) + l``.

    ``sizes`` are those of i, j, k and l; ``to_steps`` are the steps in ``out``. Groups run over i and k. ``stages`` is
    SCALE to put the groups' shifts into ``scales``, ROUND (for a single i and j) to use them, or BOTH, while each group
    is in the cache.
    """
    a, b, c, d = sizes
    size = a * b * c * d
    s = scales or Scales(b * d)
    if d == 1 and steps[2] == 1:
        in_parts(lambda i, j: _along(x, out, a, c, steps, to_steps, s.shifts, s.far, stages, bits, i, j), b, size)
    elif stages == ROUND:
        in_parts(lambda i, j: _round_across(x, out, steps, to_steps, s.shifts, s.far, i, j), c, size)
    else:
        tile = min(d, TILE, max(64, -(-d * b // (8 * worker_count())) * 8))
        in_parts(
            lambda i, j: _across(x, out, a, c, d, steps, to_steps, tile, s.shifts, s.far, stages, bits, i, j),
            b * -(-d // tile), size,
        )  # fmt: skip


def in_parts(work: Callable[[int, int], object], count: int, size: int) -> None:
    """Call ``work(begin, end)`` for parts of ``count`` items, ``size`` values in all, on several threads if it pays."""
    workers = worker_count()
    parts = min(count, 4 * workers, size // PART)
    if workers < 2 or parts < 2:
        work(0, count)
        return
    share(lambda i: work(count * i // parts, count * (i + 1) // parts), parts, workers)
