"""Sums of quantised values: exact in float64, so that their order changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vt_core.numerics import _jit_quantise, _jit_sums
from vt_core.numerics._jit_quantise import SCALE, Scales, in_parts
from vt_core.numerics.quantise import check_float64, dense_steps, four_sizes, memory_order, quantise, use_compiled


def quantised_sum(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    """Return the sum over ``dims`` (at least one, each once) of ``quantise(x, dims, bits)``; these dims are dropped.

    Exact for ``bits <= sum_bits(terms)``. Raises PrecisionError for another dtype than float64.
    """
    check_float64(x)
    x, reduced = x.detach(), sorted(d % x.dim() for d in dims)
    if use_compiled(x) and x.numel():
        found = _compiled(x, reduced, bits)
        if found is not None:
            return found
    return quantise(x, reduced, bits).sum(dim=reduced)


def _compiled(x: Tensor, dims: Sequence[int], bits: int) -> Tensor | None:
    """Return the sum without the quantised values in memory; None for NaN, infinities and rare layouts."""
    order = memory_order(x)
    dense = x.permute(order).contiguous()
    sizes = four_sizes(dense.shape, [order.index(d) for d in dims])
    if sizes is None:
        return None
    a, b, c, d = sizes
    steps, flat, scales = dense_steps(sizes), dense.view(-1).numpy(), Scales(b * d)
    _jit_quantise.quantise(flat, flat, sizes, steps, steps, bits, SCALE, scales)
    if scales.far.any():
        return None
    kept = [p for p in order if p not in dims]
    result = torch.empty([x.shape[p] for p in kept], dtype=torch.float64)
    out, shifts = result.view(-1).numpy(), scales.shifts
    if d == 1:
        in_parts(lambda i, j: _jit_sums.along(flat, a, c, steps, shifts, out, i, j), b, x.numel())
    else:
        tiles = -(-d // _jit_sums.TILE)
        in_parts(lambda i, j: _jit_sums.across(flat, a, c, d, steps, shifts, out, i, j), b * tiles, x.numel())
    return result.permute([kept.index(p) for p in sorted(kept)])
