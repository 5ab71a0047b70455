"""Compiled exact sums (CPU), in units; see ``sums`` and ``_jit_units``."""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled
from vt_core.numerics._jit_units import add_units_each, unit_of, units_in

TILE = 1024


@compiled
def _add_units(x: Any, y: Any, shifts: Any, origins: Any, into: Any) -> None:
    """Add two rows; ``origins`` are the bits of ``shifts``."""
    for i in range(x.size):
        p = np.float64(x[i] + shifts[i]).view(np.int64)
        q = np.float64(y[i] + shifts[i]).view(np.int64)
        into[i] += (p - origins[i]) + (q - origins[i])


@compiled
def along(x: Any, a: Any, c: Any, steps: Any, shifts: Any, out: Any, begin: Any, end: Any) -> None:
    """Sum groups ``begin`` to ``end`` of ``a`` runs of ``c`` neighbours."""
    for j in range(begin, end):
        total = np.int64(0)
        for i in range(a):
            at = i * steps[0] + j * steps[1]
            total += units_in(x[at : at + c], shifts[j])
        out[j] = total * unit_of(shifts[j])


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
                add_units_each(x[p : p + width], mine, origins, into)
        for i in range(width):
            out[group + i] = into[i] * unit_of(mine[i])
