"""What softmax and its gradient share: columns as rows, and sums of integers that one integer cannot hold (CPU)."""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled

HALF = 26
CHUNK = 1024
"""Terms that an int64 can count: below 2**52 units each."""
_LOW = np.int64((1 << HALF) - 1)
_LARGE = np.float64(1 << HALF)


@compiled
def halves(total: Any) -> Any:
    """Return the high and the low half of what a chunk counts; halves of many chunks may be added."""
    return total >> HALF, total & _LOW


@compiled
def joined(high: Any, low: Any) -> Any:
    """Return the number whose halves were added, rounded once."""
    return np.float64(high) * _LARGE + np.float64(low)


@compiled
def gather(x: Any, at: Any, n: Any, d: Any, width: Any, into: Any) -> None:
    """Copy ``width`` neighbouring columns of ``n`` values, ``d`` apart, into rows."""
    for k in range(n):
        values = x[at + k * d : at + k * d + width]
        for i in range(width):
            into[i * n + k] = values[i]


@compiled
def scatter(rows: Any, at: Any, n: Any, d: Any, width: Any, out: Any) -> None:
    """Copy rows back into columns."""
    for k in range(n):
        values = out[at + k * d : at + k * d + width]
        for i in range(width):
            values[i] = rows[i * n + k]
