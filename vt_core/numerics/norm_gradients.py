"""Backward pass of the exact normalisations, compiled; see ``norms`` and ``engine.norm_steps``.

``None`` where the compiled loops do not apply, and the caller's duty, are as there; so is float32, of ``x``, ``dy`` and
the gradient of ``x``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_norms_backward as _jit
from vt_core.numerics import _jit_norms_columns as _columns
from vt_core.numerics._jit_norms import PADDING
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.norm_layout import (
    Groups,
    channels_last,
    flat,
    matrix_of,
    of_parts,
    runs_of,
    scratch,
    shaped_like,
    together,
    vector,
)
from vt_core.numerics.quantise import sum_bits, use_compiled


class Gradients(NamedTuple):
    """Gradients of input, weight and bias; those that were not asked for are None."""

    x: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def gradients(
    x: Tensor, dy: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, groups: Groups,
    mask: tuple[bool, bool, bool], centred: bool = True, training: bool = True,
) -> Gradients | None:  # fmt: skip
    """Return the gradients that ``mask`` asks for; ``training`` False: the statistics (flat) are constants."""
    if not use_compiled(x):
        return None
    matrix = matrix_of(x) if groups.by_channel else None
    if matrix is not None:
        return _gradients_of_columns(x, matrix, dy, weight, mean, invstd, mask, training)
    x, dy = x.detach().contiguous(), dy.detach().contiguous()
    dx = torch.empty_like(x) if mask[0] else None
    count, bits = prod(groups.statistics_shape), sum_bits(groups.terms)
    fine = np.ones(count, np.bool_)
    values, grad = flat(x), flat(dy)
    out = values[:0] if dx is None else flat(dx)
    m, r, w = flat(mean), flat(invstd), vector(weight, groups, 1.0)
    if len(groups.shape) == 2:
        return _gradients_of_rows((values, grad), dx, w, (m, r), groups, mask, centred)
    at, total, dot = runs_of(groups), torch.empty(count, dtype=torch.float64), torch.empty(count, dtype=torch.float64)
    tile = together(at.sizes)
    if groups.by_channel:
        factor, scale, weights = np.ones(1), flat(_scale(invstd, weight)), (1, 0, 0)
    else:
        factor, scale, weights = w, r, at.weights

    def work(begin: int, end: int) -> None:
        d, g = (scratch.take(name, tile * (groups.terms + PADDING)).numpy() for name in ("x", "dy"))
        _jit.runs(
            values, grad, out, factor, at.sizes, weights, tile, bits, m, r, scale, training, total.numpy(), dot.numpy(),
            fine, d, g, begin, end,
        )  # fmt: skip

    if groups.by_channel or mask[0]:
        in_parts(work, count, x.numel())
    if not fine.all():
        return None
    if groups.by_channel:
        return _chosen(mask, dx, dot * invstd, total)
    return _with_channel_sums((values, grad), dx, (m, r), groups, mask)


def _with_channel_sums(
    pair: tuple[Any, Any], dx: Tensor | None, statistics: tuple[Any, Any], groups: Groups, mask: tuple[bool, bool, bool]
) -> Gradients | None:
    if not (mask[1] or mask[2]):
        return Gradients(dx, None, None)
    samples, count, width, length = groups.shape
    dw, db = (torch.empty(count * width, dtype=torch.float64) for _ in range(2))
    fine, bits, terms = np.ones(count * width, np.bool_), sum_bits(groups.weight_terms), groups.weight_terms

    tile = together((samples, length, 0, length))

    def work(begin: int, end: int) -> None:
        t, g = (scratch.take(name, tile * (terms + PADDING)).numpy() for name in ("x", "dy"))
        _jit.channels(
            *pair, samples, count * width, length, width, tile, bits, *statistics, dw.numpy(), db.numpy(), fine, t, g,
            begin, end,
        )  # fmt: skip

    in_parts(work, count * width, pair[0].size)
    return _chosen(mask, dx, dw, db) if fine.all() else None


def _gradients_of_rows(
    pair: tuple[Any, Any], dx: Tensor | None, weight: Any, statistics: tuple[Any, Any], groups: Groups,
    mask: tuple[bool, bool, bool], centred: bool,
) -> Gradients | None:  # fmt: skip
    (rows, width), size, fine = groups.shape, pair[0].size, np.ones(groups.shape[0], np.bool_)
    out = pair[0][:0] if dx is None else flat(dx)
    with_sums = mask[1] or mask[2]
    bits, wanted = sum_bits(groups.terms), width if with_sums else 0

    def work(into: Any, begin: int, end: int) -> None:
        _jit.rows(*pair, out, weight, bits, centred, *statistics, fine, into[0], into[1], begin, end)

    largest = of_parts(work, (2, wanted), rows, size).max(axis=0)
    if not fine.all():
        return None
    if not with_sums:
        return Gradients(dx, None, None)
    m, r = statistics
    sums = _column_sums(
        largest, rows, lambda s, into, i, j: _columns.row_units(*pair, m, r, s[0], s[1], into[0], into[1], i, j), size
    )  # fmt: skip
    return None if sums is None else _chosen(mask, dx, sums[1], sums[0])


def _gradients_of_columns(
    x: Tensor, matrix: Tensor, dy: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor,
    mask: tuple[bool, bool, bool], training: bool,
) -> Gradients | None:  # fmt: skip
    rows, width = matrix.shape
    size, m, pair = matrix.numel(), flat(mean), (flat(matrix), flat(channels_last(dy)))
    largest = of_parts(
        lambda into, i, j: _columns.column_largest(*pair, m, into[0], into[1], i, j), (2, width), rows, size
    ).max(axis=0)  # fmt: skip
    sums = _column_sums(
        largest, rows, lambda s, into, i, j: _columns.column_units(*pair, m, s[0], s[1], into[0], into[1], i, j), size
    )  # fmt: skip
    if sums is None:
        return None
    total, dot = sums
    terms = torch.full_like(total, rows)
    shared, slope, scale = flat(total / terms), flat(((dot * invstd) * invstd) / terms), flat(_scale(invstd, weight))
    dx = None
    if mask[0]:
        made = torch.empty_like(matrix)
        out = flat(made)
        in_parts(
            lambda i, j: _columns.column_gradient(*pair, out, m, shared, slope, scale, training, i, j), rows, size
        )  # fmt: skip
        dx = shaped_like(made, x)
    return _chosen(mask, dx, dot * invstd, total)


def _column_sums(
    largest: Any, rows: int, add: Callable[[Any, Any, int, int], object], size: int
) -> tuple[Tensor, Tensor] | None:
    """Return two sums over the rows, of terms with these largest bits."""
    bits, width = sum_bits(rows), largest.shape[1]
    shifts = np.empty((2, width))
    totals = torch.empty(width, dtype=torch.float64), torch.empty(width, dtype=torch.float64)
    for k in range(2):
        if not _columns.column_shifts(largest[k], bits, shifts[k]):
            return None
    units = of_parts(lambda into, i, j: add(shifts, into, i, j), (2, width), rows, size).sum(axis=0)
    for k in range(2):
        _columns.column_totals(units[k], shifts[k], totals[k].numpy())
    return totals


def _scale(invstd: Tensor, weight: Tensor | None) -> Tensor:
    return invstd if weight is None else invstd * weight.detach().reshape(-1)


def _chosen(mask: tuple[bool, bool, bool], *found: Tensor | None) -> Gradients:
    return Gradients(*(t if wanted else None for t, wanted in zip(found, mask, strict=True)))
