"""Compiled backward pass of the exact normalisations (CPU); see ``norms`` and ``_jit_norms``.

Two sums at once: of the gradient, and of its products with the normalised input. A first pass finds the largest
magnitudes of the terms, a second adds integers. ``x``, ``dy`` and ``dx`` are all float64 or all float32, all else is
float64. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_norms import PADDING
from vt_core.numerics._jit_units import (
    LIMIT_BITS,
    magnitude,
    raise_to,
    shift_for,
    unit_of,
    units_in,
    without_shift,
)


@compiled_ieee
def _times(x: Any, factor: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = x[i] * factor


@compiled_ieee
def _normalised_products(x: Any, dy: Any, mean: Any, invstd: Any, t: Any, g: Any) -> Any:
    """Put ``t = dy * ((x - mean) * invstd)`` and ``g = dy``; return the largest bits of ``g`` and of ``t``."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(x.size):
        grad = np.float64(dy[i])
        product = grad * ((x[i] - mean) * invstd)
        t[i], g[i] = product, grad
        most = max(most, magnitude(grad))
        most_product = max(most_product, magnitude(product))
    return most, most_product


@compiled_ieee
def _prepare(x: Any, dy: Any, mean: Any, factor: Any, d: Any, g: Any) -> Any:
    """Put ``d = x - mean`` and ``g = dy * factor``; return the largest bits of ``g`` and of ``d * g``."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(x.size):
        centred, grad = x[i] - mean, dy[i] * factor
        d[i], g[i] = centred, grad
        most = max(most, magnitude(grad))
        most_product = max(most_product, magnitude(centred * grad))
    return most, most_product


@compiled_ieee
def _product_units_in(d: Any, g: Any, shift: Any, shift_of_products: Any) -> Any:
    """Return the units of the sum of ``g`` and of that of ``d * g``."""
    total, products = np.int64(0), np.int64(0)
    for i in range(g.size):
        total += np.float64(g[i] + shift).view(np.int64)
        products += np.float64(d[i] * g[i] + shift_of_products).view(np.int64)
    return without_shift(total, shift, g.size), without_shift(products, shift_of_products, g.size)


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
    shared, slope, most = np.empty(tile), np.empty(tile), np.empty((tile, 2), np.int64)
    for first in range(begin, end, tile):
        last = min(first + tile, end)
        most[:] = 0
        for i in range(count):
            for j in range(first, last):
                at, to = j * group_step + i * run_step, (j - first) * pitch + i * length
                by = factor[(j % period) * group_weight + i * run_weight]
                one, product = _prepare(
                    x[at : at + length], dy[at : at + length], mean[j], by, d[to : to + length], g[to : to + length]
                )  # fmt: skip
                large = most[j - first]
                large[0], large[1] = max(large[0], one), max(large[1], product)
        for j in range(first, last):
            at, large = (j - first) * pitch, most[j - first]
            fine[j] = max(large[0], large[1]) < LIMIT_BITS
            if not fine[j]:
                return
            shift, shift_of_products = shift_for(large[0], bits), shift_for(large[1], bits)
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
    most = np.empty((tile, 2), np.int64)
    for first in range(begin, end, tile):
        last = min(first + tile, end)
        most[:] = 0
        for n in range(samples):
            for c in range(first, last):
                at, to, j = (n * count + c) * length, (c - first) * pitch + n * length, (n * count + c) // width
                one, product = _normalised_products(
                    x[at : at + length], dy[at : at + length], mean[j], invstd[j], t[to : to + length],
                    g[to : to + length],
                )  # fmt: skip
                large = most[c - first]
                large[0], large[1] = max(large[0], one), max(large[1], product)
        for c in range(first, last):
            at, large = (c - first) * pitch, most[c - first]
            fine[c] = max(large[0], large[1]) < LIMIT_BITS
            if not fine[c]:
                return
            shift, shift_of_products = shift_for(large[0], bits), shift_for(large[1], bits)
            db[c] = units_in(g[at : at + terms], shift) * unit_of(shift)
            dw[c] = units_in(t[at : at + terms], shift_of_products) * unit_of(shift_of_products)


@compiled_ieee
def _prepare_row(x: Any, dy: Any, mean: Any, weight: Any, d: Any, g: Any) -> Any:
    """Do what ``_prepare`` does with a weight for each element."""
    most, most_product = np.int64(0), np.int64(0)
    for i in range(x.size):
        centred, grad = x[i] - mean, dy[i] * weight[i]
        d[i], g[i] = centred, grad
        most = max(most, magnitude(grad))
        most_product = max(most_product, magnitude(centred * grad))
    return most, most_product


@compiled_ieee
def _raise_to_products(d: Any, dy: Any, invstd: Any, most: Any, new: Any) -> None:
    for i in range(dy.size):
        new[i] = max(most[i], magnitude(dy[i] * (d[i] * invstd)))


@compiled_ieee
def rows(
    x: Any, dy: Any, dx: Any, weight: Any, bits: Any, centred: Any, mean: Any, invstd: Any, fine: Any, most: Any,
    most_product: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """Gradients of rows ``begin`` to ``end``; unless ``most`` is empty, the columns' largest terms go there."""
    width = weight.size
    terms = np.float64(width)
    d, g = np.empty(width), np.empty(width)
    most[:], most_product[:] = 0, 0
    now, now_product, then, then_product = most, most_product, np.empty_like(most), np.empty_like(most)
    for j in range(begin, end):
        row, grad = x[j * width : (j + 1) * width], dy[j * width : (j + 1) * width]
        large, large_product = _prepare_row(row, grad, mean[j], weight, d, g)
        fine[j] = max(large, large_product) < LIMIT_BITS
        if not fine[j]:
            return
        if dx.size:
            shift, shift_of_products = shift_for(large, bits), shift_for(large_product, bits)
            units, products = _product_units_in(d, g, shift, shift_of_products)
            shared = (units * unit_of(shift)) / terms if centred else 0.0
            slope = (((products * unit_of(shift_of_products)) * invstd[j]) * invstd[j]) / terms
            _gradient(d, g, dx[j * width : (j + 1) * width], shared, slope, invstd[j])
        if most.size:
            raise_to(grad, now, then)
            _raise_to_products(d, grad, invstd[j], now_product, then_product)
            now, now_product, then, then_product = then, then_product, now, now_product
    most[:], most_product[:] = now, now_product
