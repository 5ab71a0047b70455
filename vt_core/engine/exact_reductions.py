"""``functions: exact`` for ``cumsum``, ``trace``, variances and norms: exact sums, and single rounded operations.

Every sum is that of ``exact_sums``. A variance takes the deviations from the mean (rounded), squares them (rounded),
sums exactly and divides once; a standard deviation and a 2-norm take one correctly rounded square root. All partial
sums of ``cumsum`` are exact for one unit a line; a line of more than ``MAX_SUM_TERMS`` is cut into chunks, each added
to the last sum of the one before. The squares of a whole tensor are summed in chunks of ``SQUARES``, in row-major
order, and these sums exactly too. A square of 2**480 and more counts as infinite.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.exact_sums import MAX_SUM_TERMS, exact_sum, sum_form
from vt_core.engine.forms import Form
from vt_core.numerics import correctly_rounded_sqrt
from vt_core.numerics.quantise import quantise, sum_bits
from vt_core.numerics.squares import squares_sum

SQUARES = 1 << 14
"""Squares that are summed at once where a whole tensor is: they stay in the second cache."""


def _exactly(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float64 and x.layout == torch.strided


def cumsum(arguments: dict[str, Any]) -> Tensor | None:
    """Return the sums up to each element of a line, each exact after the terms are rounded to the line's unit."""
    x: Tensor = arguments["self"]
    dim = arguments["dim"]
    if not _exactly(x) or arguments.get("dtype") not in (None, torch.float64):
        return None
    rank = max(1, x.dim())
    if not isinstance(dim, int) or not -rank <= dim < rank:
        return None
    if x.numel() == 0 or x.dim() == 0:
        return x.clone()
    dim %= rank
    terms = x.shape[dim]
    if terms <= MAX_SUM_TERMS:
        return quantise(x, [dim], sum_bits(terms)).cumsum_(dim)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    carried = x.new_zeros(())
    for i in range(0, terms, MAX_SUM_TERMS):
        part = x.narrow(dim, i, min(MAX_SUM_TERMS, terms - i))
        sums = quantise(part, [dim], sum_bits(part.shape[dim])).cumsum_(dim)
        into = result.narrow(dim, i, part.shape[dim])
        torch.add(sums, carried, out=into)
        carried = into.narrow(dim, part.shape[dim] - 1, 1)
    return result


def trace(arguments: dict[str, Any]) -> Tensor | None:
    """Return the exact sum of the diagonal."""
    x = arguments["self"]
    return exact_sum(x.diagonal(), [0]) if _exactly(x) and x.dim() == 2 else None


