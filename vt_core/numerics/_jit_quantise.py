"""Compiled quantisation (CPU) over arrays of shape (reduced A, kept B, reduced C, kept D); see ``quantise``.

The scale needs exponents alone, so the first pass is an integer maximum, which LLVM vectorises. One file of its own:
numba's cache notices changes of a function's own file only. No fastmath.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from vt_core.numerics._jit import _compiled
from vt_core.numerics.threads import pool, worker_count

_EXPONENT = np.int64(0x7FF0000000000000)
_LOWEST = np.int64(1022 - 400)
_HIGHEST = np.int64(1022 + 480)
_LIMIT = 2.0**480
_SMALL = 1 << 15


@_compiled
def _shift(largest: Any, bits: Any) -> Any:
    """Return 1.5 * 2**52 units for a group whose largest exponent field is ``largest``."""
    field = min(max(largest >> 52, _LOWEST), _HIGHEST)
    return np.int64(((field + 53 - bits) << 52) | (1 << 51)).view(np.float64)


@_compiled
def _round(v: Any, shift: Any) -> Any:
    r = (v + shift) - shift
    far = np.copysign(np.inf, v)
    r = far if abs(v) >= _LIMIT else r
    return r if v == v else v


@_compiled
def _field(pattern: Any) -> Any:
    """Return the exponent field (in place) of a float64's bits, 0 for NaN and infinities."""
    field = pattern & _EXPONENT
    return field if field != _EXPONENT else np.int64(0)


@_compiled
def _one_largest(pattern: Any, largest: Any) -> Any:
    for i in range(pattern.size):
        largest = max(largest, _field(pattern[i]))
    return largest


@_compiled
def _each_largest(pattern: Any, into: Any) -> None:
    for i in range(pattern.size):
        field = _field(pattern[i])
        into[i] = field if field > into[i] else into[i]


@_compiled
def _round_one(x: Any, out: Any, shift: Any) -> None:
    for i in range(x.size):
        out[i] = _round(x[i], shift)


@_compiled
def _round_each(x: Any, out: Any, shifts: Any) -> None:
    for i in range(x.size):
        out[i] = _round(x[i], shifts[i])


# Loops run over slices, not over computed indexes: only then does LLVM know that none is negative, and vectorises.


@_compiled
def _rows(x: Any, out: Any, begin: Any, end: Any, length: Any, bits: Any) -> None:
    """Groups are rows: A = D = 1. Each row is read twice while it is in the cache."""
    pattern = x.view(np.int64)
    for row in range(begin, end):
        at, to = row * length, (row + 1) * length
        shift = _shift(_one_largest(pattern[at:to], np.int64(0)), bits)
        _round_one(x[at:to], out[at:to], shift)


@_compiled
def _largest(x: Any, into: Any, a: Any, b0: Any, b1: Any, b: Any, c: Any, d: Any) -> None:
    """Put the largest exponent field of each group (b, d), b0 <= b < b1, into ``into`` (B * D)."""
    pattern = x.view(np.int64)
    for i in range(a):
        for j in range(b0, b1):
            start = (i * b + j) * c * d
            if d == 1:
                into[j] = _one_largest(pattern[start : start + c], into[j])
                continue
            for k in range(c):
                at = start + k * d
                _each_largest(pattern[at : at + d], into[j * d : (j + 1) * d])


@_compiled
def _apply(x: Any, out: Any, shifts: Any, a: Any, b0: Any, b1: Any, b: Any, c: Any, d: Any) -> None:
    for i in range(a):
        for j in range(b0, b1):
            start = (i * b + j) * c * d
            if d == 1:
                _round_one(x[start : start + c], out[start : start + c], shifts[j])
                continue
            for k in range(c):
                at = start + k * d
                _round_each(x[at : at + d], out[at : at + d], shifts[j * d : (j + 1) * d])


@_compiled
def _shifts(largest: Any, shifts: Any, bits: Any) -> None:
    for i in range(largest.size):
        shifts[i] = _shift(largest[i], bits)


@_compiled
def _columns_largest(x: Any, into: Any, rows: Any, d: Any, c0: Any, c1: Any) -> None:
    """Groups are columns of (rows, d): A = B = 1. This thread's are c0 to c1."""
    pattern = x.view(np.int64)
    for k in range(rows):
        _each_largest(pattern[k * d + c0 : k * d + c1], into[c0:c1])


@_compiled
def _columns_apply(x: Any, out: Any, shifts: Any, rows: Any, d: Any, c0: Any, c1: Any) -> None:
    for k in range(rows):
        _round_each(x[k * d + c0 : k * d + c1], out[k * d + c0 : k * d + c1], shifts[c0:c1])


def quantise(x: Any, out: Any, a: int, b: int, c: int, d: int, bits: int) -> None:
    """Quantise the flat float64 array ``x`` of shape (a, b, c, d) into ``out``; a group for each (b, d)."""
    if a == 1 and d == 1:
        _share(lambda begin, end: _rows(x, out, begin, end, c, bits), b, x.size)
        return
    largest = np.zeros(b * d, np.int64)
    shifts = np.empty(b * d, np.float64)
    if b == 1:
        rows = a * c
        _share(lambda begin, end: _columns_largest(x, largest, rows, d, begin, end), d, x.size)
        _shifts(largest, shifts, bits)
        _share(lambda begin, end: _columns_apply(x, out, shifts, rows, d, begin, end), d, x.size)
        return
    _share(lambda begin, end: _largest(x, largest, a, begin, end, b, c, d), b, x.size)
    _shifts(largest, shifts, bits)
    _share(lambda begin, end: _apply(x, out, shifts, a, begin, end, b, c, d), b, x.size)


def _share(work: Any, count: int, size: int) -> None:
    """Split ``count`` groups over the cores; small arrays stay on this thread."""
    pieces = min(worker_count(), count) if size > _SMALL else 1
    if pieces == 1:
        work(0, count)
        return
    bounds = [count * i // pieces for i in range(pieces + 1)]
    waiting: list[Future[Any]] = [pool().submit(work, bounds[i], bounds[i + 1]) for i in range(pieces)]
    for future in waiting:
        future.result()
