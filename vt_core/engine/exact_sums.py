"""``functions: exact`` for sums and means: no rounding log, for the sums have no rounding.

The terms of each sum are rounded to ``b`` bits below the largest magnitude among them, ``b + ceil(log2 terms) <= 51``:
multiples of one unit whose partial sums all fit float64, so no order, blocking or number of threads changes a bit. A
mean is such a sum and one division, which is correctly rounded. A sum so long that fewer than ``MIN_SUM_BITS`` would be
left is cut into chunks, in row-major order, whose sums are added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics.quantise import sum_bits
from vt_core.numerics.sums import quantised_sum

MIN_SUM_BITS = 32
"""Fewest bits of a term, more than the 24 of float32; sums of more than ``MAX_SUM_TERMS`` terms are cut."""
MAX_SUM_TERMS = 1 << (51 - MIN_SUM_BITS)


def exact_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the sum over ``dims`` (each once; all if there are none), which are dropped.

    Raises PrecisionError for another dtype than float64.
    """
    reduced = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
    terms = prod(x.shape[d] for d in reduced)
    if terms <= 1:
        return x.detach().sum(dim=reduced)  # nothing to add
    if terms <= MAX_SUM_TERMS:
        return quantised_sum(x, reduced, sum_bits(terms))
    kept = [d for d in range(x.dim()) if d not in reduced]
    rows = x.detach().permute(*reduced, *kept).reshape(terms, -1)
    found = torch.zeros_like(rows[0])
    for i in range(0, terms, MAX_SUM_TERMS):
        part = rows[i : i + MAX_SUM_TERMS]
        found = found + quantised_sum(part, (0,), sum_bits(part.shape[0]))
    return found.view([x.shape[d] for d in kept])


def sum_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.sum`` with these arguments; None if only PyTorch's own form fits them."""
    x, dims = arguments["self"], arguments.get("dim") or []
    dims = [dims] if isinstance(dims, int) else list(dims)
    if x.dtype != torch.float64 or arguments.get("dtype") not in (None, torch.float64) or x.is_sparse:
        return None
    rank = max(1, x.dim())
    if not all(isinstance(d, int) and -rank <= d < rank for d in dims) or len({d % rank for d in dims}) < len(dims):
        return None  # PyTorch says what is wrong
    found = exact_sum(x, dims if x.dim() else [])
    if not arguments.get("keepdim", False):
        return found
    return found.reshape([1 if not dims or d in {i % rank for i in dims} else n for d, n in enumerate(x.shape)])


def mean_form(arguments: dict[str, Any]) -> Tensor | None:
    """Return the result of ``aten.mean`` with these arguments; None if only PyTorch's own form fits them."""
    found = sum_form(arguments)
    if found is None:
        return None
    # Divided by a tensor: on some devices a division by a number is a multiplication by its reciprocal.
    return found / torch.full_like(found, arguments["self"].numel() / max(1, found.numel()))


FORMS: dict[str, Form] = {"sum": sum_form, "mean": mean_form}
