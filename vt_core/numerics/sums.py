"""Sums of quantised values: exact in float64, so that their order changes nothing.

Float32 values are widened first; the compiled loops do so as they read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_quantise, _jit_sums
from vt_core.numerics._jit_quantise import SCALE, Scales, in_parts
from vt_core.numerics.quantise import check_float64, dense_steps, four_sizes, memory_order, quantise, use_compiled
from vt_core.numerics.threads import worker_count

TILE = 1024
"""Most groups side by side that are summed at once."""


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


def quantised_sum_of_single(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    """Return ``quantised_sum(x.double(), dims, bits)`` of a float32 tensor."""
    if use_compiled(x) and x.numel():
        found = _compiled(x.detach(), sorted(d % x.dim() for d in dims), bits)
        if found is not None:
            return found
    return quantised_sum(x.detach().double(), dims, bits)


def _compiled(x: Tensor, dims: Sequence[int], bits: int) -> Tensor | None:
    """Return the sum (float64) of float64 or float32 values without the quantised ones in memory.

    None for NaN, infinities and rare layouts.
    """
    order = memory_order(x)
    dense = x.permute(order).contiguous()
    sizes = four_sizes(dense.shape, [order.index(d) for d in dims])
    if sizes is None:
        return None
    a, b, c, d = sizes
    steps, flat, size = dense_steps(sizes), dense.view(-1).numpy(), x.numel()
    kept = [p for p in order if p not in dims]
    result = torch.empty([x.shape[p] for p in kept], dtype=torch.float64)
    out = result.view(-1).numpy()
    tile = min(d, TILE, max(64, -(-d * b // (8 * worker_count())) * 8))
    count = b if d == 1 else b * -(-d // tile)
    if x.dtype == torch.float32:
        fine = np.ones(b * d, np.bool_)
        if d == 1:
            in_parts(lambda i, j: _jit_sums.along_single(flat, a, c, steps, bits, fine, out, i, j), count, size)
        else:
            in_parts(
                lambda i, j: _jit_sums.across_single(flat, a, c, d, steps, tile, bits, fine, out, i, j), count, size
            )  # fmt: skip
        if not fine.all():
            return None
    else:
        scales = Scales(b * d)
        _jit_quantise.quantise(flat, flat, sizes, steps, steps, bits, SCALE, scales)
        if scales.far.any():
            return None
        shifts = scales.shifts
        if d == 1:
            in_parts(lambda i, j: _jit_sums.along(flat, a, c, steps, shifts, out, i, j), count, size)
        else:
            in_parts(lambda i, j: _jit_sums.across(flat, a, c, d, steps, tile, shifts, out, i, j), count, size)
    return result.permute([kept.index(p) for p in sorted(kept)])
