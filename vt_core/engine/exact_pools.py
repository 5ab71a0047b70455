"""``functions: exact`` for pooling, interpolation, ``col2im`` and their gradients: a fixed sequence of operations.

An average sums its window dimension by dimension in a fixed order and divides once by the number of elements; linear
interpolation is a weighted sum of two neighbours in each dimension; each gradient is such a sum over the transposed
windows (``numerics.pools``). Gradients of a maximum, of ``unfold`` and of ``im2col`` add their terms in row-major
order. Relative to the sum of the magnitudes that meet in an output, errors are below ``2**-52`` times the sum of the
sides of its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics.pools import Windows, plane_scatter, plane_scatter_of_single, window_sums

_CACHED = 1 << 19
_Pools = list[tuple[Windows, NDArray[np.float64]]]


@lru_cache(maxsize=1024)
def _pooled(size: int, kernel: int, stride: int, padding: int, ceil: bool, padded: bool) -> Any:
    """Return the windows of one dimension of an average pool and what each is divided by; None if there are none."""
    if kernel < 1 or stride < 1 or not 0 <= padding <= kernel // 2 or size < 1:
        return None
    outputs = (size + 2 * padding - kernel + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (outputs - 1) * stride >= size + padding:
        outputs -= 1
    if outputs < 1:
        return None
    starts = [o * stride - padding for o in range(outputs)]
    ends = [min(s + kernel, size + padding) for s in starts]
    windows = Windows.of(size, [max(0, s) for s in starts], [min(e, size) for e in ends])
    divisors = np.subtract(ends, starts) if padded else windows.counts
    return windows, np.maximum(divisors, 1).astype(np.float64)


@lru_cache(maxsize=1024)
def _adaptive(size: int, outputs: int) -> tuple[Windows, NDArray[np.float64]]:
    starts = [o * size // outputs for o in range(outputs)]
    windows = Windows.of(size, starts, [-(-(o + 1) * size // outputs) for o in range(outputs)])
    return windows, windows.counts.astype(np.float64)


@lru_cache(maxsize=1024)
def _covered(size: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int) -> Windows:
    """Return the windows of a maximum; with a dilation also what lies between their elements."""
    starts = [o * stride - padding for o in range(outputs)]
    ends = [min(size, s + (kernel - 1) * dilation + 1) for s in starts]
    return Windows.of(size, [max(0, s) for s in starts], ends)


@lru_cache(maxsize=1024)
def _linear(size: int, outputs: int, corners: bool, scale: float | None) -> Windows:
    if corners:
        step = (size - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        step = 1.0 / scale if scale is not None and scale > 0 else size / outputs
    starts, weights = [], []
    for o in range(outputs):
        place = step * o if corners else max(0.0, step * (o + 0.5) - 0.5)
        start = min(int(place), size - 1)
        far = min(max(place - start, 0.0), 1.0)
        last = start == size - 1  # both neighbours are the last element
        starts.append(start)
        weights.append([1.0, 0.0] if last else [1.0 - far, far])
    ends = [min(s + 2, size) for s in starts]
    windows = Windows.of(size, starts, ends)
    return Windows(size, windows.starts, windows.counts, np.array(weights))


@lru_cache(maxsize=1024)
def _nearest(size: int, outputs: int, scale: float | None, exact: bool) -> Windows:
    """Return the element that each output copies, found in float32 as PyTorch does it."""
    step = np.float32(1.0 / scale) if scale is not None and scale > 0 else np.float32(size) / np.float32(outputs)
    at = np.arange(outputs).astype(np.float32) + np.float32(0.5 if exact else 0.0)
    starts = np.minimum(np.floor(at * step).astype(np.int64), size - 1)
    if not exact and outputs in (size, 2 * size):
        starts = np.arange(outputs) // (outputs // size)
    return Windows.of(size, starts.tolist(), (starts + 1).tolist())


@lru_cache(maxsize=1024)
def _transposed(windows: Windows) -> Windows:
    return windows.transposed()


def _each(value: Any, count: int, default: Sequence[int]) -> list[int]:
    """Return a kernel size or the like, one number for each dimension."""
    given = [value] if isinstance(value, int) else list(default if value is None else value)
    return (given * count if len(given) == 1 else given) or list(default)


def _fits(x: Tensor, spatial: int, dtype: torch.dtype = torch.float64) -> bool:
    return x.dtype == dtype and x.dim() in (spatial + 1, spatial + 2) and x.layout == torch.strided


def _averages(arguments: dict[str, Any], spatial: int) -> _Pools | None:
    """Return the windows and divisors of ``avg_pool2d`` or ``avg_pool3d``."""
    x = arguments["self"]
    if not _fits(x, spatial) or arguments.get("divisor_override") == 0:
        return None
    kernel = _each(arguments["kernel_size"], spatial, ())
    stride = _each(arguments.get("stride"), spatial, kernel)
    padding = _each(arguments.get("padding"), spatial, [0] * spatial)
    if not len(kernel) == len(stride) == len(padding) == spatial:
        return None
    ceil, padded = arguments.get("ceil_mode", False), arguments.get("count_include_pad", True)
    sizes = x.shape[-spatial:]
    found = [_pooled(*each, ceil, padded) for each in zip(sizes, kernel, stride, padding, strict=True)]
    if None in found:
        return None
    divisor = arguments.get("divisor_override")
    if divisor is None:
        return found
    factors = [float(divisor)] + [1.0] * (spatial - 1)
    return [(w, np.full(len(w), f)) for (w, _), f in zip(found, factors, strict=True)]


def _adaptive_averages(arguments: dict[str, Any], spatial: int) -> _Pools | None:
    x = arguments["self"]
    outputs = arguments["output_size"] if "output_size" in arguments else arguments["grad_output"].shape[-spatial:]
    outputs = _each(outputs, spatial, ())
    if not _fits(x, spatial) or len(outputs) != spatial or min(outputs) < 1 or 0 in x.shape[-spatial:]:
        return None
    return [_adaptive(*each) for each in zip(x.shape[-spatial:], outputs, strict=True)]


def average(arguments: dict[str, Any], spatial: int, pools: Any) -> Tensor | None:
    """Return an average pool over the last ``spatial`` dimensions; None if only PyTorch's own form fits it."""
    found = pools(arguments, spatial)
    if found is None:
        return None
    return window_sums(arguments["self"], [w for w, _ in found], [d for _, d in found])


