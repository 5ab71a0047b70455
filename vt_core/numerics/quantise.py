"""Quantisation to a power-of-two unit, so that sums of products are exact in float64 whatever their order.

A group of values (a row, a column, a channel) with magnitudes below ``2**e`` is rounded to multiples of
``u = 2**(e - bits)``, ties to even: integers of at most ``2**bits`` units. A product of two such groups is a multiple
of ``u1 * u2`` of at most ``2**(2 bits)`` units, and so is every partial sum of K of them while
``2 bits + ceil(log2 K) <= 53``: each fits float64, so order, blocking and FMA change nothing (the first step of Ozaki,
Ogita, Oishi and Rump, *Error-free transformations of matrix multiplication*, 2012). The unit depends on exponents
alone, so both sides compute the same one.

Float64 only. NaN and infinities stay what they are and do not count for the scale. Magnitudes of 2**480 and more become
infinite, exponents below -400 count as -400: then no product of two groups can overflow or become subnormal.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import _jit_quantise as _jit

MAX_BITS = 26
_EXPONENT = 0x7FF0000000000000
_LOWEST = 1022 - 400  # biased exponents
_HIGHEST = 1022 + 480


def product_bits(terms: int) -> int:
    """Return the largest ``bits`` for which a sum of ``terms`` products of two quantised values is exact."""
    return min(MAX_BITS, (53 - max(0, terms - 1).bit_length()) // 2)


def sum_bits(terms: int) -> int:
    """Return the largest ``bits`` for which a sum of ``terms`` quantised values is exact."""
    return 51 - max(0, terms - 1).bit_length()


def quantise(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    """Return ``x`` (float64) rounded to ``bits`` bits below the largest magnitude along ``dims``.

    One unit for each index of the other dimensions; the result has the shape of ``x``, contiguous or transposed.
    Raises PrecisionError for another dtype.
    """
    if x.dtype != torch.float64:
        raise PrecisionError(f"exact contractions need float64, not {x.dtype}")
    if x.numel() == 0:
        return x.detach().clone()
    reduced = sorted(d % x.dim() for d in dims)
    if x.device.type == "cpu" and os.environ.get("VT_REFERENCE_KERNELS") != "1":
        return _compiled(x.detach(), reduced, bits)
    return reference_quantise(x.detach(), reduced, bits)


def reference_quantise(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    """Return the same by plain tensor operations: slow, for any device, and what the compiled form must equal."""
    pattern = x.contiguous().view(torch.int64).view(x.shape)
    exponent = pattern & _EXPONENT
    exponent = torch.where(exponent == _EXPONENT, 0, exponent)
    largest = (exponent.amax(dim=tuple(dims), keepdim=True) >> 52).clamp(_LOWEST, _HIGHEST)
    shift = (((largest + (53 - bits)) << 52) | (1 << 51)).view(torch.float64)  # 1.5 * 2**52 units
    rounded = (x + shift) - shift
    rounded = torch.where(x.abs() >= 2.0**480, torch.copysign(torch.full_like(x, torch.inf), x), rounded)
    return torch.where(torch.isfinite(x), rounded, x)


def _compiled(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    if x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous():
        return _compiled(x.t(), sorted(1 - d for d in dims), bits).t()
    if x.dim() == 3 and not x.is_contiguous() and x.transpose(1, 2).is_contiguous():
        swapped = sorted({0: 0, 1: 2, 2: 1}[d] for d in dims)
        return _compiled(x.transpose(1, 2), swapped, bits).transpose(1, 2)
    x = x.contiguous()
    out = torch.empty_like(x)
    # Neighbouring dimensions that are treated alike are one: what remains alternates between kept and reduced.
    shape: list[int] = []
    kinds: list[bool] = []
    for d, size in enumerate(x.shape):
        if kinds and kinds[-1] == (d in dims):
            shape[-1] *= size
        else:
            shape.append(size)
            kinds.append(d in dims)
    source, target = x.view(-1).numpy(), out.view(-1).numpy()
    if kinds and not kinds[0]:
        kinds, shape = [True, *kinds], [1, *shape]  # (reduced, kept, reduced, kept), any of them of size 1
    shape += [1] * (4 - len(shape))
    if len(shape) > 4:
        return reference_quantise(x, dims, bits)
    _jit.quantise(source, target, shape[0], shape[1], shape[2], shape[3], bits)
    return out
