"""Compiled backward pass of the exact normalisations (CPU); see ``norms`` and ``_jit_norms``.

Two sums at once: of the gradient, and of its products with the normalised input. A first pass finds the largest
magnitudes of the terms, a second adds integers. One file of its own: numba's cache notices changes of a function's own
file only. No fastmath.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled

_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)
_LOWEST = np.int64(1022 - 400)
_HIGHEST = np.int64(1022 + 480)
_LIMIT_BITS = np.int64((1023 + 480) << 52)
_HALF = np.int64(1 << 51)
PADDING = 8
"""Values between groups that are copied together; as ``_jit_norms``."""
_compiled = functools.partial(compiled, error_model="numpy")  # IEEE division


@_compiled
def _shift(largest: Any, bits: Any) -> Any:
    """Return 1.5 * 2**52 units; as ``_jit_quantise``."""
    field = min(max(largest >> 52, _LOWEST), _HIGHEST)
    return np.int64(((field + 53 - bits) << 52) | (1 << 51)).view(np.float64)


@_compiled
def _unit(shift: Any) -> Any:
    return np.int64(np.float64(shift).view(np.int64) - _HALF).view(np.float64) * 2.0**-52


@_compiled
def _magnitude(value: Any) -> Any:
    return np.float64(value).view(np.int64) & _MAGNITUDE


@_compiled
def _centre(x: Any, mean: Any, d: Any) -> None:
    for i in range(x.size):
        d[i] = x[i] - mean


@_compiled
def _times(x: Any, factor: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] * factor


@_compiled
def _normalised_products(x: Any, dy: Any, mean: Any, invstd: Any, t: Any) -> None:
    for i in range(x.size):
        t[i] = dy[i] * ((x[i] - mean) * invstd)


@_compiled
def _largest_in(x: Any) -> Any:
    """Return the bits of the largest magnitude; NaN and infinities are larger than all others."""
    most = np.int64(0)
    for i in range(x.size):
        most = max(most, _magnitude(x[i]))
    return most


@_compiled
def _largest_products_in(d: Any, g: Any) -> Any:
    """Return the largest bits of ``g`` and of ``d * g``."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(g.size):
        most = max(most, _magnitude(g[i]))
        most_product = max(most_product, _magnitude(d[i] * g[i]))
    return most, most_product


@_compiled
def _units_in(x: Any, shift: Any) -> Any:
    origin = np.float64(shift).view(np.int64)
    total = np.int64(0)
    for i in range(x.size):
        total += np.float64(x[i] + shift).view(np.int64) - origin
    return total


@_compiled
def _product_units_in(d: Any, g: Any, shift: Any, shift_of_products: Any) -> Any:
    """Return the units of the sum of ``g`` and of that of ``d * g``."""
    origin, other = np.float64(shift).view(np.int64), np.float64(shift_of_products).view(np.int64)
    total, products = np.int64(0), np.int64(0)
    for i in range(g.size):
        total += np.float64(g[i] + shift).view(np.int64) - origin
        products += np.float64(d[i] * g[i] + shift_of_products).view(np.int64) - other
    return total, products


@_compiled
def _gradient(d: Any, g: Any, dx: Any, shared: Any, slope: Any, scale: Any) -> None:
    for i in range(d.size):
        dx[i] = ((g[i] - shared) - d[i] * slope) * scale


