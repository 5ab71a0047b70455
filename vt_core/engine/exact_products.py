"""Sums of products whose every partial sum is exact in float64: what exact contractions are made of.

One slice keeps ``b`` bits below the largest magnitude of a row, column or channel: 21 for sums of 2048 terms. With two
slices, ``x = hi + lo`` and three products, it is twice as many. A sum so long that fewer than ``MIN_BITS`` would be
left is cut into chunks that are summed in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vt_core.numerics.exact_matmul import exact_matmul
from vt_core.numerics.quantise import product_bits, quantise, use_compiled

MIN_BITS = 20
"""Fewest bits of an operand; sums of more than ``MAX_TERMS`` terms are cut."""
MAX_TERMS = 1 << (53 - 2 * MIN_BITS)

Product = Callable[[Tensor, Tensor], Tensor]


def contract(
    a: Tensor, a_dims: Sequence[int], b: Tensor, b_dims: Sequence[int], terms: int, product: Product, slices: int
) -> Tensor:
    """Return ``product(a, b)``, a sum of ``terms`` products each, exact for the quantised operands.

    ``a_dims`` and ``b_dims`` are the dimensions that the sum runs over: each index of the others has a scale.
    """
    bits = product_bits(terms)
    high_a, high_b = quantise(a, a_dims, bits), quantise(b, b_dims, bits)
    high = product(high_a, high_b)
    if slices == 1:
        return high
    # What is left is below half a unit and has its own scale; its product with the other rest is too small to matter.
    low_a, low_b = quantise(a - high_a, a_dims, bits), quantise(b - high_b, b_dims, bits)
    return high + (product(high_a, low_b) + product(low_a, high_b))


def chunks(length: int, terms_each: int) -> list[slice]:
    """Cut ``length`` indices, each of ``terms_each`` terms, so that no chunk has more than MAX_TERMS terms."""
    size = max(1, MAX_TERMS // terms_each)
    return [slice(i, min(i + size, length)) for i in range(0, length, size)] or [slice(0, 0)]


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of one or more tensors of one shape, in order."""
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def matmul(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """Return ``a @ b`` for (M, K) and (K, N), or with the same leading batch dimension.

    Raises PrecisionError for another dtype than float64, RuntimeError for shapes that do not fit.
    """
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise RuntimeError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied")
    parts = [_product(a[..., s], b[..., s, :], slices) for s in chunks(a.shape[-1], 1)]
    return total(parts)


def _product(a: Tensor, b: Tensor, slices: int) -> Tensor:
    if use_compiled(a):
        return exact_matmul(a, b, product_bits(a.shape[-1]), slices)
    return contract(a, (-1,), b, (-2,), a.shape[-1], torch.bmm if a.dim() == 3 else torch.mm, slices)
