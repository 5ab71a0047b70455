"""Compiled softmax, its logarithm and logsumexp (CPU); see ``softmax``. Rows lie one after the other.

A row stays in the cache for its two or three passes: the maximum, the sum, the result. Maxima are maxima of
integers and sums are sums of integers, which LLVM vectorises: their order is nobody's choice. Loops run over slices;
columns are copied into rows, a few at a time. Values of float32 are widened one by one, and results cut where they are
stored. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_elementary import exp, log
from vt_core.numerics._jit_rows import CHUNK, gather, halves, joined, scatter
from vt_core.numerics._jit_units import EXPONENT, MAGNITUDE

_ONE = np.int64(1023 << 52)


@compiled_ieee
def _maximum(x: Any) -> Any:
    """Return the maximum, +0 for -0; NaN if there is one."""
    top, magnitude = ~MAGNITUDE, np.int64(0)
    for i in range(x.size):
        bits = np.float64(x[i]).view(np.int64)
        top = max(top, bits ^ ((bits >> 63) & MAGNITUDE))  # in the order of the numbers
        magnitude = max(magnitude, bits & MAGNITUDE)
    if magnitude > EXPONENT:
        return np.nan
    return np.int64(top ^ ((top >> 63) & MAGNITUDE)).view(np.float64) + 0.0


@compiled_ieee
def _exp_units(x: Any, m: Any) -> Any:
    """Return the sum of ``exp(x - m)`` in units of 2**-52."""
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(exp(np.float64(x[i]) - m) + 1.0).view(np.int64) - _ONE
    return total


@compiled_ieee
def _exp_units_into(x: Any, m: Any, out: Any) -> Any:
    """Return the same, and put the terms into ``out``."""
    total = np.int64(0)
    for i in range(x.size):
        e = exp(np.float64(x[i]) - m)
        out[i] = e
        total += np.float64(e + 1.0).view(np.int64) - _ONE
    return total


@compiled_ieee
def _exp_sum(x: Any, m: Any) -> Any:
    high, low = np.int64(0), np.int64(0)
    for at in range(0, x.size, CHUNK):
        total = _exp_units(x[at : at + CHUNK], m)
        more = halves(total)
        high += more[0]
        low += more[1]
    return joined(high, low) * 2.0**-52


@compiled_ieee
def _exp_sum_into(x: Any, m: Any, out: Any) -> Any:
    high, low = np.int64(0), np.int64(0)
    for at in range(0, x.size, CHUNK):
        total = _exp_units_into(x[at : at + CHUNK], m, out[at : at + CHUNK])
        more = halves(total)
        high += more[0]
        low += more[1]
    return joined(high, low) * 2.0**-52


@compiled_ieee
def _divide(x: Any, s: Any) -> None:
    for i in range(x.size):
        x[i] = x[i] / s


@compiled_ieee
def _cut(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i]


@compiled_ieee
def _subtract_both(x: Any, m: Any, s: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = (np.float64(x[i]) - m) - s


@compiled_ieee
def softmax(x: Any, out: Any, n: Any, empty: Any, begin: Any, end: Any) -> None:
    """Softmax of rows ``begin`` to ``end`` of ``n`` values, into float64; ``empty`` for rows of -inf."""
    for at in range(begin * n, end * n, n):
        m = _maximum(x[at : at + n])
        if abs(m) < np.inf:
            s = _exp_sum_into(x[at : at + n], m, out[at : at + n])
            _divide(out[at : at + n], s)
        else:
            out[at : at + n] = empty if m == -np.inf else np.nan


@compiled_ieee
def softmax_cut(x: Any, out: Any, n: Any, empty: Any, begin: Any, end: Any) -> None:
    """The same into float32."""
    row = np.empty(n)
    for at in range(begin * n, end * n, n):
        softmax(x[at : at + n], row, n, empty, 0, 1)
        _cut(row, out[at : at + n])


@compiled_ieee
def softmax_across(x: Any, out: Any, n: Any, d: Any, tile: Any, empty: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    rows, found = np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        gather(x, at, n, d, width, rows)
        softmax(rows, found, n, empty, 0, width)
        scatter(found, at, n, d, width, out)


@compiled_ieee
def log_softmax(x: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """log_softmax of rows ``begin`` to ``end`` of ``n`` values."""
    for at in range(begin * n, end * n, n):
        m = _maximum(x[at : at + n])
        if abs(m) < np.inf:
            s = _exp_sum(x[at : at + n], m)
            _subtract_both(x[at : at + n], m, log(s), out[at : at + n])
        else:
            out[at : at + n] = np.nan


@compiled_ieee
def log_softmax_across(x: Any, out: Any, n: Any, d: Any, tile: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    rows, found = np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        gather(x, at, n, d, width, rows)
        log_softmax(rows, found, n, 0, width)
        scatter(found, at, n, d, width, out)


@compiled_ieee
def logsumexp(x: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """Logsumexp of rows ``begin`` to ``end`` of ``n`` values."""
    for row in range(begin, end):
        at = row * n
        m = _maximum(x[at : at + n])
        out[row] = log(_exp_sum(x[at : at + n], m)) + m if abs(m) < np.inf else m
