"""Exact normalisations, compiled, on the CPU. ``engine.norm_steps`` defines them.

Each function returns None where the compiled loops do not apply: another device, a NaN, an infinity or a term of 2**480
and more somewhere. The caller sees to it that every sum has at least two terms and at most ``MAX_SUM_TERMS``.

The input may be float32: what is computed from it in float64 is then cut to float32 as it is written. All else is
float64.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_norms as _jit
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.norm_layout import (
    Groups,
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


class Normalised(NamedTuple):
    """A normalised tensor, and of each group the mean, the sum of squares (not of rows), 1 / standard deviation.

    The statistics are float64.
    """

    y: Tensor
    mean: Tensor
    squares: Tensor | None
    invstd: Tensor


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: Groups, centred: bool = True
) -> Normalised | None:
    """Return ``x`` normalised by the statistics of its groups, which are flat; ``centred`` False: the means are 0."""
    if not use_compiled(x):
        return None
    matrix = matrix_of(x) if groups.by_channel else None
    if matrix is not None:
        return _normalise_columns(x, matrix, weight, bias, eps)
    x = x.detach().contiguous()
    y, count, bits = torch.empty_like(x), prod(groups.statistics_shape), sum_bits(groups.terms)
    w, b = vector(weight, groups, 1.0), vector(bias, groups, 0.0)
    mean, squares, invstd = (torch.empty(count, dtype=torch.float64) for _ in range(3))
    fine = np.ones(count, np.bool_)
    values, out, m, s, r = (flat(t) for t in (x, y, mean, squares, invstd))
    if len(groups.shape) == 2:
        in_parts(lambda i, j: _jit.rows(values, out, w, b, eps, bits, centred, m, r, fine, i, j), count, x.numel())
        return Normalised(y, mean, None, invstd) if fine.all() else None
    at = runs_of(groups)
    tile = together(at.sizes)

    def work(begin: int, end: int) -> None:
        buffer = scratch.take("x", tile * (groups.terms + _jit.PADDING)).numpy()
        _jit.runs(values, out, w, b, at.sizes, at.weights, tile, eps, bits, m, s, r, fine, buffer, begin, end)

    in_parts(work, count, x.numel())
    return Normalised(y, mean, squares, invstd) if fine.all() else None


def _normalise_columns(
    x: Tensor, matrix: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Normalised | None:
    rows, width = matrix.shape
    bits, groups = sum_bits(rows), Groups((rows, width, 1))
    values, size = flat(matrix), matrix.numel()
    pairs = of_parts(lambda into, i, j: _jit.column_keys(values, into[0], into[1], i, j), (2, width), rows, size)
    top, bottom = pairs[:, 0].max(axis=0), pairs[:, 1].min(axis=0)
    shifts = np.empty(width)
    if not _jit.column_shifts(top, bottom, bits, shifts):
        return None
    units = of_parts(lambda into, i, j: _jit.column_units(values, shifts, into, i, j), (width,), rows, size)
    mean, squares, invstd = (torch.empty(width, dtype=torch.float64) for _ in range(3))
    m, r = mean.numpy(), invstd.numpy()
    if not _jit.column_means(units.sum(axis=0), top, bottom, rows, bits, m, shifts):
        return None
    units = of_parts(
        lambda into, i, j: _jit.column_square_units(values, m, shifts, into, i, j), (width,), rows, size
    )  # fmt: skip
    _jit.column_inverses(units.sum(axis=0), shifts, rows, eps, squares.numpy(), r)
    y = torch.empty_like(matrix)
    w, b, out = vector(weight, groups, 1.0), vector(bias, groups, 0.0), flat(y)
    in_parts(lambda i, j: _jit.column_apply(values, out, m, r, w, b, i, j), rows, size)
    return Normalised(shaped_like(y, x), mean, squares, invstd)


def apply_statistics(
    x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None, groups: Groups
) -> Tensor | None:
    """Return ``x``, whose channels are its groups, normalised by these statistics (flat)."""
    if not use_compiled(x):
        return None
    w, b = vector(weight, groups, 1.0), vector(bias, groups, 0.0)
    m, r = flat(mean), flat(invstd)
    matrix = matrix_of(x)
    if matrix is not None:
        y = torch.empty_like(matrix)
        values, out = flat(matrix), flat(y)
        in_parts(lambda i, j: _jit.column_apply(values, out, m, r, w, b, i, j), len(matrix), x.numel())
        return shaped_like(y, x)
    x = x.detach().contiguous()
    y, at = torch.empty_like(x), runs_of(groups)
    values, out = flat(x), flat(y)
    in_parts(lambda i, j: _jit.runs_apply(values, out, w, b, at.sizes, m, r, i, j), groups.shape[1], x.numel())
    return y