def average_backward(arguments: dict[str, Any], spatial: int, pools: Any) -> Tensor | None:
    """Return the gradient of an average pool: each output's gradient, divided, summed over the transposed windows."""
    grad, x = arguments["grad_output"], arguments["self"]
    found = pools(arguments, spatial)
    if found is None or grad.dim() != x.dim() or grad.dtype != torch.float64:
        return None
    if grad.shape != (*x.shape[:-spatial], *(len(w) for w, _ in found)):
        return None
    return window_sums(grad, [_transposed(w) for w, _ in found], [d for _, d in found], before=True)


def maximum_backward(arguments: dict[str, Any], spatial: int, adaptive: bool) -> Tensor | None:
    """Return the gradient of a maximum pool; the gradients of overlapping windows are added in row-major order."""
    grad, x, index = arguments["grad_output"], arguments["self"], arguments["indices"]
    dtype = torch.float32 if x.dtype == torch.float32 else torch.float64
    if not _fits(x, spatial, dtype) or grad.dtype != dtype or index.dtype != torch.int64 or grad.shape != index.shape:
        return None
    scatter = plane_scatter if dtype is torch.float64 else plane_scatter_of_single
    sizes, outputs = x.shape[-spatial:], grad.shape[-spatial:]
    if grad.dim() != x.dim() or grad.shape[:-spatial] != x.shape[:-spatial] or 0 in (*sizes, *outputs):
        return None
    if adaptive:
        return scatter(grad, index, [_adaptive(s, o)[0] for s, o in zip(sizes, outputs, strict=True)])
    kernel = _each(arguments["kernel_size"], spatial, ())
    stride = _each(arguments.get("stride"), spatial, kernel)
    padding = _each(arguments.get("padding"), spatial, [0] * spatial)
    dilation = _each(arguments.get("dilation"), spatial, [1] * spatial)
    if not len(kernel) == len(stride) == len(padding) == len(dilation) == spatial:
        return None
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0:
        return None
    settings = zip(sizes, outputs, kernel, stride, padding, dilation, strict=True)
    return scatter(grad, index, [_covered(*each) for each in settings])


def interpolated(arguments: dict[str, Any], spatial: int, kind: str, backward: bool) -> Tensor | None:
    """Return a linear or nearest interpolation of the last ``spatial`` dimensions, or its gradient."""
    x = arguments["grad_output"] if backward else arguments.get("self")
    if x is None or not _fits(x, spatial) or x.dim() != spatial + 2 or 0 in x.shape:
        return None
    outputs = list(arguments["output_size"])
    shape = arguments["input_size"] if backward else x.shape
    if len(outputs) != spatial or len(shape) != spatial + 2 or min(*outputs, *shape[2:]) < 1:
        return None
    if backward and list(x.shape) != [*shape[:2], *outputs]:
        return None
    names = ["scales_d", "scales_h", "scales_w"][3 - spatial :] if spatial > 1 else ["scales"]
    windows = []
    for size, output, scale in zip(shape[2:], outputs, map(arguments.get, names), strict=True):
        if kind == "linear":
            found = _linear(size, output, arguments["align_corners"], scale)
        else:
            found = _nearest(size, output, scale, kind == "exact")
        windows.append(_transposed(found) if backward else found)
    return window_sums(x, windows)


