"""Compiled exact sums (CPU); see ``sums``. One file of its own: numba's cache notices changes of its own file only.

With ``shift`` of 1.5 * 2**52 units, the bits of ``v + shift`` are those of ``shift`` plus the number of units in ``v``.
So the sums are sums of integers, which LLVM vectorises: their order is nobody's choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled

TILE = 1024
_HALF = np.int64(1 << 51)


@compiled
def _unit(shift: Any) -> Any:
    return np.int64(np.float64(shift).view(np.int64) - _HALF).view(np.float64) * 2.0**-52


@compiled
def _units_in(x: Any, shift: Any) -> Any:
    origin = np.float64(shift).view(np.int64)
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(x[i] + shift).view(np.int64) - origin
    return total


@compiled
def _add_units(x: Any, y: Any, shifts: Any, origins: Any, into: Any) -> None:
    """Add two rows; ``origins`` are the bits of ``shifts``."""
    for i in range(x.size):
        p = np.float64(x[i] + shifts[i]).view(np.int64)
        q = np.float64(y[i] + shifts[i]).view(np.int64)
        into[i] += (p - origins[i]) + (q - origins[i])


@compiled
def _add_row(x: Any, shifts: Any, origins: Any, into: Any) -> None:
    for i in range(x.size):
        into[i] += np.float64(x[i] + shifts[i]).view(np.int64) - origins[i]


@compiled
def along(x: Any, a: Any, c: Any, steps: Any, shifts: Any, out: Any, begin: Any, end: Any) -> None:
    """Sum groups ``begin`` to ``end`` of ``a`` runs of ``c`` neighbours."""
    for j in range(begin, end):
        total = np.int64(0)
        for i in range(a):
            at = i * steps[0] + j * steps[1]
            total += _units_in(x[at : at + c], shifts[j])
        out[j] = total * _unit(shifts[j])


@compiled
def across(x: Any, a: Any, c: Any, d: Any, steps: Any, shifts: Any, out: Any, begin: Any, end: Any) -> None:
    """Sum groups that lie side by side, ``d`` in a row; tiles ``begin`` to ``end`` of TILE groups."""
    tiles = (d + TILE - 1) // TILE
    totals = np.empty(TILE, np.int64)
    for item in range(begin, end):
        j, first = item // tiles, item % tiles * TILE
        width = min(TILE, d - first)
        group = j * d + first
        mine, into = shifts[group : group + width], totals[:width]
        origins = mine.view(np.int64)
        into[:] = 0
        for i in range(a):
            start = i * steps[0] + j * steps[1] + first
            for k in range(0, c - 1, 2):
                p = start + k * steps[2]
                q = p + steps[2]
                _add_units(x[p : p + width], x[q : q + width], mine, origins, into)
            if c % 2:
                p = start + (c - 1) * steps[2]
                _add_row(x[p : p + width], mine, origins, into)
        for i in range(width):
            out[group + i] = into[i] * _unit(mine[i])