@_compiled
def runs(
    x: Any, dy: Any, dx: Any, factor: Any, sizes: Any, weights: Any, tile: Any, bits: Any, mean: Any, invstd: Any,
    scale: Any, training: Any, total: Any, dot: Any, fine: Any, d: Any, g: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Groups ``begin`` to ``end`` of several runs each: their sums and, unless ``dx`` is empty, their gradients."""
    count, length, run_step, group_step = sizes
    period, group_weight, run_weight = weights
    terms = count * length
    pitch = terms + PADDING
    shared, slope = np.empty(tile), np.empty(tile)
    for first in range(begin, end, tile):
        last = min(first + tile, end)
        for i in range(count):
            for j in range(first, last):
                at, to = j * group_step + i * run_step, (j - first) * pitch + i * length
                k = (j % period) * group_weight + i * run_weight
                _centre(x[at : at + length], mean[j], d[to : to + length])
                _times(dy[at : at + length], factor[k], g[to : to + length])
        for j in range(first, last):
            at = (j - first) * pitch
            most, most_product = _largest_products_in(d[at : at + terms], g[at : at + terms])
            fine[j] = max(most, most_product) < _LIMIT_BITS
            if not fine[j]:
                return
            shift, shift_of_products = _shift(most, bits), _shift(most_product, bits)
            units, products = _product_units_in(d[at : at + terms], g[at : at + terms], shift, shift_of_products)
            total[j], dot[j] = units * _unit(shift), products * _unit(shift_of_products)
            shared[j - first] = total[j] / np.float64(terms)
            slope[j - first] = ((dot[j] * invstd[j]) * invstd[j]) / np.float64(terms)
        if dx.size == 0:
            continue
        for i in range(count):
            for j in range(first, last):
                at, to, k = j * group_step + i * run_step, (j - first) * pitch + i * length, j - first
                if training:
                    _gradient(
                        d[to : to + length], g[to : to + length], dx[at : at + length], shared[k], slope[k], scale[j]
                    )  # fmt: skip
                else:
                    _times(g[to : to + length], scale[j], dx[at : at + length])


@_compiled
def channels(
    x: Any, dy: Any, samples: Any, count: Any, length: Any, width: Any, tile: Any, bits: Any, mean: Any, invstd: Any,
    dw: Any, db: Any, fine: Any, t: Any, g: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Gradients of weight and bias of channels ``begin`` to ``end`` of ``count``, ``width`` of them a group."""
    terms = samples * length
    pitch = terms + PADDING
    for first in range(begin, end, tile):
        last = min(first + tile, end)
        for n in range(samples):
            for c in range(first, last):
                at, to, j = (n * count + c) * length, (c - first) * pitch + n * length, (n * count + c) // width
                _times(dy[at : at + length], 1.0, g[to : to + length])
                _normalised_products(x[at : at + length], g[to : to + length], mean[j], invstd[j], t[to : to + length])
        for c in range(first, last):
            at = (c - first) * pitch
            most, most_product = _largest_in(g[at : at + terms]), _largest_in(t[at : at + terms])
            fine[c] = max(most, most_product) < _LIMIT_BITS
            if not fine[c]:
                return
            shift, shift_of_products = _shift(most, bits), _shift(most_product, bits)
            db[c] = _units_in(g[at : at + terms], shift) * _unit(shift)
            dw[c] = _units_in(t[at : at + terms], shift_of_products) * _unit(shift_of_products)


@_compiled
def _largest_of_row(x: Any, dy: Any, mean: Any, weight: Any) -> Any:
    """Return the largest bits of g = dy * weight and of (x - mean) * g."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(x.size):
        g = dy[i] * weight[i]
        most = max(most, _magnitude(g))
        most_product = max(most_product, _magnitude((x[i] - mean) * g))
    return most, most_product


@_compiled
def _units_of_row(x: Any, dy: Any, mean: Any, weight: Any, shift: Any, shift_of_products: Any) -> Any:
    """Return the units of the sums of g and of (x - mean) * g."""
    origin, other = np.float64(shift).view(np.int64), np.float64(shift_of_products).view(np.int64)
    total, products = np.int64(0), np.int64(0)
    for i in range(x.size):
        g = dy[i] * weight[i]
        total += np.float64(g + shift).view(np.int64) - origin
        products += np.float64((x[i] - mean) * g + shift_of_products).view(np.int64) - other
    return total, products


@_compiled
def _gradient_of_row(
    x: Any, dy: Any, dx: Any, mean: Any, weight: Any, shared: Any, slope: Any, scale: Any
) -> None:  # fmt: skip
    for i in range(x.size):
        dx[i] = ((dy[i] * weight[i] - shared) - (x[i] - mean) * slope) * scale


@_compiled
def _raise_to(x: Any, most: Any, new: Any) -> None:
    """Put the larger bits elsewhere: in place it would be a masked store, slow on some processors."""
    for i in range(x.size):
        new[i] = max(most[i], _magnitude(x[i]))


@_compiled
def _raise_to_products(x: Any, dy: Any, mean: Any, invstd: Any, most: Any, new: Any) -> None:
    for i in range(dy.size):
        new[i] = max(most[i], _magnitude(dy[i] * ((x[i] - mean) * invstd)))


@_compiled
def rows(
    x: Any, dy: Any, dx: Any, weight: Any, bits: Any, centred: Any, mean: Any, invstd: Any, fine: Any, most: Any,
    most_product: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Gradients of rows ``begin`` to ``end``; unless ``most`` is empty, the columns' largest terms go there."""
    width = weight.size
    terms = np.float64(width)
    most[:], most_product[:] = 0, 0
    now, now_product, then, then_product = most, most_product, np.empty_like(most), np.empty_like(most)
    for j in range(begin, end):
        row, grad = x[j * width : (j + 1) * width], dy[j * width : (j + 1) * width]
        large, large_product = _largest_of_row(row, grad, mean[j], weight)
        fine[j] = max(large, large_product) < _LIMIT_BITS
        if not fine[j]:
            return
        if dx.size:
            shift, shift_of_products = _shift(large, bits), _shift(large_product, bits)
            units, products = _units_of_row(row, grad, mean[j], weight, shift, shift_of_products)
            shared = (units * _unit(shift)) / terms if centred else 0.0
            slope = (((products * _unit(shift_of_products)) * invstd[j]) * invstd[j]) / terms
            to = dx[j * width : (j + 1) * width]
            _gradient_of_row(row, grad, to, mean[j], weight, shared, slope, invstd[j])
        if most.size:
            _raise_to(grad, now, then)
            _raise_to_products(row, grad, mean[j], invstd[j], now_product, then_product)
            now, now_product, then, then_product = then, then_product, now, now_product
    most[:], most_product[:] = now, now_product
