"""Weighted windows: pooling, interpolation and their gradients as a fixed sequence of rounded operations.

All these are sums over the windows of one dimension after the other, each window a run of neighbours with a weight
each (``Windows``), and each gradient is such a sum over the transposed windows. The order is fixed: the first dimension
first, ascending in each window, every product and every sum rounded. So nothing is quantised, and the result is the
same on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.numerics import _jit_pools
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.quantise import check_float64, use_compiled

_NONE = np.empty(0)


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of one dimension of ``size`` elements: output ``o`` sums ``counts[o]`` from ``starts[o]`` on.

    ``weights`` has one row for each output; what is beyond a count does not matter.
    """

    size: int
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, size: int, starts: Sequence[int], ends: Sequence[int]) -> Windows:
        """Return windows of weight 1 from ``starts`` to ``ends``; an end before its start means no element."""
        begin, counts = np.array(starts, np.int64), np.maximum(0, np.subtract(ends, starts)).astype(np.int64)
        return cls(size, np.where(counts > 0, begin, 0), counts, np.ones((len(begin), max(1, counts.max(initial=0)))))

    def transposed(self) -> Windows:
        """Return the windows of the gradient: for each element the outputs it is part of, which must be neighbours."""
        parts: list[list[tuple[int, float]]] = [[] for _ in range(self.size)]
        for o, (start, count) in enumerate(zip(self.starts.tolist(), self.counts.tolist(), strict=True)):
            for k in range(count):
                parts[start + k].append((o, self.weights[o, k]))
        counts = np.array([len(p) for p in parts], np.int64)
        weights = np.ones((self.size, max(1, counts.max(initial=0))))
        for i, part in enumerate(parts):
            weights[i, : len(part)] = [w for _, w in part]
        return Windows(len(self), np.array([p[0][0] if p else 0 for p in parts], np.int64), counts, weights)


Divisors = Sequence[NDArray[np.float64]]
"""What to divide by: an output by the product of its entries, one for each dimension, which must be exact."""


def window_sums(
    x: Tensor, windows: Sequence[Windows], divisors: Divisors | None = None, before: bool = False
) -> Tensor:
    """Return the weighted sums over the windows of the last ``len(windows)`` (1 to 3) dimensions of ``x``.

    With ``divisors`` each sum is divided, or with ``before`` each element (of windows of weight 1). Float64 of any
    layout and device; PrecisionError for other dtypes. Sizes that do not match are undefined. Relative to the sum of
    the magnitudes in a window, the error is below ``2**-52`` times the sum of its sides.
    """
    check_float64(x)
    x = x.detach()
    if not use_compiled(x) or x.numel() == 0 or not all(map(len, windows)):
        return reference_window_sums(x, windows, divisors, before)
    spatial = len(windows)
    if divisors is not None and before and spatial == 3:
        x, divisors = x / _divisor(divisors, x), None
    last = _channels_last(x, spatial)
    flat = (x.movedim(1, -1) if last else x).reshape(-1)
    planes = x.shape[0] if last else prod(x.shape[:-spatial])
    channels = x.shape[1] if last else 1
    if spatial == 3:
        flat = _planes(flat, planes, windows[0], None, windows[1].size * windows[2].size * channels, None, False)
        planes *= len(windows[0])
    down = windows[-2] if spatial > 1 else Windows.of(1, [0], [1])
    inner = divisors
    if divisors is not None and spatial != 2:
        inner = None if spatial == 3 else (np.ones(1), divisors[0])
    flat = _planes(flat, planes, down, windows[-1], channels, inner, before)
    sizes = [len(w) for w in windows]
    out = flat.view([x.shape[0], *sizes, channels] if last else [*x.shape[:-spatial], *sizes])
    out = out.movedim(-1, 1) if last else out
    return out.div_(_divisor(divisors, out)) if divisors is not None and inner is None else out


def reference_window_sums(
    x: Tensor, windows: Sequence[Windows], divisors: Divisors | None = None, before: bool = False
) -> Tensor:
    """Return the same by plain tensor operations: what the compiled loops must equal."""
    if divisors is not None and before:
        x, divisors = x / _divisor(divisors, x), None
    for dim, w in enumerate(windows, x.dim() - len(windows)):
        shape = [-1] + [1] * (x.dim() - 1 - dim)
        starts, counts = (torch.from_numpy(v).to(x.device) for v in (w.starts, w.counts))
        weights = torch.from_numpy(w.weights).to(x.device)
        total = x.new_zeros([*x.shape[:dim], len(w), *x.shape[dim + 1 :]])
        for k in range(int(w.counts.max(initial=0))):
            terms = x.index_select(dim, (starts + k).clamp(max=w.size - 1)) * weights[:, k].view(shape)
            total = torch.where((counts > k).view(shape), total + terms, total)
        x = total
    return x if divisors is None else x / _divisor(divisors, x)


