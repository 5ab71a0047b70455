"""The exact normalisations step by step: what each form computes, to the bit.

A group of n elements (a channel, a row, several channels of a sample) shares a mean and a variance. Every operation
below is one correctly rounded float64 operation, in this order, and ``sum`` is ``exact_sums.exact_sum``::

    mean = sum(x) / n            (0 for a root mean square)
    d = x - mean
    variance = sum(d * d) / n
    invstd = 1 / sqrt(variance + eps)
    y = (d * invstd) * weight + bias

and of the gradient ``dy``, with ``g = dy`` and ``scale = invstd * weight`` where a group has one weight (batch norm),
else ``g = dy * weight`` and ``scale = invstd``::

    shared = sum(g) / n          (0 for a root mean square)
    slope = ((sum(d * g) * invstd) * invstd) / n
    dx = ((g - shared) - d * slope) * scale

Where the statistics are constants (batch norm in evaluation mode), ``dx = g * scale``. The gradients of weight and bias
are ``sum(d * g) * invstd`` and ``sum(g)`` for batch norm, else ``sum(dy * (d * invstd))`` and ``sum(dy)`` over all that
share the weight. A missing weight is 1, a missing bias 0.

Where ``x`` and ``dy`` are float32 they are widened first; weight, bias and statistics are float64. What is returned in
their place is float64, or float32 cut from it; statistics and the gradients of weight and bias are float64.

The terms of a sum keep ``sum_bits(n)`` bits below the largest one: 43 for 256 terms, 36 for 2**15. Each term is off by
at most ``2**-(bits + 1)`` of the largest, and so is the mean; all other steps are off by 2**-53 each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vt_core.engine import exact_sums
from vt_core.engine.exact_sums import exact_sum
from vt_core.numerics import correctly_rounded_sqrt, norm_gradients, norms
from vt_core.numerics.norm_gradients import Gradients
from vt_core.numerics.norm_layout import Groups
from vt_core.numerics.norms import Normalised


def normalise(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, groups: Groups, centred: bool = True
) -> Normalised:
    """Return ``x`` normalised by the statistics of its groups; statistics are flat."""
    if x.numel() and _compact(groups.terms):
        found = norms.normalise(x, weight, bias, eps, groups, centred)
        if found is not None:
            return found
    cut = x.detach().double().reshape(groups.shape)
    mean = _mean(_sum(cut, groups), groups) if centred else torch.zeros_like(_statistic(cut, groups))
    d = cut - mean
    squares = _sum(d * d, groups)
    invstd = inverse_deviation(_mean(squares, groups), eps)
    y = _weighted(d * invstd, weight, bias, groups)
    return Normalised(y.reshape(x.shape), mean.reshape(-1), squares.reshape(-1), invstd.reshape(-1))


def apply_statistics(
    x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, bias: Tensor | None, groups: Groups
) -> Tensor:
    """Return ``x``, whose channels are its groups, normalised by given statistics."""
    found = norms.apply_statistics(x, mean, invstd, weight, bias, groups) if x.numel() else None
    if found is not None:
        return found
    d = x.detach().double().reshape(groups.shape) - mean.reshape(groups.statistics_shape)
    return _weighted(d * invstd.reshape(groups.statistics_shape), weight, bias, groups).reshape(x.shape)


def gradients(
    x: Tensor, dy: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor, groups: Groups,
    mask: tuple[bool, bool, bool], centred: bool = True, training: bool = True,
) -> Gradients:  # fmt: skip
    """Return the gradients that ``mask`` asks for; ``training`` False: the statistics are constants."""
    mean, invstd = mean.detach().reshape(-1), invstd.detach().reshape(-1)
    if x.numel() and _compact(groups.terms) and _compact(groups.weight_terms):
        found = norm_gradients.gradients(x, dy, weight, mean, invstd, groups, mask, centred, training)
        if found is not None:
            return found
    grad = dy.detach().double().reshape(groups.shape)
    d = x.detach().double().reshape(groups.shape) - mean.reshape(groups.statistics_shape)
    inverse = invstd.reshape(groups.statistics_shape)
    w = None if weight is None else weight.detach().reshape(groups.weight_shape)
    g, scale = grad, inverse
    if w is not None:
        g, scale = (grad, inverse * w) if groups.by_channel else (grad * w, inverse)
    total, dot = _sum(g, groups), _sum(d * g, groups)
    dx = None
    if mask[0] and training:
        slope = _mean((dot * inverse) * inverse, groups)
        centre = g - _mean(total, groups) if centred else g
        dx = (centre - d * slope) * scale
    elif mask[0]:
        dx = g * scale
    if groups.by_channel:
        dw, db = dot * inverse, total
    else:
        dw, db = exact_sum(grad * (d * inverse), groups.weight_dims), exact_sum(grad, groups.weight_dims)
    return Gradients(
        None if dx is None else dx.reshape(x.shape),
        dw.reshape(-1) if mask[1] else None,
        db.reshape(-1) if mask[2] else None,
    )


def inverse_deviation(variance: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(variance + eps)."""
    return torch.ones_like(variance) / correctly_rounded_sqrt(variance.detach() + eps)


def _compact(terms: int) -> bool:
    """Return whether a sum of so many terms is one sum of quantised terms."""
    return 2 <= terms <= exact_sums.MAX_SUM_TERMS


def _statistic(cut: Tensor, groups: Groups) -> Tensor:
    return cut.new_empty(groups.statistics_shape)


def _sum(terms: Tensor, groups: Groups) -> Tensor:
    return exact_sum(terms, groups.dims).reshape(groups.statistics_shape)


def _mean(total: Tensor, groups: Groups) -> Tensor:
    # Divided by a tensor: on some devices a division by a number is a multiplication by its reciprocal.
    return total / torch.full_like(total, groups.terms)


def _weighted(x: Tensor, weight: Tensor | None, bias: Tensor | None, groups: Groups) -> Tensor:
    scaled = x if weight is None else x * weight.detach().reshape(groups.weight_shape)
    return scaled + (0.0 if bias is None else bias.detach().reshape(groups.weight_shape))
