"""Compiled softmax, its logarithm and logsumexp (CPU); see ``softmax``. Rows lie one after the other.

A row stays in the cache for its two or three passes: the maximum, the sum, the result. Maxima are maxima of
integers and sums are sums of integers, which LLVM vectorises: their order is nobody's choice. Loops run over slices;
columns are copied into rows, a few at a time.
One file of its own, and names with the digest of the files of ``exp`` and ``log``: numba's cache notices changes of a
function's own file and name only. No fastmath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from vt_core.numerics._jit_base import compiled
from vt_core.numerics._jit_elementary import exp, log
from vt_core.numerics._jit_elementary_base import _DIGEST

HALF = 26
_CHUNK = 1024
"""Terms that an int64 can count: below 2**52 units each."""
_LOW = np.int64((1 << HALF) - 1)
_LARGE = np.float64(1 << HALF)
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITY = np.int64(0x7FF0000000000000)
_ONE = np.int64(1023 << 52)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    function.__qualname__ = f"{function.__name__}-{_DIGEST}"
    return compiled(function, error_model="numpy")  # IEEE division


@_compiled
def _gather(x: Any, at: Any, n: Any, d: Any, width: Any, into: Any) -> None:
    """Copy ``width`` neighbouring columns of ``n`` values, ``d`` apart, into rows."""
    for k in range(n):
        values = x[at + k * d : at + k * d + width]
        for i in range(width):
            into[i * n + k] = values[i]


@_compiled
def _scatter(rows: Any, at: Any, n: Any, d: Any, width: Any, out: Any) -> None:
    """Copy rows back into columns."""
    for k in range(n):
        values = out[at + k * d : at + k * d + width]
        for i in range(width):
            values[i] = rows[i * n + k]


@_compiled
def _maximum(pattern: Any) -> Any:
    """Return the maximum, +0 for -0; NaN if there is one."""
    top, magnitude = ~_MAGNITUDE, np.int64(0)
    for i in range(pattern.size):
        bits = pattern[i]
        top = max(top, bits ^ ((bits >> 63) & _MAGNITUDE))  # in the order of the numbers
        magnitude = max(magnitude, bits & _MAGNITUDE)
    if magnitude > _INFINITY:
        return np.nan
    return np.int64(top ^ ((top >> 63) & _MAGNITUDE)).view(np.float64) + 0.0


@_compiled
def _exp_units(x: Any, m: Any) -> Any:
    """Return the sum of ``exp(x - m)`` in units of 2**-52."""
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(exp(x[i] - m) + 1.0).view(np.int64) - _ONE
    return total


@_compiled
def _exp_units_into(x: Any, m: Any, out: Any) -> Any:
    """Return the same, and put the terms into ``out``."""
    total = np.int64(0)
    for i in range(x.size):
        e = exp(x[i] - m)
        out[i] = e
        total += np.float64(e + 1.0).view(np.int64) - _ONE
    return total


@_compiled
def _exp_sum(x: Any, m: Any) -> Any:
    high, low = np.int64(0), np.int64(0)
    for at in range(0, x.size, _CHUNK):
        total = _exp_units(x[at : at + _CHUNK], m)
        high += total >> HALF
        low += total & _LOW
    return (np.float64(high) * _LARGE + np.float64(low)) * 2.0**-52


@_compiled
def _exp_sum_into(x: Any, m: Any, out: Any) -> Any:
    high, low = np.int64(0), np.int64(0)
    for at in range(0, x.size, _CHUNK):
        total = _exp_units_into(x[at : at + _CHUNK], m, out[at : at + _CHUNK])
        high += total >> HALF
        low += total & _LOW
    return (np.float64(high) * _LARGE + np.float64(low)) * 2.0**-52


@_compiled
def _divide(x: Any, s: Any) -> None:
    for i in range(x.size):
        x[i] = x[i] / s


@_compiled
def _subtract_both(x: Any, m: Any, s: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = (x[i] - m) - s


@_compiled
def softmax(x: Any, out: Any, n: Any, empty: Any, begin: Any, end: Any) -> None:
    """Softmax of rows ``begin`` to ``end`` of ``n`` values; ``empty`` for rows of -inf."""
    pattern = x.view(np.int64)
    for at in range(begin * n, end * n, n):
        m = _maximum(pattern[at : at + n])
        if abs(m) < np.inf:
            s = _exp_sum_into(x[at : at + n], m, out[at : at + n])
            _divide(out[at : at + n], s)
        else:
            out[at : at + n] = empty if m == -np.inf else np.nan


@_compiled
def softmax_across(x: Any, out: Any, n: Any, d: Any, tile: Any, empty: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    rows, found = np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        _gather(x, at, n, d, width, rows)
        softmax(rows, found, n, empty, 0, width)
        _scatter(found, at, n, d, width, out)


@_compiled
def log_softmax(x: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """log_softmax of rows ``begin`` to ``end`` of ``n`` values."""
    pattern = x.view(np.int64)
    for at in range(begin * n, end * n, n):
        m = _maximum(pattern[at : at + n])
        if abs(m) < np.inf:
            s = _exp_sum(x[at : at + n], m)
            _subtract_both(x[at : at + n], m, log(s), out[at : at + n])
        else:
            out[at : at + n] = np.nan


@_compiled
def log_softmax_across(x: Any, out: Any, n: Any, d: Any, tile: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    rows, found = np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        _gather(x, at, n, d, width, rows)
        log_softmax(rows, found, n, 0, width)
        _scatter(found, at, n, d, width, out)


@_compiled
def logsumexp(x: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """Logsumexp of rows ``begin`` to ``end`` of ``n`` values."""
    pattern = x.view(np.int64)
    for row in range(begin, end):
        at = row * n
        m = _maximum(pattern[at : at + n])
        out[row] = log(_exp_sum(x[at : at + n], m)) + m if abs(m) < np.inf else m
