"""Sums of scattered rows, exact in float64: the terms that meet in one element are rounded to a common unit.

Each element of the result has a unit of its own, by the largest magnitude and the number of its terms: ``sum_bits``
bits below that magnitude, so that partial sums fit float64 and no order changes a bit (see ``quantise``). What is
there already is added last, with one rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vt_core.numerics import _jit_scatter
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.quantise import check_float64, finite_exponents, round_to_units, shifts_for, use_compiled

NARROW = 16
"""Rows of fewer columns are handled one element after the other."""
_COLUMNS = 8
"""Columns of a line that are handled together: a cache line."""
_SPARSE = 16
"""Lines of more than so many elements for each term are not handled as a whole."""


def rows_compiled(terms: Tensor) -> bool:
    """Return whether ``add_rows_`` of these rows is one compiled loop."""
    return use_compiled(terms) and terms.shape[-1] >= NARROW


def add_rows_(out: Tensor, index: Tensor, terms: Tensor) -> bool:
    """Add to row ``index[i]`` of ``out`` (rows, columns; contiguous) the row ``terms[i]``, for all ``i`` at once.

    ``index`` is int64, the others are float64. The sum of the terms of an element is exact after each is rounded to
    ``51 - ceil(log2 n)`` bits below the largest of the n; magnitudes of 2**480 and more count as infinite. False, with
    ``out`` undefined, if an index is outside. Where the compiled loop runs (``rows_compiled``) both may be float32:
    they stand for their values in float64, and the result is cut. Raises PrecisionError for other dtypes.
    """
    if not (out.dtype == terms.dtype == torch.float32 and rows_compiled(terms)):
        check_float64(out, terms)
    terms, (size, width) = terms.detach(), out.shape
    if index.numel() == 0 or width == 0:
        return True
    if not use_compiled(out):
        return reference_add_rows_(out, index, terms)
    if width < NARROW:
        return add_elements_(out[None], index.view(1, -1, 1).expand(1, -1, width), terms[None])
    used, rows, offsets, order = _jit_scatter.group(index.contiguous().numpy(), size)
    if used < 0:
        return False
    x, to = terms.reshape(-1).numpy(), out.view(-1).numpy()
    items = used * -(-width // _jit_scatter.TILE)
    in_parts(lambda i, j: _jit_scatter.add_rows(x, width, rows, offsets, order, to, i, j), items, x.size)
    return True


def add_elements_(out: Tensor, index: Tensor, terms: Tensor) -> bool:
    """Add to element ``[i, index[i, j, k], k]`` of ``out`` the element ``[i, j, k]`` of ``terms``, for all at once.

    Like ``add_rows_``; ``index`` and ``terms`` have the same shape and any strides, ``out`` is contiguous.
    """
    check_float64(out, terms)
    terms, (lines, size, columns) = terms.detach(), out.shape
    if terms.numel() == 0:
        return True
    if not use_compiled(out) or size > _SPARSE * terms.shape[1]:
        if int(index.min()) < 0 or int(index.max()) >= size:
            return False
        line = torch.arange(lines, device=out.device).view(-1, 1, 1)
        flat = (line * size + index) * columns + torch.arange(columns, device=out.device)
        return reference_add_rows_(out.view(-1, 1), flat.reshape(-1), terms.reshape(-1, 1))
    tile = min(_COLUMNS, columns)
    x, where, to = terms.contiguous().numpy(), index.contiguous().numpy(), out.numpy()
    found = []

    def work(begin: int, end: int) -> None:
        found.append(_jit_scatter.add_lines(x, where, to, tile, begin, end))

    in_parts(work, lines * -(-columns // tile), terms.numel())
    return all(found)


def reference_add_rows_(out: Tensor, index: Tensor, terms: Tensor) -> bool:
    """Do the same by plain tensor operations: for any device, and what the compiled form must equal."""
    if int(index.min()) < 0 or int(index.max()) >= out.shape[0]:
        return False
    rows, slots, counts = torch.unique(index, return_inverse=True, return_counts=True)
    exponent = finite_exponents(terms)
    largest = exponent.new_zeros(len(rows), terms.shape[1])
    largest.scatter_reduce_(0, slots[:, None].expand_as(exponent), exponent, "amax")
    bits = 51 - torch.frexp((counts - 1).double()).exponent.long()[:, None]  # the exponent is the bit length
    rounded = round_to_units(terms, shifts_for(largest, bits)[slots])
    sums = torch.zeros_like(largest, dtype=torch.float64).index_add_(0, slots, rounded)
    out.index_copy_(0, rows, out[rows] + sums)
    return True
