"""Exact sums of squared deviations, without the squares in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from vt_core.numerics import _jit_squares
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.quantise import check_float64, use_compiled
from vt_core.numerics.sums import quantised_sum


def squares_sum(x: Tensor, centres: Tensor, bits: int) -> Tensor:
    """Return, for each row of ``x`` (rows, terms), ``quantised_sum`` of ``(x - centre) ** 2``; one centre for each row.

    Centres and result are float64; a float32 ``x`` stands for its values in float64. Exact for
    ``bits <= sum_bits(terms)``. Raises PrecisionError for other dtypes.
    """
    check_float64(centres, *([] if x.dtype == torch.float32 else [x]))
    x, centres = x.detach(), centres.detach()
    if use_compiled(x) and x.numel() and x.is_contiguous():
        out = centres.new_empty(len(x))
        found: list[bool] = []
        flat, by, to, terms = x.view(-1).numpy(), centres.contiguous().numpy(), out.numpy(), x.shape[1]
        in_parts(lambda i, j: found.append(_jit_squares.squares(flat, terms, by, bits, to, i, j)), len(x), x.numel())
        if all(found):
            return out
    deviations = x.double() - centres[:, None]
    return quantised_sum(deviations * deviations, [1], bits)
