"""Compiled gradients of softmax and log_softmax (CPU); see ``softmax``. Rows lie one after the other.

A row stays in the cache for its three passes: the largest magnitude, the sum, the result. Maxima are maxima of
integers and sums are sums of integers, which LLVM vectorises: their order is nobody's choice. Loops run over slices;
columns are copied into rows, a few at a time. Values of float32 are widened one by one, and results cut where they are
stored. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_elementary import exp
from vt_core.numerics._jit_rows import CHUNK, gather, halves, joined, scatter
from vt_core.numerics._jit_units import magnitude, units_in

LIMIT_BITS = (1023 + 1020) << 52
"""Bits of 2**1020: magnitudes of so much and more count as infinite."""
LOWEST = 1022 - 960
"""Biased exponent of the largest magnitude of a row that is as small as 2**-960, or smaller."""
_LIMIT_BITS = np.int64(LIMIT_BITS)


@compiled_ieee
def _largest(x: Any) -> Any:
    largest = np.int64(0)
    for i in range(x.size):
        largest = max(largest, magnitude(x[i]))
    return largest


@compiled_ieee
def _largest_product(x: Any, y: Any) -> Any:
    largest = np.int64(0)
    for i in range(x.size):
        largest = max(largest, magnitude(np.float64(x[i]) * np.float64(y[i])))
    return largest


@compiled_ieee
def _shift(largest: Any) -> Any:
    """Return the bits of 1.5 * 2**52 units for terms whose largest magnitude has the bits ``largest``."""
    return ((max(largest >> 52, np.int64(LOWEST)) + 2) << 52) | (1 << 51)


@compiled_ieee
def _total(high: Any, low: Any, origin: Any) -> Any:
    unit = np.int64(origin - (1 << 51)).view(np.float64) * 2.0**-52
    return joined(high, low) * unit


@compiled_ieee
def _product_units(x: Any, y: Any, shift: Any, origin: Any) -> Any:
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(np.float64(x[i]) * np.float64(y[i]) + shift).view(np.int64) - origin
    return total


@compiled_ieee
def _far_sum(x: Any, y: Any) -> Any:
    """Return the sum of products of which some are infinite, NaN or count as infinite."""
    total = 0.0
    for i in range(x.size):
        p = np.float64(x[i]) * np.float64(y[i])
        if not abs(p) < 2.0**1020:
            total += p * np.inf
    return total


@compiled_ieee
def _sum(x: Any) -> Any:
    largest = _largest(x)
    if largest >= _LIMIT_BITS:
        return _far_sum(x, np.ones_like(x))
    origin, high, low = _shift(largest), np.int64(0), np.int64(0)
    shift = np.int64(origin).view(np.float64)
    for at in range(0, x.size, CHUNK):
        total = units_in(x[at : at + CHUNK], shift)
        more = halves(total)
        high += more[0]
        low += more[1]
    return _total(high, low, origin)


@compiled_ieee
def _product_sum(x: Any, y: Any) -> Any:
    largest = _largest_product(x, y)
    if largest >= _LIMIT_BITS:
        return _far_sum(x, y)
    origin, high, low = _shift(largest), np.int64(0), np.int64(0)
    shift = np.int64(origin).view(np.float64)
    for at in range(0, x.size, CHUNK):
        total = _product_units(x[at : at + CHUNK], y[at : at + CHUNK], shift, origin)
        more = halves(total)
        high += more[0]
        low += more[1]
    return _total(high, low, origin)


@compiled_ieee
def _softmax_gradient(g: Any, y: Any, s: Any, out: Any) -> None:
    for i in range(g.size):
        out[i] = np.float64(y[i]) * (np.float64(g[i]) - s)


@compiled_ieee
def _log_softmax_gradient(g: Any, y: Any, s: Any, out: Any) -> None:
    for i in range(g.size):
        out[i] = np.float64(g[i]) - exp(np.float64(y[i])) * s


@compiled_ieee
def softmax_backward(g: Any, y: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """Gradient of softmax for rows ``begin`` to ``end`` of ``n`` values."""
    for at in range(begin * n, end * n, n):
        left, right = g[at : at + n], y[at : at + n]
        _softmax_gradient(left, right, _product_sum(left, right), out[at : at + n])


@compiled_ieee
def softmax_backward_across(g: Any, y: Any, out: Any, n: Any, d: Any, tile: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    left, right, found = np.empty(tile * n), np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        gather(g, at, n, d, width, left)
        gather(y, at, n, d, width, right)
        softmax_backward(left, right, found, n, 0, width)
        scatter(found, at, n, d, width, out)


@compiled_ieee
def log_softmax_backward(g: Any, y: Any, out: Any, n: Any, begin: Any, end: Any) -> None:
    """Gradient of log_softmax for rows ``begin`` to ``end`` of ``n`` values."""
    for at in range(begin * n, end * n, n):
        left = g[at : at + n]
        _log_softmax_gradient(left, y[at : at + n], _sum(left), out[at : at + n])


@compiled_ieee
def log_softmax_backward_across(g: Any, y: Any, out: Any, n: Any, d: Any, tile: Any, begin: Any, end: Any) -> None:
    """The same for columns, ``d`` of them side by side; items ``begin`` to ``end`` of ``tile`` columns."""
    left, right, found = np.empty(tile * n), np.empty(tile * n), np.empty(tile * n)
    tiles = (d + tile - 1) // tile
    for item in range(begin, end):
        first = item % tiles * tile
        at, width = item // tiles * n * d + first, min(tile, d - first)
        gather(g, at, n, d, width, left)
        gather(y, at, n, d, width, right)
        log_softmax_backward(left, right, found, n, 0, width)
        scatter(found, at, n, d, width, out)
