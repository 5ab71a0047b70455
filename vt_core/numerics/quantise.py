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
from vt_core.numerics._jit_quantise import BOTH, ROUND, Scales
from vt_core.numerics._jit_units import HIGHEST, LIMIT, LOWEST

MAX_BITS = 26
_EXPONENT = 0x7FF0000000000000


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
    check_float64(x)
    if x.numel() == 0:
        return x.detach().clone()
    reduced = sorted(d % x.dim() for d in dims)
    if use_compiled(x):
        return _compiled(x.detach(), reduced, bits)
    return reference_quantise(x.detach(), reduced, bits)


def check_float64(*tensors: Tensor) -> None:
    """Raise PrecisionError for a tensor of another dtype."""
    for x in tensors:
        if x.dtype != torch.float64:
            raise PrecisionError(f"exact contractions and sums need float64, not {x.dtype}")


def use_compiled(x: Tensor) -> bool:
    """Return whether ``x`` is for the compiled loops: on the CPU, unless VT_REFERENCE_KERNELS=1."""
    return x.device.type == "cpu" and os.environ.get("VT_REFERENCE_KERNELS") != "1"


def reference_quantise(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    """Return the same by plain tensor operations: slow, for any device, and what the compiled form must equal."""
    largest = finite_exponents(x).amax(dim=tuple(dims), keepdim=True)
    return round_to_units(x, shifts_for(largest, bits))


def finite_exponents(x: Tensor) -> Tensor:
    """Return the bits of the exponents (int64, shape of ``x``), 0 for NaN and infinities."""
    exponent = x.contiguous().view(torch.int64).view(x.shape) & _EXPONENT
    return torch.where(exponent == _EXPONENT, 0, exponent)


def shifts_for(largest: Tensor, bits: int | Tensor) -> Tensor:
    """Return 1.5 * 2**52 units for groups whose largest exponents have the bits ``largest``; as ``_jit_units``."""
    field = (largest >> 52).clamp(int(LOWEST), int(HIGHEST)) + (53 - bits)
    return ((field << 52) | (1 << 51)).view(torch.float64)


def round_to_units(x: Tensor, shift: Tensor) -> Tensor:
    """Round values of any kind to whole units; as ``_jit_units.round_any``."""
    rounded = (x + shift) - shift
    rounded = torch.where(x.abs() >= LIMIT, torch.copysign(torch.full_like(x, torch.inf), x), rounded)
    return torch.where(torch.isfinite(x), rounded, x)


def quantise_into(
    x: Tensor, dim: int, bits: int, buffer: Tensor, stages: int = BOTH, scales: Scales | None = None
) -> Tensor:
    """Quantise a matrix or a batch of matrices along dimension -1 or -2, into ``buffer`` (as many values, flat).

    Float64 on the CPU, at least one value. The result is a view of ``buffer``, each matrix row-major or transposed as
    those of ``x`` are. A matrix whose values along ``dim`` come in several parts: first ``stages=SCALE`` with all of
    it fills ``scales``, one for each index of the other dimension; then ``stages=ROUND`` with each part.
    """
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        return quantise_into(x.transpose(-1, -2), -3 - dim, bits, buffer, stages, scales).transpose(-1, -2)
    out = buffer[: x.numel()].view(x.shape) if stages & ROUND else x
    batch, row = (x.stride(0) if x.dim() == 3 else 0), x.stride(-2)
    count, (m, n) = (x.shape[0] if x.dim() == 3 else 1), x.shape[-2:]
    if x.stride(-1) != 1 or (dim == -1 and count > 1 and batch != m * row):
        x = x.contiguous()
        batch, row = m * n, n
    flat = x.as_strided(((count - 1) * batch + (m - 1) * row + n,), (1,)).numpy()
    if dim == -1:
        _jit.quantise(flat, buffer.numpy(), (1, count * m, n, 1), (0, row, 1), (0, n, 1), bits, stages, scales)
    else:
        _jit.quantise(flat, buffer.numpy(), (1, count, m, n), (0, batch, row), (0, m * n, n), bits, stages, scales)
    return out


def _compiled(x: Tensor, dims: Sequence[int], bits: int) -> Tensor:
    order = memory_order(x)
    dense = x.permute(order).contiguous()
    sizes = four_sizes(dense.shape, [order.index(d) for d in dims])
    if sizes is None:
        return reference_quantise(x, dims, bits)
    out = torch.empty_like(dense)
    steps = dense_steps(sizes)
    _jit.quantise(dense.view(-1).numpy(), out.view(-1).numpy(), sizes, steps, steps, bits)
    return out.permute([order.index(d) for d in range(x.dim())])


def memory_order(x: Tensor) -> list[int]:
    """Return the dimensions from the farthest apart in memory to the nearest: permuted so, ``x`` may be contiguous."""
    strides, shape = x.stride(), x.shape
    order = sorted(range(x.dim()), key=lambda d: -strides[d] if shape[d] > 1 else 0)
    return list(range(x.dim())) if x.is_contiguous() else order


def dense_steps(sizes: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Return the steps of a contiguous array for ``_jit_quantise.quantise``."""
    return sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3]


def four_sizes(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int, int, int] | None:
    """Return ``shape`` as (reduced, kept, reduced, kept), sizes of 1 where there is none; None if it takes more.

    Neighbouring dimensions that are treated alike are one: what remains alternates.
    """
    sizes: list[int] = []
    reduced = False
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and (d in dims) == reduced:
            sizes[-1] *= size
            continue
        reduced = d in dims
        sizes += [size] if sizes or reduced else [1, size]
    if len(sizes) > 4:
        return None
    a, b, c, d = [*sizes, 1, 1, 1, 1][:4]
    return (1, 1, a, b) if c == d == 1 else (a, b, c, d)
