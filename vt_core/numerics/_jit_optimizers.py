"""Optimizer updates in one pass over memory (CPU): the sequence of ``engine.updates``, element by element.

Each line is one IEEE operation of the compute dtype and ``_rnd`` stands where the sequence rounds onto the grid, so
the bits are those of the operations run one by one. No fastmath, so LLVM may not contract ``a * b + c`` into one
rounding.

``params`` describes the grid as in ``_jit``; it is None for float32, whose rounding is the processor's conversion.
A branch on an argument that is None is gone after compilation, so one source gives a loop without branches for each
kind of update. Arrays are flat, contiguous and disjoint; scalars have the compute dtype. Loops run over slices: only
then does LLVM know that no index is negative, and vectorises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_rounding import rnd
from vt_core.numerics.threads import share, worker_count

_FACTOR = np.uint64(0x9E3779B1)
_LOW_32 = np.uint64(0xFFFFFFFF)
_LOW_64 = 0xFFFFFFFFFFFFFFFF
_ONE, _TWO = np.uint64(1), np.uint64(2)
_SMALL = 1 << 15

GridParams = tuple[float, float, int, int] | None


@compiled_ieee
def _rnd(x: Any, params: Any) -> Any:
    """Round onto the grid as float64: +0 for -0, any NaN for NaN."""
    if params is None:
        return np.float64(np.float32(x)) + 0.0
    v = np.float64(x)
    return (rnd(v, params) if v == v else v) + 0.0


@compiled_ieee
def _stored(y: Any) -> Any:
    """Return a grid value with the canonical NaN."""
    return y if y == y else np.nan


@compiled_ieee
def _bits(y: Any) -> Any:
    return np.uint64(np.float32(y).view(np.uint32))


@compiled_ieee
def _adam_block(
    p: Any, g: Any, m: Any, v: Any, top: Any, first: Any, sign: Any, shrink: Any, decay: Any, near: Any, weight1: Any,
    beta2: Any, weight2: Any, bias2: Any, eps: Any, value: Any, params: Any,
) -> Any:  # fmt: skip
    """Update slices whose first element has the row-major index ``first``; return four fingerprints."""
    kind = p.dtype.type
    sum_p, sum_m, sum_v, sum_top = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(p.size):
        factor = ((_TWO * (first + np.uint64(i)) + _ONE) * _FACTOR) & _LOW_32
        x, d, old = p[i], g[i] * sign, m[i]
        if shrink is not None:
            x = kind(_rnd(x * shrink, params))
        if decay is not None:
            d = kind(_rnd(d + x * decay, params))
        mean = kind(_stored(_rnd((old if near else d) + (d - old) * weight1, params)))
        square = kind(_rnd(v[i] * beta2, params))
        square = kind(_stored(_rnd(square + (d * d) * weight2, params)))
        bound = square
        if top is not None:
            seen = top[i]
            bound = square if square > seen or square != square else seen
            bound = kind(_stored(_rnd(bound, params)))
            top[i] = bound
            sum_top += _bits(bound) * factor
        root = kind(_rnd(np.sqrt(bound), params))
        scale = kind(_rnd(root / bias2 + eps, params))
        x = kind(_stored(_rnd(x + (mean / scale) * value, params)))
        p[i], m[i], v[i] = x, mean, square
        sum_p += _bits(x) * factor
        sum_m += _bits(mean) * factor
        sum_v += _bits(square) * factor
    return sum_p, sum_m, sum_v, sum_top


@compiled_ieee
def _sgd_block(
    p: Any, g: Any, b: Any, first: Any, sign: Any, decay: Any, momentum: Any, weight: Any, nesterov: Any, step: Any,
    params: Any,
) -> Any:  # fmt: skip
    """Update slices whose first element has the row-major index ``first``; return two fingerprints.

    ``b`` is None without momentum, ``momentum`` None where the buffer only takes the gradient, ``nesterov`` None or
    the momentum once more, and ``step`` the negative learning rate.
    """
    kind = p.dtype.type
    sum_p, sum_b = np.uint64(0), np.uint64(0)
    for i in range(p.size):
        factor = ((_TWO * (first + np.uint64(i)) + _ONE) * _FACTOR) & _LOW_32
        x, d = p[i], g[i] * sign
        if decay is not None:
            d = kind(_rnd(d + x * decay, params))
        if b is not None:
            if momentum is not None:
                used = kind(_rnd(b[i] * momentum, params))
                used = kind(_rnd(used + d * weight, params))
            else:
                used = d  # a copy, which is put on the grid after its use
            kept = kind(_stored(_rnd(used, params)))
            b[i] = kept
            sum_b += _bits(kept) * factor
            if nesterov is not None:
                d = kind(_rnd(d + used * nesterov, params))
            else:
                d = used
        x = kind(_stored(_rnd(x + d * step, params)))
        p[i] = x
        sum_p += _bits(x) * factor
    return sum_p, sum_b


@compiled_ieee
def _adam(
    p: Any, g: Any, m: Any, v: Any, top: Any, start: Any, stop: Any, sign: Any, shrink: Any, decay: Any, near: Any,
    weight1: Any, beta2: Any, weight2: Any, bias2: Any, eps: Any, value: Any, params: Any,
) -> Any:  # fmt: skip
    largest = None if top is None else top[start:stop]
    return _adam_block(
        p[start:stop], g[start:stop], m[start:stop], v[start:stop], largest, np.uint64(start), sign, shrink, decay,
        near, weight1, beta2, weight2, bias2, eps, value, params,
    )  # fmt: skip


@compiled_ieee
def _sgd(
    p: Any, g: Any, b: Any, start: Any, stop: Any, sign: Any, decay: Any, momentum: Any, weight: Any, nesterov: Any,
    step: Any, params: Any,
) -> Any:  # fmt: skip
    buffer = None if b is None else b[start:stop]
    return _sgd_block(
        p[start:stop], g[start:stop], buffer, np.uint64(start), sign, decay, momentum, weight, nesterov, step, params
    )


def adam(
    p: NDArray[Any], g: NDArray[Any], m: NDArray[Any], v: NDArray[Any], top: NDArray[Any] | None, *, maximize: bool,
    shrink: float | None, decay: float | None, weight1: float, beta2: float, weight2: float, bias2: float, eps: float,
    value: float, params: GridParams,
) -> list[int]:  # fmt: skip
    """Update ``p``, ``m``, ``v`` and ``top`` (flat, contiguous, of one size and compute dtype) in place.

    Scalars as in ``engine.updates``. Returns the fingerprints of the four, 0 for ``top`` if it is None.
    """
    kind = p.dtype.type
    near = weight1 < 0.5
    scalars = (
        _sign(kind, maximize), _cast(kind, shrink), _cast(kind, decay), near, kind(weight1 if near else weight1 - 1.0),
        kind(beta2), kind(weight2), kind(bias2), kind(eps), kind(value), params,
    )  # fmt: skip
    return _in_pieces(lambda start, stop: _adam(p, g, m, v, top, start, stop, *scalars), p.size, 4)


def sgd(
    p: NDArray[Any], g: NDArray[Any], b: NDArray[Any] | None, *, maximize: bool, decay: float | None,
    momentum: float | None, weight: float, nesterov: float | None, step: float, params: GridParams,
) -> list[int]:  # fmt: skip
    """Update ``p`` and the momentum buffer ``b`` (flat, contiguous, of one size and compute dtype) in place.

    Scalars as in :func:`_sgd_block`. Returns the fingerprints of both, 0 for ``b`` if it is None.
    """
    kind = p.dtype.type
    scalars = (
        _sign(kind, maximize), _cast(kind, decay), _cast(kind, momentum), kind(weight), _cast(kind, nesterov),
        kind(step), params,
    )  # fmt: skip
    return _in_pieces(lambda start, stop: _sgd(p, g, b, start, stop, *scalars), p.size, 2)


def _sign(kind: Any, negative: bool) -> Any:
    return kind(-1.0 if negative else 1.0)


def _cast(kind: Any, value: float | None) -> Any:
    return None if value is None else kind(value)


def _in_pieces(work: Callable[[int, int], tuple[Any, ...]], size: int, sums: int) -> list[int]:
    """Apply ``work(start, stop)`` to pieces that cover ``range(size)`` and add up what it returns, modulo 2**64."""
    workers = worker_count() if size > _SMALL else 1
    if workers == 1:
        return [int(n) for n in work(0, size)] if size else [0] * sums
    # More pieces than workers: a slow core does not hold up the others.
    count = 4 * workers
    bounds = [size * i // count for i in range(count + 1)]
    found = share(lambda i: work(bounds[i], bounds[i + 1]), count, workers)
    return [sum(int(piece[k]) for piece in found) & _LOW_64 for k in range(sums)]
