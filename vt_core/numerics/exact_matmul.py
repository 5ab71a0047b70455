"""Matrix products of quantised operands on the CPU, block by block.

The operands of a block are quantised into memory that is used again: fresh pages would cost as much as the work. Blocks
of many terms are cut into panels of the contracted dimension, whose scales are found first; every partial sum is exact,
so neither blocks nor panels change a bit. Narrow blocks of the result are slow: a plain product of 512 x 768 by
768 x 3072 takes 1.2 times as long in six parts of 512 columns, but 1.02 times in three panels of 256 terms.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vt_core.numerics._jit_quantise import ROUND, SCALE, Scales
from vt_core.numerics.quantise import check_float64, quantise_into
from vt_core.numerics.scratch import Scratch

PANEL = 1 << 22
"""Most values of both operands together that are quantised at once: 32 MiB."""
FEWEST_TERMS = 256
"""Fewest terms of a panel: with fewer the product reads and writes its result too often."""
MOST_ROWS = 4096
"""Most rows and columns of a block of the result."""

_scratch = Scratch()


def exact_matmul(a: Tensor, b: Tensor, bits: int, slices: int) -> Tensor:
    """Return ``a @ b`` (float64, CPU) of (M, K) and (K, N), or of the same with one leading batch dimension.

    Each row of ``a`` and each column of ``b`` is quantised to ``bits`` bits, or split into two such slices.
    Raises PrecisionError for another dtype.
    """
    check_float64(a, b)
    out = a.new_empty((*a.shape[:-1], b.shape[-1]))
    if out.numel() == 0 or a.shape[-1] == 0:
        return out.zero_()
    a, b = a.detach(), b.detach()
    if a.dim() == 2:
        _product(a, b, out, bits, slices)
        return out
    each = a[0].numel() + b[0].numel()
    if each > PANEL:
        for i in range(a.shape[0]):
            _product(a[i], b[i], out[i], bits, slices)
        return out
    for s in _parts(a.shape[0], PANEL // each):
        _at_once(a[s], b[s], out[s], bits, slices)
    return out


def _parts(length: int, most: int) -> Iterator[slice]:
    """Cut ``length`` indices into as few parts of at most ``most`` as there can be, nearly equal."""
    count = -(-length // most)
    return (slice(length * i // count, length * (i + 1) // count) for i in range(count))


def _product(a: Tensor, b: Tensor, out: Tensor, bits: int, slices: int) -> None:
    """Put the product of two matrices into ``out``."""
    for rows in _parts(a.shape[0], MOST_ROWS):
        for columns in _parts(b.shape[1], MOST_ROWS):
            _block(a[rows], b[:, columns], out[rows, columns], bits, slices)


def _block(a: Tensor, b: Tensor, out: Tensor, bits: int, slices: int) -> None:
    terms = a.shape[1]
    most = max(FEWEST_TERMS, PANEL // (a.shape[0] + b.shape[1]))
    if slices > 1 or terms <= most:
        _at_once(a, b, out, bits, slices)
        return
    a, b = _dense(a), _dense(b)
    scales_a, scales_b = Scales(a.shape[0]), Scales(b.shape[1])
    nothing = _scratch.take("a", 0)
    quantise_into(a, -1, bits, nothing, SCALE, scales_a)
    quantise_into(b, -2, bits, nothing, SCALE, scales_b)
    for s in _parts(terms, most):
        left, right = a[:, s], b[s]
        left = quantise_into(left, -1, bits, _scratch.take("a", left.numel()), ROUND, scales_a)
        right = quantise_into(right, -2, bits, _scratch.take("b", right.numel()), ROUND, scales_b)
        if s.start == 0:
            torch.mm(left, right, out=out)
        else:
            torch.addmm(out, left, right, out=out)


def _dense(x: Tensor) -> Tensor:
    """Return ``x`` with neighbouring values in rows or in columns."""
    return x if 1 in x.stride() else x.contiguous()


def _at_once(a: Tensor, b: Tensor, out: Tensor, bits: int, slices: int) -> None:
    product = torch.bmm if out.dim() == 3 else torch.mm
    left, right = _split(a, -1, bits, slices, "a"), _split(b, -2, bits, slices, "b")
    product(left[0], right[0], out=out)
    if slices == 1:
        return
    # What is left is below half a unit and has its own scale; its product with the other rest is too small to matter.
    first, second = (_scratch.take(name, out.numel()).view(out.shape) for name in ("first", "second"))
    product(left[0], right[1], out=first)
    product(left[1], right[0], out=second)
    out.add_(first.add_(second))


def _split(x: Tensor, dim: int, bits: int, slices: int, name: str) -> tuple[Tensor, ...]:
    """Return one or two slices of ``x``, in scratch memory."""
    high = quantise_into(x, dim, bits, _scratch.take(name, x.numel()))
    if slices == 1:
        return (high,)
    rest = _scratch.take(f"{name} rest", x.numel()).as_strided(high.shape, high.stride())
    torch.sub(x, high, out=rest)
    return high, quantise_into(rest, dim, bits, _scratch.take(f"{name} low", x.numel()))
