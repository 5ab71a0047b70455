"""Softmax, its logarithm and their gradients as fixed sequences of IEEE operations and exact sums in float64.

With ``m`` the maximum of a row (``+0`` for ``-0``), each line one rounded operation an element, or an exact sum::

    e = exp(x - m)                  softmax = e / s           log_softmax = (x - m) - log(s)
    s = sum(e)                      logsumexp = log(s) + m

    gradient of softmax, for y its result: y * (g - sum(y * g))
    gradient of log_softmax, for y its result: g - exp(y) * sum(g)

``exp`` and ``log`` are those of ``elementary``. A sum counts units: each term is rounded to a multiple of one unit, and
the integers are added without rounding, in two halves that never overflow. So the order of the terms changes nothing,
and the total is rounded once. For ``s`` the unit is 2**-52 (the terms lie between 0 and 1). In gradients it is 2**-51
times the smallest power of two above all magnitudes of a row; what is below 2**-960 counts as that, and 2**1020
and more as infinite. A sum of n terms is within n / 2 units of the true one, before it is rounded.

A row whose maximum is not finite gives NaN, as in PyTorch; in ``logsumexp`` it gives the maximum. On the CPU the
compiled loops of ``_jit_softmax`` and ``_jit_softmax_backward`` compute the same bits.

Tensors are float64, or float32: those are widened, by the compiled loops value by value, and the result is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from vt_core.numerics import _jit_rows as _rows
from vt_core.numerics import _jit_softmax as _jit
from vt_core.numerics import _jit_softmax_backward as _jit_backward
from vt_core.numerics._jit_elementary import exp, log
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.elementary import dtype_of
from vt_core.numerics.quantise import use_compiled

MAX_ROW = 1 << 27
"""Longest row: the two halves of a sum of so many terms fit float64."""

_HALF = _rows.HALF
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
_LOW = (1 << _HALF) - 1
_ONE = 1023 << 52
_TILE = 2048
"""Values of columns that are copied into rows at once: they stay in the first cache."""


def softmax(x: Tensor, dim: int, empty: float = float("nan")) -> Tensor:
    """Return the softmax of ``x`` (rows of at most MAX_ROW) along ``dim``, contiguous, in its dtype.

    ``empty`` is what a row of ``-inf`` alone gives. Raises PrecisionError for a dtype but float64 and float32.
    """
    narrow = dtype_of(x) is torch.float32
    if not use_compiled(x):
        return _by_rows(lambda rows: reference_softmax(rows, empty), dim, x)
    return _compiled((_jit.softmax_cut if narrow else _jit.softmax, _jit.softmax_across), dim, (x,), empty)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Return the logarithm of the softmax of ``x`` (rows of at most MAX_ROW) along ``dim``, contiguous, in its dtype.

    Raises PrecisionError for a dtype but float64 and float32.
    """
    dtype_of(x)
    if not use_compiled(x):
        return _by_rows(reference_log_softmax, dim, x)
    return _compiled((_jit.log_softmax, _jit.log_softmax_across), dim, (x,))


def softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return the gradient of a softmax with result ``y`` along ``dim``, contiguous; ``grad`` has its shape.

    Raises PrecisionError unless both are float64 or both float32.
    """
    dtype_of(grad, y)
    if not use_compiled(y):
        return _by_rows(reference_softmax_backward, dim, grad, y)
    return _compiled((_jit_backward.softmax_backward, _jit_backward.softmax_backward_across), dim, (grad, y))


def log_softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    """Return the gradient of a log_softmax with result ``y`` along ``dim``, contiguous; ``grad`` has its shape.

    Raises PrecisionError unless both are float64 or both float32.
    """
    dtype_of(grad, y)
    if not use_compiled(y):
        return _by_rows(reference_log_softmax_backward, dim, grad, y)
    return _compiled((_jit_backward.log_softmax_backward, _jit_backward.log_softmax_backward_across), dim, (grad, y))


def logsumexp(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``log(sum(exp(x)))`` over ``dims`` (each once, at most MAX_ROW terms, at least one), which are dropped.

    Raises PrecisionError for a dtype but float64 and float32.
    """
    dtype_of(x)
    reduced = [d % x.dim() for d in dims]
    kept = [d for d in range(x.dim()) if d not in reduced]
    n = prod(x.shape[d] for d in reduced)
    shape = [x.shape[d] for d in kept]
    rows = x.detach().permute(*kept, *reduced).contiguous().view(prod(shape), n)
    if not use_compiled(x):
        return reference_logsumexp(rows.double()).to(x.dtype).view(shape)
    out = torch.empty(rows.shape[0], dtype=x.dtype)
    flat, to = rows.view(-1).numpy(), out.numpy()
    in_parts(lambda i, j: _jit.logsumexp(flat, to, n, i, j), rows.shape[0], rows.numel())
    return out.view(shape)


