"""Compiled backward pass of the exact normalisations (CPU); see ``norms`` and ``_jit_norms``.

Two sums at once: of the gradient, and of its products with the normalised input. A first pass finds the largest
magnitudes of the terms, a second adds integers. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_norms import PADDING
from vt_core.numerics._jit_units import LIMIT_BITS, largest_in, magnitude, raise_to, shift_for, unit_of, units_in


@compiled_ieee
def _centre(x: Any, mean: Any, d: Any) -> None:
    for i in range(x.size):
        d[i] = x[i] - mean


@compiled_ieee
def _times(x: Any, factor: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] * factor


@compiled_ieee
def _normalised_products(x: Any, dy: Any, mean: Any, invstd: Any, t: Any) -> None:
    for i in range(x.size):
        t[i] = dy[i] * ((x[i] - mean) * invstd)


@compiled_ieee
def _largest_products_in(d: Any, g: Any) -> Any:
    """Return the largest bits of ``g`` and of ``d * g``."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(g.size):
        most = max(most, magnitude(g[i]))
        most_product = max(most_product, magnitude(d[i] * g[i]))
    return most, most_product


@compiled_ieee
def _product_units_in(d: Any, g: Any, shift: Any, shift_of_products: Any) -> Any:
    """Return the units of the sum of ``g`` and of that of ``d * g``."""
    origin, other = np.float64(shift).view(np.int64), np.float64(shift_of_products).view(np.int64)
    total, products = np.int64(0), np.int64(0)
    for i in range(g.size):
        total += np.float64(g[i] + shift).view(np.int64) - origin
        products += np.float64(d[i] * g[i] + shift_of_products).view(np.int64) - other
    return total, products


@compiled_ieee
def _gradient(d: Any, g: Any, dx: Any, shared: Any, slope: Any, scale: Any) -> None:
    for i in range(d.size):
        dx[i] = ((g[i] - shared) - d[i] * slope) * scale


@compiled_ieee
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
            fine[j] = max(most, most_product) < LIMIT_BITS
            if not fine[j]:
                return
            shift, shift_of_products = shift_for(most, bits), shift_for(most_product, bits)
            units, products = _product_units_in(d[at : at + terms], g[at : at + terms], shift, shift_of_products)
            total[j], dot[j] = units * unit_of(shift), products * unit_of(shift_of_products)
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


@compiled_ieee
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
            most, most_product = (
                largest_in(g[at : at + terms].view(np.int64)),
                largest_in(t[at : at + terms].view(np.int64)),
            )
            fine[c] = max(most, most_product) < LIMIT_BITS
            if not fine[c]:
                return
            shift, shift_of_products = shift_for(most, bits), shift_for(most_product, bits)
            db[c] = units_in(g[at : at + terms], shift) * unit_of(shift)
            dw[c] = units_in(t[at : at + terms], shift_of_products) * unit_of(shift_of_products)


@compiled_ieee
def _largest_of_row(x: Any, dy: Any, mean: Any, weight: Any) -> Any:
    """Return the largest bits of g = dy * weight and of (x - mean) * g."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(x.size):
        g = dy[i] * weight[i]
        most = max(most, magnitude(g))
        most_product = max(most_product, magnitude((x[i] - mean) * g))
    return most, most_product


@compiled_ieee
def _units_of_row(x: Any, dy: Any, mean: Any, weight: Any, shift: Any, shift_of_products: Any) -> Any:
    """Return the units of the sums of g and of (x - mean) * g."""
    origin, other = np.float64(shift).view(np.int64), np.float64(shift_of_products).view(np.int64)
    total, products = np.int64(0), np.int64(0)
    for i in range(x.size):
        g = dy[i] * weight[i]
        total += np.float64(g + shift).view(np.int64) - origin
        products += np.float64((x[i] - mean) * g + shift_of_products).view(np.int64) - other
    return total, products


@compiled_ieee
def _gradient_of_row(
    x: Any, dy: Any, dx: Any, mean: Any, weight: Any, shared: Any, slope: Any, scale: Any
) -> None:  # fmt: skip
    for i in range(x.size):
        dx[i] = ((dy[i] * weight[i] - shared) - (x[i] - mean) * slope) * scale


@compiled_ieee
def _raise_to_products(x: Any, dy: Any, mean: Any, invstd: Any, most: Any, new: Any) -> None:
    for i in range(dy.size):
        new[i] = max(most[i], magnitude(dy[i] * ((x[i] - mean) * invstd)))


@compiled_ieee
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
        fine[j] = max(large, large_product) < LIMIT_BITS
        if not fine[j]:
            return
        if dx.size:
            shift, shift_of_products = shift_for(large, bits), shift_for(large_product, bits)
            units, products = _units_of_row(row, grad, mean[j], weight, shift, shift_of_products)
            shared = (units * unit_of(shift)) / terms if centred else 0.0
            slope = (((products * unit_of(shift_of_products)) * invstd[j]) * invstd[j]) / terms
            to = dx[j * width : (j + 1) * width]
            _gradient_of_row(row, grad, to, mean[j], weight, shared, slope, invstd[j])
        if most.size:
            raise_to(grad, now, then)
            _raise_to_products(row, grad, mean[j], invstd[j], now_product, then_product)
            now, now_product, then, then_product = then, then_product, now, now_product
    most[:], most_product[:] = now, now_product
