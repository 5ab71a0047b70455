"""Compiled sums over the rows of a matrix, for the backward pass of the exact normalisations (CPU); see ``norms``.

Each thread has its part of the rows; what it finds of a column is combined without a rounding. ``x``, ``dy`` and ``dx``
are all float64 or all float32, all else is float64. No fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled_ieee
from vt_core.numerics._jit_units import LIMIT_BITS, magnitude, raise_to, shift_for, take_shifts_off, unit_of


@compiled_ieee
def _add_row(
    x: Any, dy: Any, mean: Any, invstd: Any, shifts: Any, product_shifts: Any, into: Any, products: Any
) -> None:  # fmt: skip
    for i in range(x.size):
        t = dy[i] * ((x[i] - mean) * invstd)
        into[i] += np.float64(dy[i] + shifts[i]).view(np.int64)
        products[i] += np.float64(t + product_shifts[i]).view(np.int64)


@compiled_ieee
def _add_two_rows(
    x: Any, dy: Any, mean: Any, invstd: Any, z: Any, dz: Any, other_mean: Any, other_invstd: Any, shifts: Any,
    product_shifts: Any, into: Any, products: Any,
) -> None:  # fmt: skip
    for i in range(x.size):
        t, u = dy[i] * ((x[i] - mean) * invstd), dz[i] * ((z[i] - other_mean) * other_invstd)
        shift, product_shift = shifts[i], product_shifts[i]
        into[i] += np.float64(dy[i] + shift).view(np.int64) + np.float64(dz[i] + shift).view(np.int64)
        products[i] += np.float64(t + product_shift).view(np.int64) + np.float64(u + product_shift).view(np.int64)


@compiled_ieee
def row_units(
    x: Any, dy: Any, mean: Any, invstd: Any, shifts: Any, product_shifts: Any, into: Any, products: Any, begin: Any,
    end: Any,
) -> None:  # fmt: skip
    """Put each column's sums of dy and of dy * ((x - mean) * invstd), statistics by row, in units."""
    width = into.size
    into[:], products[:] = 0, 0
    for r in range(begin, end - 1, 2):
        p, q, s = r * width, (r + 1) * width, r + 1
        _add_two_rows(
            x[p : p + width], dy[p : p + width], mean[r], invstd[r], x[q : q + width], dy[q : q + width], mean[s],
            invstd[s], shifts, product_shifts, into, products,
        )  # fmt: skip
    if (end - begin) % 2:
        r = end - 1
        p = r * width
        _add_row(
            x[p : p + width], dy[p : p + width], mean[r], invstd[r], shifts, product_shifts, into, products
        )  # fmt: skip
    take_shifts_off(into, shifts, end - begin)
    take_shifts_off(products, product_shifts, end - begin)


@compiled_ieee
def _raise_to_centred_products(x: Any, dy: Any, mean: Any, most: Any, new: Any) -> None:
    for i in range(x.size):
        new[i] = max(most[i], magnitude((x[i] - mean[i]) * dy[i]))


@compiled_ieee
def column_largest(x: Any, dy: Any, mean: Any, most: Any, most_product: Any, begin: Any, end: Any) -> None:
    """Put the largest bits of dy and of (x - mean) * dy, columns being the groups."""
    width = most.size
    most[:], most_product[:] = 0, 0
    now, now_product, then, then_product = most, most_product, np.empty_like(most), np.empty_like(most)
    for r in range(begin, end):
        row, grad = x[r * width : (r + 1) * width], dy[r * width : (r + 1) * width]
        raise_to(grad, now, then)
        _raise_to_centred_products(row, grad, mean, now_product, then_product)
        now, now_product, then, then_product = then, then_product, now, now_product
    most[:], most_product[:] = now, now_product


@compiled_ieee
def _add_by_column(
    x: Any, dy: Any, mean: Any, shifts: Any, product_shifts: Any, into: Any, products: Any
) -> None:  # fmt: skip
    for i in range(x.size):
        into[i] += np.float64(dy[i] + shifts[i]).view(np.int64)
        t = (x[i] - mean[i]) * dy[i]
        products[i] += np.float64(t + product_shifts[i]).view(np.int64)


@compiled_ieee
def column_units(
    x: Any, dy: Any, mean: Any, shifts: Any, product_shifts: Any, into: Any, products: Any, begin: Any, end: Any
) -> None:  # fmt: skip
    """Put each column's sums of dy and of (x - mean) * dy in units."""
    width = into.size
    into[:], products[:] = 0, 0
    for r in range(begin, end):
        at = r * width
        _add_by_column(x[at : at + width], dy[at : at + width], mean, shifts, product_shifts, into, products)
    take_shifts_off(into, shifts, end - begin)
    take_shifts_off(products, product_shifts, end - begin)


@compiled_ieee
def column_shifts(most: Any, bits: Any, shifts: Any) -> Any:
    """Put the shifts of sums whose terms have these largest bits; return whether all are fine."""
    fine = True
    for j in range(most.size):
        fine &= most[j] < LIMIT_BITS
        shifts[j] = shift_for(most[j], bits)
    return fine


@compiled_ieee
def column_totals(units: Any, shifts: Any, total: Any) -> None:
    """Put the sums."""
    for j in range(units.size):
        total[j] = units[j] * unit_of(shifts[j])


@compiled_ieee
def _gradient_by_column(x: Any, dy: Any, dx: Any, mean: Any, shared: Any, slope: Any, scale: Any) -> None:
    for i in range(x.size):
        dx[i] = ((dy[i] - shared[i]) - (x[i] - mean[i]) * slope[i]) * scale[i]


@compiled_ieee
def _scale_by_column(dy: Any, dx: Any, scale: Any) -> None:
    for i in range(dy.size):
        dx[i] = dy[i] * scale[i]


@compiled_ieee
def column_gradient(
    x: Any, dy: Any, dx: Any, mean: Any, shared: Any, slope: Any, scale: Any, training: Any, begin: Any, end: Any
) -> None:  # fmt: skip
    """Put the gradients of rows ``begin`` to ``end``, columns being the groups."""
    width = mean.size
    for r in range(begin, end):
        at = r * width
        if training:
            _gradient_by_column(
                x[at : at + width], dy[at : at + width], dx[at : at + width], mean, shared, slope, scale
            )  # fmt: skip
        else:
            _scale_by_column(dy[at : at + width], dx[at : at + width], scale)
