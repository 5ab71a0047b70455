"""Optimizer updates in one pass over memory (CPU): the sequence of ``engine.updates``, element by element.

Each line is one IEEE operation of the compute dtype and ``_rnd`` stands where the sequence rounds onto the grid, so
the bits are those of the operations run one by one. No fastmath, so LLVM may not contract ``a * b + c`` into one
rounding.

``params`` describes the grid as in ``_jit``; it is None for float32, whose rounding is the processor's conversion.
``tame`` is None for float32 too, and where the grid has no tame values (``_jit_base`` explains them). Else each block
is updated first as if all values that are rounded in it were tame. If the largest of their exponents says that one was
not, the block gets its old values back and is updated again by way of float64.

A branch on an argument that is None is gone after compilation, so one source gives a loop without branches for each
kind of update and of rounding. Arrays are flat, contiguous and disjoint; scalars have the compute dtype. Loops run
over slices: only then does LLVM know that no index is negative, and vectorises. They hold nothing wider than the
compute dtype if they can do without, as the widest type decides how many elements are handled at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vt_core.numerics._jit import block_fingerprint
from vt_core.numerics._jit_base import BLOCK, EXPONENT, LIMIT, SHIFT, SMALLEST, bits_of, both, compiled_ieee, larger
from vt_core.numerics._jit_rounding import rnd
from vt_core.numerics._jit_rounding import tame as rnd_tame
from vt_core.numerics.threads import share, worker_count

_LOW_64 = 0xFFFFFFFFFFFFFFFF
_SMALL = 1 << 15

GridParams = tuple[float, float, int, int] | None


class Tame(NamedTuple):
    """Those of ``ints`` that round tame values; all int32 for float32, int64 for float64."""

    exponent: np.signedinteger[Any]
    smallest: np.signedinteger[Any]
    shift: np.signedinteger[Any]
    limit: np.signedinteger[Any]


def tame_constants(ints: NDArray[Any]) -> Tame | None:
    """Return what the loops take of ``ints``, None if no values are tame."""
    return Tame(ints[EXPONENT], ints[SMALLEST], ints[SHIFT], ints[LIMIT]) if ints[LIMIT] >= 0 else None


@compiled_ieee
def _rnd(x: Any, kind: Any, high: Any, params: Any, tame: Any) -> Any:
    """Round onto the grid: +0 for -0, any NaN for NaN.

    With ``tame``, the result is right only for a tame ``x``. Returns also ``high``, raised to the exponent bits of
    ``x`` with ``tame``.
    """
    if tame is not None:
        high = larger(high, both(bits_of(x), tame.exponent))
        return rnd_tame(x, tame.exponent, tame.smallest, tame.shift), high
    if params is None:
        return kind(np.float64(np.float32(x)) + 0.0), high
    v = np.float64(x)
    return kind((rnd(v, params) if v == v else v) + 0.0), high


@compiled_ieee
def _stored(x: Any, kind: Any, high: Any, params: Any, tame: Any) -> Any:
    """Do as ``_rnd`` with the canonical NaN."""
    y, high = _rnd(x, kind, high, params, tame)
    if tame is None:
        y = y if y == y else kind(np.nan)
    return y, high


@compiled_ieee
def _adam_block(
    p: Any, g: Any, m: Any, v: Any, top: Any, params: Any, tame: Any, sign: Any, shrink: Any, decay: Any, near: Any,
    weight1: Any, beta2: Any, weight2: Any, bias2: Any, eps: Any, value: Any,
) -> Any:  # fmt: skip
    """Update slices. With ``tame``, return the largest exponent bits of what was rounded."""
    kind = p.dtype.type
    high = np.int32(0) if tame is None else tame.smallest
    for i in range(p.size):
        x, d, old = p[i], g[i] * sign, m[i]
        if shrink is not None:
            x, high = _rnd(x * shrink, kind, high, params, tame)
        if decay is not None:
            d, high = _rnd(d + x * decay, kind, high, params, tame)
        mean, high = _stored((old if near else d) + (d - old) * weight1, kind, high, params, tame)
        square, high = _rnd(v[i] * beta2, kind, high, params, tame)
        square, high = _stored(square + (d * d) * weight2, kind, high, params, tame)
        bound = square
        if top is not None:
            seen = top[i]
            bound = square if square > seen or square != square else seen
            bound, high = _stored(bound, kind, high, params, tame)
            top[i] = bound
        root, high = _rnd(np.sqrt(bound), kind, high, params, tame)
        scale, high = _rnd(root / bias2 + eps, kind, high, params, tame)
        x, high = _stored(x + (mean / scale) * value, kind, high, params, tame)
        p[i], m[i], v[i] = x, mean, square
    return high


@compiled_ieee
def _sgd_block(
    p: Any, g: Any, b: Any, params: Any, tame: Any, sign: Any, decay: Any, momentum: Any, weight: Any, nesterov: Any,
    step: Any,
) -> Any:  # fmt: skip
    """Update slices. With ``tame``, return the largest exponent bits of what was rounded.

    ``b`` is None without momentum, ``momentum`` None where the buffer only takes the gradient, ``nesterov`` None or
    the momentum once more, and ``step`` the negative learning rate.
    """
    kind = p.dtype.type
    high = np.int32(0) if tame is None else tame.smallest
    for i in range(p.size):
        x, d = p[i], g[i] * sign
        if decay is not None:
            d, high = _rnd(d + x * decay, kind, high, params, tame)
        if b is not None:
            if momentum is not None:
                used, high = _rnd(b[i] * momentum, kind, high, params, tame)
                used, high = _stored(used + d * weight, kind, high, params, tame)
                b[i] = used
            else:
                used = d  # a copy, which is put on the grid after its use
                b[i], high = _stored(used, kind, high, params, tame)
            if nesterov is not None:
                d, high = _rnd(d + used * nesterov, kind, high, params, tame)
            else:
                d = used
        p[i], high = _stored(x + d * step, kind, high, params, tame)
    return high


@compiled_ieee
def _copy(source: Any, target: Any) -> None:
    """Copy as many elements as both have, by a loop: an assignment to a slice takes ten times as long."""
    if source is not None and target is not None:
        for i in range(min(source.size, target.size)):
            target[i] = source[i]


@compiled_ieee
def _adam(
    p: Any, g: Any, m: Any, v: Any, top: Any, start: Any, stop: Any, params: Any, tame: Any, *scalars: Any
) -> Any:
    """Update the elements from ``start`` to ``stop``; return four fingerprints."""
    old = np.empty((4, BLOCK), p.dtype)
    sum_p, sum_m, sum_v, sum_top = np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        x, d, mean, square = p[begin:end], g[begin:end], m[begin:end], v[begin:end]
        bound = top if top is None else top[begin:end]
        if tame is not None:
            _copy(x, old[0])
            _copy(mean, old[1])
            _copy(square, old[2])
            _copy(bound, old[3])
        high = _adam_block(x, d, mean, square, bound, params, tame, *scalars)
        if tame is not None and high > tame.limit:
            _copy(old[0], x)
            _copy(old[1], mean)
            _copy(old[2], square)
            _copy(old[3], bound)
            _adam_block(x, d, mean, square, bound, params, None, *scalars)
        sum_p += block_fingerprint(x, begin)
        sum_m += block_fingerprint(mean, begin)
        sum_v += block_fingerprint(square, begin)
        if top is not None:
            sum_top += block_fingerprint(bound, begin)
    return sum_p, sum_m, sum_v, sum_top


@compiled_ieee
def _sgd(p: Any, g: Any, b: Any, start: Any, stop: Any, params: Any, tame: Any, *scalars: Any) -> Any:
    """Update the elements from ``start`` to ``stop``; return two fingerprints."""
    old = np.empty((2, BLOCK), p.dtype)
    sum_p, sum_b = np.uint64(0), np.uint64(0)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        x, d = p[begin:end], g[begin:end]
        buffer = b if b is None else b[begin:end]
        if tame is not None:
            _copy(x, old[0])
            _copy(buffer, old[1])
        high = _sgd_block(x, d, buffer, params, tame, *scalars)
        if tame is not None and high > tame.limit:
            _copy(old[0], x)
            _copy(old[1], buffer)
            _sgd_block(x, d, buffer, params, None, *scalars)
        sum_p += block_fingerprint(x, begin)
        if b is not None:
            sum_b += block_fingerprint(buffer, begin)
    return sum_p, sum_b


def adam(
    p: NDArray[Any], g: NDArray[Any], m: NDArray[Any], v: NDArray[Any], top: NDArray[Any] | None, *, maximize: bool,
    shrink: float | None, decay: float | None, weight1: float, beta2: float, weight2: float, bias2: float, eps: float,
    value: float, params: GridParams, tame: Tame | None,
) -> list[int]:  # fmt: skip
    """Update ``p``, ``m``, ``v`` and ``top`` (flat, contiguous, of one size and compute dtype) in place.

    Scalars as in ``engine.updates``. Returns the fingerprints of the four, 0 for ``top`` if it is None.
    """
    kind = p.dtype.type
    near = weight1 < 0.5
    scalars = (
        _sign(kind, maximize), _cast(kind, shrink), _cast(kind, decay), near, kind(weight1 if near else weight1 - 1.0),
        kind(beta2), kind(weight2), kind(bias2), kind(eps), kind(value),
    )  # fmt: skip
    return _in_pieces(lambda start, stop: _adam(p, g, m, v, top, start, stop, params, tame, *scalars), p.size, 4)


def sgd(
    p: NDArray[Any], g: NDArray[Any], b: NDArray[Any] | None, *, maximize: bool, decay: float | None,
    momentum: float | None, weight: float, nesterov: float | None, step: float, params: GridParams, tame: Tame | None,
) -> list[int]:  # fmt: skip
    """Update ``p`` and the momentum buffer ``b`` (flat, contiguous, of one size and compute dtype) in place.

    Scalars as in :func:`_sgd_block`. Returns the fingerprints of both, 0 for ``b`` if it is None.
    """
    kind = p.dtype.type
    scalars = (
        _sign(kind, maximize), _cast(kind, decay), _cast(kind, momentum), kind(weight), _cast(kind, nesterov),
        kind(step),
    )  # fmt: skip
    return _in_pieces(lambda start, stop: _sgd(p, g, b, start, stop, params, tame, *scalars), p.size, 2)


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