def plane_scatter(terms: Tensor, index: Tensor, windows: Sequence[Windows]) -> Tensor | None:
    """Return the gradient of a maximum over ``windows``: each term goes to the element that ``index`` says.

    ``terms`` (float64) and ``index`` (int64, row-major within a plane) end with the outputs' dimensions; an index must
    lie in its output's window. Terms that meet are added in row-major order. None for an index outside its plane (in
    the compiled form). Raises PrecisionError for other dtypes than float64.
    """
    check_float64(terms)
    if not use_compiled(terms) or terms.numel() == 0 or 0 in (w.size for w in windows):
        return reference_plane_scatter(terms.detach(), index, windows)
    return _plane_scatter(terms.detach(), index, windows, _jit_pools.scatter, _jit_pools.scatter_channels)


def plane_scatter_of_single(terms: Tensor, index: Tensor, windows: Sequence[Windows]) -> Tensor | None:
    """Return ``plane_scatter(terms.double(), index, windows)`` of float32 terms, perhaps already cut to float32."""
    if not use_compiled(terms) or terms.numel() == 0 or 0 in (w.size for w in windows):
        return reference_plane_scatter(terms.detach().double(), index, windows)
    return _plane_scatter(
        terms.detach(), index, windows, _jit_pools.scatter_single, _jit_pools.scatter_channels_single
    )  # fmt: skip


def _plane_scatter(
    terms: Tensor, index: Tensor, windows: Sequence[Windows], in_planes: Callable[..., bool],
    by_channel: Callable[..., bool],
) -> Tensor | None:  # fmt: skip
    spatial, found = len(windows), list[bool]()
    sizes, count = [w.size for w in windows], prod(len(w) for w in windows)
    size = prod(sizes)
    if _channels_last(terms, spatial):
        batch, channels = terms.shape[:2]
        t, i = (v.movedim(1, -1).reshape(-1).numpy() for v in (terms, index))
        result = terms.new_empty([batch, *sizes, channels])
        out = result.view(-1).numpy()
        items = batch * -(-channels // _jit_pools.CHANNELS)
        in_parts(lambda a, b: found.append(by_channel(t, i, count, size, channels, out, a, b)), items, out.size)
        return result.movedim(-1, 1) if all(found) else None
    t, i = (v.reshape(-1).numpy() for v in (terms, index))
    result = terms.new_empty([*terms.shape[:-spatial], *sizes])
    out = result.view(-1).numpy()
    in_parts(lambda a, b: found.append(in_planes(t, i, count, size, out, a, b)), out.size // size, out.size)
    return result if all(found) else None


def reference_plane_scatter(terms: Tensor, index: Tensor, windows: Sequence[Windows]) -> Tensor:
    """Return the same by plain tensor operations: each element looks at the outputs it is part of, in order."""
    spatial = len(windows)
    sizes, covering = [w.size for w in windows], [w.transposed() for w in windows]
    own = torch.arange(prod(sizes), device=terms.device).view(sizes)
    total = terms.new_zeros([*terms.shape[:-spatial], *sizes])
    for offsets in itertools.product(*(range(int(w.counts.max(initial=0))) for w in covering)):
        mine, where, valid = terms, index, torch.ones_like(own, dtype=torch.bool)
        for dim, (w, k) in enumerate(zip(covering, offsets, strict=True)):
            outputs = torch.from_numpy(np.minimum(w.starts + k, w.size - 1)).to(terms.device)
            mine, where = (v.index_select(terms.dim() - spatial + dim, outputs) for v in (mine, where))
            present = torch.from_numpy(w.counts > k).to(terms.device)
            valid = valid & present.view([-1] + [1] * (spatial - 1 - dim))
        total = torch.where(valid & (where == own), total + mine, total)
    return total


def _planes(
    x: Tensor, planes: int, rows: Windows, columns: Windows | None, channels: int, divisors: Divisors | None,
    before: bool,
) -> Tensor:  # fmt: skip
    across = columns or Windows.of(1, [], [])
    width, wide = (columns.size, len(columns)) if columns else (1, 1)
    out = x.new_empty(planes * len(rows) * wide * channels)
    flat, to = x.numpy(), out.numpy()
    taps = int(across.counts.max(initial=0))
    uniform = taps if taps <= 2 and (across.counts == taps).all() else 0
    by = (divisors[0], divisors[1]) if divisors is not None else (_NONE, _NONE)
    if channels > 1:
        by = by[0], np.repeat(by[1], channels)
    settings = (
        (rows.size, width, channels),
        (rows.starts, rows.counts, rows.weights),
        (across.starts, across.counts, across.weights),
        np.ascontiguousarray(across.weights.T),
        uniform,
        by,
        before and divisors is not None,
    )
    items = planes * len(rows)
    in_parts(lambda i, j: _jit_pools.windows(flat, *settings, to, i, j), items, max(flat.size, to.size))
    return out


def _divisor(divisors: Divisors, like: Tensor) -> Tensor:
    result = torch.ones((), dtype=torch.float64)
    for d in divisors:
        result = result.unsqueeze(-1) * torch.from_numpy(d)
    return result.to(like.device)


def _channels_last(x: Tensor, spatial: int) -> bool:
    return x.dim() == spatial + 2 and x.shape[1] > 1 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