def reference_softmax(rows: Tensor, empty: float = float("nan")) -> Tensor:
    """Return the softmax of each row by plain tensor operations: the definition, for any device."""
    largest, e, total = _exponentials(rows)
    return torch.where(torch.isfinite(largest), e / total, torch.where(largest == -torch.inf, empty, torch.nan))


def reference_log_softmax(rows: Tensor) -> Tensor:
    """Return the log_softmax of each row by plain tensor operations: the definition, for any device."""
    largest, _, total = _exponentials(rows)
    return torch.where(torch.isfinite(largest), (rows - largest) - log(total), torch.nan)


def reference_logsumexp(rows: Tensor) -> Tensor:
    """Return the logsumexp of each row by plain tensor operations: the definition, for any device."""
    largest, _, total = _exponentials(rows)
    return torch.where(torch.isfinite(largest), log(total) + largest, largest).view(-1)


def reference_softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """Return the gradient for each row by plain tensor operations: the definition, for any device."""
    return y * (grad - _row_sums(y * grad))


def reference_log_softmax_backward(grad: Tensor, y: Tensor) -> Tensor:
    """Return the gradient for each row by plain tensor operations: the definition, for any device."""
    share: Tensor = exp(y) * _row_sums(grad)
    return grad - share


def _exponentials(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the maximum of each row, ``exp(x - maximum)`` and its sum; the last two of any kind if it is not finite.

    The bits of ``1 + e`` count ``e`` in units of 2**-52.
    """
    largest = rows.amax(1, keepdim=True) + 0.0
    e = exp(rows - torch.where(torch.isfinite(largest), largest, 0.0))
    return largest, e, _integer_sums((e + 1.0).view(torch.int64) - _ONE) * 2.0**-52


def _row_sums(x: Tensor) -> Tensor:
    """Return the sum of each row, as a column."""
    magnitude = x.view(torch.int64) & _MAGNITUDE
    tame = magnitude < _jit_backward.LIMIT_BITS
    largest = torch.where(tame, magnitude, 0).amax(1, keepdim=True) >> 52
    shift = ((largest.clamp(min=_jit_backward.LOWEST) + 2) << 52) | (1 << 51)  # 1.5 * 2**52 units
    unit = (shift - (1 << 51)).view(torch.float64) * 2.0**-52
    units = (x + shift.view(torch.float64)).view(torch.int64) - shift
    far = torch.where(tame, 0.0, x * torch.inf).sum(1, keepdim=True)  # zeros, infinities and NaN: any order will do
    return _integer_sums(torch.where(tame, units, 0)) * unit + far


def _integer_sums(units: Tensor) -> Tensor:
    """Return the sum of each row as a column of float64, rounded once: two exact halves and one addition."""
    high, low = (units >> _HALF).sum(1, keepdim=True), (units & _LOW).sum(1, keepdim=True)
    return high.double() * 2.0**_HALF + low.double()


def _by_rows(function: Callable[..., Tensor], dim: int, *tensors: Tensor) -> Tensor:
    """Return the result of a function of float64 matrices, row by row, for tensors with rows along ``dim``; contiguous.

    It is cut to the dtype of the tensors.
    """
    x = tensors[0]
    if x.dim() == 0:
        return function(*(t.detach().double().view(1, 1) for t in tensors)).to(x.dtype).view(())
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    moved = [t.detach().movedim(dim, -1).contiguous().double() for t in tensors]
    found = function(*(t.view(-1, x.shape[dim]) for t in moved)).to(x.dtype)
    return found.view(moved[0].shape).movedim(-1, dim).contiguous()


def _compiled(
    kernels: tuple[Callable[..., None], Callable[..., None]], dim: int, tensors: tuple[Tensor, ...], *numbers: float
) -> Tensor:
    """Return the same by compiled loops: the first for rows, the second for columns."""
    x = tensors[0]
    out = torch.empty(x.shape, dtype=x.dtype)
    size = out.numel()
    if not size:
        return out
    n, d = (x.shape[dim], prod(x.shape[dim % x.dim() + 1 :])) if x.dim() else (1, 1)
    arrays = *(t.detach().contiguous().view(-1).numpy() for t in tensors), out.view(-1).numpy()
    if d == 1:
        in_parts(lambda i, j: kernels[0](*arrays, n, *numbers, i, j), size // n, size)
    else:
        tile = min(d, max(8, _TILE // n))
        count = size // (n * d) * -(-d // tile)
        in_parts(lambda i, j: kernels[1](*arrays, n, d, tile, *numbers, i, j), count, size)
    return out