def nansum(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``nansum``: the sum with zeros in place of NaN."""
    x = arguments["self"]
    return sum_form({**arguments, "self": torch.nan_to_num(x, 0.0, torch.inf, -torch.inf)}) if _exactly(x) else None


def _reduced(x: Tensor, dims: Any) -> list[int] | None:
    """Return the dimensions to reduce, all if none is given; None for dimensions that PyTorch refuses."""
    given = [dims] if isinstance(dims, int) else list(dims or [])
    rank = max(1, x.dim())
    if not all(isinstance(d, int) and -rank <= d < rank for d in given):
        return None
    found = sorted({d % rank for d in given}) if given else list(range(x.dim()))
    return None if given and len(found) < len(given) else [d for d in found if d < x.dim()]


def _kept(found: Tensor, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return found.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keepdim else found


def _squares(x: Tensor, dims: list[int], centre: Tensor | None) -> Tensor:
    """Return the sums of ``(x - centre) ** 2``; the centres have the shape of the sums, none means zero.

    ``x`` may be float32 if there are no centres.
    """
    terms = prod(x.shape[d] for d in dims)
    kept = x.shape[: x.dim() - len(dims)]
    trailing = dims == list(range(len(kept), x.dim())) and x.is_contiguous()
    centres = x.new_zeros(kept, dtype=torch.float64) if centre is None else centre
    if terms == x.numel() > SQUARES:
        flat, whole = x.reshape(-1), terms - terms % SQUARES
        rows, rest = flat[:whole].view(-1, SQUARES), flat[whole:]
        parts = [squares_sum(rows, centres.reshape(1).expand(len(rows)), sum_bits(SQUARES))]
        if len(rest):
            parts.append(squares_sum(rest[None], centres.reshape(1), sum_bits(len(rest))))
        found = exact_sum(torch.cat(parts), [0])
        return found.reshape([n for d, n in enumerate(x.shape) if d not in dims])
    if trailing and 1 < terms <= MAX_SUM_TERMS:
        return squares_sum(x.view(-1, terms), centres.reshape(-1), sum_bits(terms)).view(kept)
    x = x.double()
    if centre is None:
        return exact_sum(x * x, dims)
    deviations = x - _kept(centre, x, dims, True)
    return exact_sum(deviations.mul_(deviations), dims)


def _moments(arguments: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return variance and mean."""
    x = arguments["self"]
    dims = _reduced(x, arguments.get("dim")) if _exactly(x) else None
    if dims is None:
        return None
    correction = arguments.get("correction", 1 if arguments.get("unbiased", True) else 0)
    terms = prod(x.shape[d] for d in dims)
    total = exact_sum(x, dims)
    mean = total / torch.full_like(total, terms)
    left = max(0.0, terms - float(1 if correction is None else correction))
    squared = _squares(x, dims, mean)
    variance = squared / torch.full_like(squared, left)
    keepdim = arguments.get("keepdim", False)
    return _kept(variance, x, dims, keepdim), _kept(mean, x, dims, keepdim)


def var(arguments: dict[str, Any]) -> Tensor | None:
    """Return the variance."""
    found = _moments(arguments)
    return None if found is None else found[0]


def std(arguments: dict[str, Any]) -> Tensor | None:
    """Return the standard deviation."""
    found = _moments(arguments)
    return None if found is None else correctly_rounded_sqrt(found[0])


def var_mean(arguments: dict[str, Any]) -> tuple[Tensor, ...] | None:
    """Return the variance and the mean."""
    return _moments(arguments)


def std_mean(arguments: dict[str, Any]) -> tuple[Tensor, ...] | None:
    """Return the standard deviation and the mean."""
    found = _moments(arguments)
    return None if found is None else (correctly_rounded_sqrt(found[0]), found[1])


def norm(arguments: dict[str, Any]) -> Tensor | None:
    """Return a vector norm of order 0, 1, 2, inf or -inf; None for other orders."""
    x = arguments["self"]
    order = arguments.get("ord", arguments.get("p", 2))
    order = 2.0 if order is None else float(order)
    if x.dtype == torch.float32 and (order != 2.0 or x.layout != torch.strided):
        x = x.double()
    dims = _reduced(x, arguments.get("dim")) if x.dtype == torch.float32 or _exactly(x) else None
    if dims is None or arguments.get("dtype") not in (None, torch.float64, x.dtype):
        return None
    if order == 2.0:
        found = correctly_rounded_sqrt(_squares(x, dims, None))
    elif order == 1.0:
        found = exact_sum(x.abs(), dims)
    elif order == 0.0:
        found = exact_sum((x != 0).double(), dims)
    elif order in (torch.inf, -torch.inf):
        if x.numel() == 0:
            return None
        found = x.abs().amax(dims) if order > 0 else x.abs().amin(dims)
    else:
        return None
    return _kept(found, x, dims, arguments.get("keepdim", False))


FORMS: dict[str, Form] = {
    "cumsum": cumsum,
    "linalg_vector_norm": norm,
    "nansum": nansum,
    "norm": norm,
    "std": std,
    "std_mean": std_mean,
    "trace": trace,
    "var": var,
    "var_mean": var_mean,
}
FLOAT32 = frozenset({"linalg_vector_norm", "norm"})