def unfold_backward(arguments: dict[str, Any]) -> Tensor | None:
    """Return the gradient of ``Tensor.unfold``: places of the window are added one after the other."""
    grad: Tensor = arguments["grad_in"]
    sizes = list(arguments["input_sizes"])
    dim, size, step = arguments["dim"], arguments["size"], arguments["step"]
    if grad.dtype != torch.float64 or not sizes or step < 1:
        return None
    dim %= len(sizes)
    result, outputs = grad.new_zeros(sizes), grad.shape[dim]
    for k in range(size):
        picked = (slice(None),) * dim + (slice(k, k + (outputs - 1) * step + 1, step),)
        result[picked] += grad.select(-1, k)
    return result


def col2im(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``fold``: places of the window are added one after the other, row by row."""
    x: Tensor = arguments["self"]
    sizes = list(arguments["output_size"])
    kernel, dilation, padding, stride = (
        _each(arguments[name], 2, ()) for name in ("kernel_size", "dilation", "padding", "stride")
    )
    if x.dtype != torch.float64 or x.dim() not in (2, 3) or min(*kernel, *dilation, *stride, *sizes) < 1:
        return None
    settings = zip(sizes, kernel, dilation, padding, stride, strict=True)
    high, wide = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in settings)
    if min(high, wide) < 1 or x.shape[-1] != high * wide or x.shape[-2] % (kernel[0] * kernel[1]):
        return None
    terms = x.reshape(*x.shape[:-2], -1, *kernel, high, wide)
    result = x.new_zeros([*terms.shape[:-4], sizes[0] + 2 * padding[0], sizes[1] + 2 * padding[1]])
    # Parts that stay in the cache: the terms of an element do not change.
    part = max(1, _CACHED * len(terms) // max(1, terms.numel())) if x.is_cpu else max(1, len(terms))
    for into, some in zip(torch.split(result, part), torch.split(terms, part), strict=True):
        for i, j in product(range(kernel[0]), range(kernel[1])):
            y, z = i * dilation[0], j * dilation[1]
            rows = slice(y, y + (high - 1) * stride[0] + 1, stride[0])
            columns = slice(z, z + (wide - 1) * stride[1] + 1, stride[1])
            into[..., rows, columns] += some[..., i, j, :, :]
    inside = result[..., padding[0] : padding[0] + sizes[0], padding[1] : padding[1] + sizes[1]]
    return inside.contiguous()


FORMS: dict[str, Form] = {
    "_upsample_nearest_exact1d": partial(interpolated, spatial=1, kind="exact", backward=False),
    "_upsample_nearest_exact2d": partial(interpolated, spatial=2, kind="exact", backward=False),
    "_upsample_nearest_exact3d": partial(interpolated, spatial=3, kind="exact", backward=False),
    "adaptive_max_pool2d_backward": partial(maximum_backward, spatial=2, adaptive=True),
    "adaptive_max_pool3d_backward": partial(maximum_backward, spatial=3, adaptive=True),
    "max_pool2d_with_indices_backward": partial(maximum_backward, spatial=2, adaptive=False),
    "max_pool3d_with_indices_backward": partial(maximum_backward, spatial=3, adaptive=False),
    "unfold_backward": unfold_backward,
    "col2im": col2im,
}
for _n, _name in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    FORMS[f"upsample_{_name}"] = partial(interpolated, spatial=_n, kind="linear", backward=False)
    FORMS[f"upsample_{_name}_backward"] = partial(interpolated, spatial=_n, kind="linear", backward=True)
    FORMS[f"upsample_nearest{_n}d_backward"] = partial(interpolated, spatial=_n, kind="nearest", backward=True)
    FORMS[f"_upsample_nearest_exact{_n}d_backward"] = partial(interpolated, spatial=_n, kind="exact", backward=True)
for _n in (2, 3):
    for _name, _pools in ((f"avg_pool{_n}d", _averages), (f"_adaptive_avg_pool{_n}d", _adaptive_averages)):
        FORMS[_name] = partial(average, spatial=_n, pools=_pools)
        FORMS[f"{_name}_backward"] = partial(average_backward, spatial=_n, pools=_pools)
FLOAT32 = frozenset(name for name in FORMS if "max_pool" in name)
