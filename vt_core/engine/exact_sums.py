"""``functions: exact`` for sums and means: no rounding log, for the sums have no rounding.

The terms of each sum are rounded to ``b`` bits below the largest magnitude among them, ``b + ceil(log2 terms) <= 51``:
multiples of one unit whose partial sums all fit float64, so no order, blocking or number of threads changes a bit. A
mean is such a sum and one division, which is correctly rounded. A sum so long that fewer than ``MIN_SUM_BITS`` would be
left is cut into chunks, in row-major order, whose sums are added in order. Float32 terms are widened as they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics.quantise import sum_bits
from vt_core.numerics.sums import quantised_sum, quantised_sum_of_single

MIN_SUM_BITS = 32
"""Fewest bits of a term, more than the 24 of float32; sums of more than ``MAX_SUM_TERMS`` terms are cut."""
MAX_SUM_TERMS = 1 << (51 - MIN_SUM_BITS)


def exact_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the sum over ``dims`` (each once; all if there are none), which are dropped.

    Raises PrecisionError for another dtype than float64.
    """
    return _sum_of_chunks(x, dims, quantised_sum)


def exact_sum_of_single(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``exact_sum(x.double(), dims)`` of a float32 tensor."""
    return _sum_of_chunks(x, dims, quantised_sum_of_single)


def _sum_of_chunks(x: Tensor, dims: Sequence[int], add: Callable[[Tensor, Sequence[int], int], Tensor]) -> Tensor:
    reduced = sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))
    terms = prod(x.shape[d] for d in reduced)
    if terms <= 1:
        return x.detach().double().sum(dim=reduced)  # nothing to add
    if terms <= MAX_SUM_TERMS:
        return add(x, reduced, sum_bits(terms))
    kept = [d for d in range(x.dim()) if d not in reduced]
    rows = x.detach().permute(*reduced, *kept).reshape(terms, -1)
    found = torch.zeros_like(rows[0], dtype=torch.float64)
    for i in range(0, terms, MAX_SUM_TERMS):
        part = rows[i : i + MAX_SUM_TERMS]
        found = found + add(part, (0,), sum_bits(part.shape[0]))
    return found.view([x.shape[d] for d in kept])


def sum_form(arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> Tensor | None:
    """Return the result of ``aten.sum``, in float64, for a tensor of ``dtype``, which is float64 or float32.

    None if only PyTorch's own form fits these arguments.
    """
    x, dims = arguments["self"], arguments.get("dim") or []
    dims = [dims] if isinstance(dims, int) else list(dims)
    if x.dtype != dtype or arguments.get("dtype") not in (None, dtype) or x.is_sparse:
        return None
    rank = max(1, x.dim())
    if not all(isinstance(d, int) and -rank <= d < rank for d in dims) or len({d % rank for d in dims}) < len(dims):
        return None  # PyTorch says what is wrong
    add = exact_sum if dtype is torch.float64 else exact_sum_of_single
    found = add(x, dims if x.dim() else [])
    if not arguments.get("keepdim", False):
        return found
    return found.reshape([1 if not dims or d in {i % rank for i in dims} else n for d, n in enumerate(x.shape)])


def mean_form(arguments: dict[str, Any], dtype: torch.dtype = torch.float64) -> Tensor | None:
    """Return the result of ``aten.mean`` likewise."""
    found = sum_form(arguments, dtype)
    if found is None:
        return None
    # Divided by a tensor: on some devices a division by a number is a multiplication by its reciprocal.
    return found / torch.full_like(found, arguments["self"].numel() / max(1, found.numel()))


def _of_either_dtype(arguments: dict[str, Any], form: Callable[..., Tensor | None]) -> Tensor | None:
    return form(arguments, torch.float32 if arguments["self"].dtype == torch.float32 else torch.float64)


FORMS: dict[str, Form] = {
    "sum": partial(_of_either_dtype, form=sum_form),
    "mean": partial(_of_either_dtype, form=mean_form),
}
FLOAT32 = frozenset(FORMS)
