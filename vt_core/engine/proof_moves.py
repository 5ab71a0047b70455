"""The second half of the cases of ``proof.py``: operations that choose, sort or move elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from vt_core.engine.proof_cases import CASES, Array, Case, add_case, aten, scalar


def _steps(x: Tensor | Array) -> list[int]:
    """Return column numbers with repeats, for the operations that index."""
    n = int(x.shape[1])
    return [(7 * i + 3) % n for i in range(n + 2)]


def _columns(x: Tensor) -> Tensor:
    return torch.tensor(_steps(x), device=x.device)


def _by_order() -> None:
    def order(op: str, run: Any, reference: Any, label: str = "", tied: bool = False) -> None:
        add_case(op, run, reference, label, by_order=True, tied=tied)

    order("relu", lambda x, y: torch.relu(x), lambda a, b: np.where(np.isnan(a), a, np.maximum(a, 0)))
    order("relu6", lambda x, y: F.relu6(x), lambda a, b: np.clip(a, 0, 6))
    order("hardtanh", lambda x, y: F.hardtanh(x, -0.5, 1.5), lambda a, b: np.clip(a, -0.5, 1.5))
    order("clamp", lambda x, y: torch.clamp(x, -0.5, 1.5), lambda a, b: np.clip(a, -0.5, 1.5))
    order("clamp_min", lambda x, y: torch.clamp_min(x, 0.5), lambda a, b: np.maximum(a, scalar(a, 0.5)))
    order("clamp_max", lambda x, y: torch.clamp_max(x, 0.5), lambda a, b: np.minimum(a, scalar(a, 0.5)))
    order("threshold", lambda x, y: F.threshold(x, 0.5, 7.0), lambda a, b: np.where(a <= 0.5, scalar(a, 7), a))
    order(
        "threshold_backward",
        lambda x, y: aten.threshold_backward(x, y, 0),
        lambda a, b: np.where(b <= 0, scalar(a, 0), a),
    )
    order(
        "hardtanh_backward",
        lambda x, y: aten.hardtanh_backward(x, y, -1.5, 1.5),
        lambda a, b: np.where((b <= -1.5) | (b >= 1.5), scalar(a, 0), a),
        tied=True,
    )
    order("amax", lambda x, y: torch.amax(x, 1), lambda a, b: a.max(axis=1))
    order("amin", lambda x, y: torch.amin(x, 0), lambda a, b: a.min(axis=0))
    order("aminmax", lambda x, y: torch.aminmax(x, dim=1), lambda a, b: (a.min(axis=1), a.max(axis=1)))
    order("max", lambda x, y: torch.max(x), lambda a, b: a.max())
    order("min", lambda x, y: torch.min(x), lambda a, b: a.min())
    order("max", lambda x, y: torch.max(x, 1), lambda a, b: (a.max(axis=1), a.argmax(axis=1)), "max (dim)", tied=True)
    order("min", lambda x, y: torch.min(x, 0), lambda a, b: (a.min(axis=0), a.argmin(axis=0)), "min (dim)", tied=True)
    order("argmax", lambda x, y: torch.argmax(x, 1), lambda a, b: a.argmax(axis=1), tied=True)
    order("argmin", lambda x, y: torch.argmin(x, 0), lambda a, b: a.argmin(axis=0), tied=True)
    # A stable sort: the engine asks for one, since the place of equal values decides where gradients go.
    order("sort", lambda x, y: torch.sort(x, dim=1, stable=True), _sorted, tied=True)
    order("argsort", lambda x, y: torch.argsort(x, dim=1, stable=True), lambda a, b: _sorted(a, b)[1], tied=True)
    order("topk", lambda x, y: torch.topk(x, 1 + x.shape[1] // 3, 1).values, _largest)
    order(
        "searchsorted",
        lambda x, y: torch.searchsorted(torch.sort(x, 1)[0].contiguous(), y.contiguous()),
        _searched,
        tied=True,
    )
    order(
        "bucketize",
        lambda x, y: torch.bucketize(x.contiguous(), torch.tensor([-1.0, 0.0, 2.0], dtype=x.dtype, device=x.device)),
        lambda a, b: np.searchsorted(np.array([-1.0, 0.0, 2.0]), a),
        tied=True,
    )
    order("_unique2", lambda x, y: torch.unique(x), lambda a, b: np.unique(a), tied=True)
    order(
        "bincount",
        lambda x, y: torch.bincount((x + 3).long().reshape(-1), minlength=9),
        lambda a, b: np.bincount((a + 3).astype(np.int64).reshape(-1), minlength=9),
        tied=True,
    )
    for ties in (False, True):
        order("max_pool2d_with_indices", _max_pool2d, lambda a, b, t=ties: _pooled(a, t), tied=ties)
    order("max_pool2d_with_indices", _max_pool2d_indices, _pool_indices, "max_pool2d (indices)", tied=True)
    order("adaptive_max_pool2d", lambda x, y: F.adaptive_max_pool2d(x[None], 1)[0], lambda a, b: a.max(keepdims=True))
    order("max_pool3d_with_indices", _max_pool3d, lambda a, b: np.maximum(a, b)[None], tied=True)


def _sorted(a: Array, b: Array) -> tuple[Array, Array]:
    places = np.argsort(a, axis=1, kind="stable")
    return np.take_along_axis(a, places, 1), places


def _largest(a: Array, b: Array) -> Array:
    return np.sort(a, axis=1)[:, ::-1][:, : 1 + a.shape[1] // 3]  # NaN counts as largest in both


def _searched(a: Array, b: Array) -> Array:
    return np.stack([np.searchsorted(np.sort(row), values) for row, values in zip(a, b, strict=True)])


def _padded(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1, 1, 1), value=-5.0)[None, None]


def _max_pool2d(x: Tensor, y: Tensor) -> Tensor:
    return F.max_pool2d(_padded(x), 3, 2)[0, 0]


def _pooled(a: Array, ties: bool) -> Array:
    image = np.pad(a, 1, constant_values=-5.0)
    return np.asarray(sliding_window_view(image, (3, 3))[::2, ::2].max(axis=(2, 3)))


def _max_pool2d_indices(x: Tensor, y: Tensor) -> Any:
    return aten.max_pool2d_with_indices(_padded(x), [3, 3], [2, 2])[1][0, 0]


def _pool_indices(a: Array, b: Array) -> Array:
    image = np.pad(a, 1, constant_values=-5.0)
    windows = sliding_window_view(image, (3, 3))[::2, ::2]
    first = windows.reshape(*windows.shape[:2], 9).argmax(axis=2)
    rows, columns = np.indices(first.shape)
    return np.asarray((2 * rows + first // 3) * image.shape[1] + 2 * columns + first % 3)


def _max_pool3d(x: Tensor, y: Tensor) -> Tensor:
    return F.max_pool3d(torch.stack([x, y])[None, None], (2, 1, 1))[0, 0]


def _moves() -> None:
    add_case("cat", lambda x, y: torch.cat([x, y, x], 1), lambda a, b: np.concatenate([a, b, a], 1))
    add_case("cat", lambda x, y: torch.cat([x, y], 0), lambda a, b: np.concatenate([a, b], 0), "cat (rows)")
    add_case("stack", lambda x, y: torch.stack([x, y], 1), lambda a, b: np.stack([a, b], 1))
    add_case("repeat", lambda x, y: x.repeat(2, 3), lambda a, b: np.tile(a, (2, 3)))
    add_case("repeat_interleave", lambda x, y: x.repeat_interleave(2, 1), lambda a, b: np.repeat(a, 2, 1))
    add_case("flip", lambda x, y: x.flip(1), lambda a, b: a[:, ::-1])
    add_case("roll", lambda x, y: x.roll(3, 1), lambda a, b: np.roll(a, 3, 1))
    add_case("tril", lambda x, y: x.tril(1), lambda a, b: np.tril(a, 1))
    add_case("triu", lambda x, y: x.triu(-1), lambda a, b: np.triu(a, -1))
    add_case("index_select", lambda x, y: x.index_select(1, _columns(x)), lambda a, b: a[:, _steps(a)])
    add_case("index", lambda x, y: aten.index(x, [None, _columns(x)]), lambda a, b: a[:, _steps(a)])
    add_case("_unsafe_index", lambda x, y: aten._unsafe_index(x, [None, _columns(x)]), lambda a, b: a[:, _steps(a)])
    add_case("take", lambda x, y: x.take(_columns(x)), lambda a, b: a.reshape(-1)[_steps(a)])
    add_case(
        "gather",
        lambda x, y: x.gather(1, _columns(x).expand(x.shape[0], -1)),
        lambda a, b: np.take_along_axis(a, np.broadcast_to(_steps(a), (a.shape[0], a.shape[1] + 2)), 1),
    )
    add_case("scatter", lambda x, y: x.scatter(0, torch.zeros_like(y[:1], dtype=torch.int64), y), _first_row_of_b)
    add_case("select_scatter", lambda x, y: x.select_scatter(y[0], 0, 0), _first_row_of_b)
    add_case("slice_scatter", lambda x, y: x.slice_scatter(y[:1], 0, 0, 1), _first_row_of_b)
    add_case("index_copy", lambda x, y: x.index_copy(0, torch.zeros(1, dtype=torch.int64, device=x.device), y[:1]),
          _first_row_of_b)  # fmt: skip
    add_case("index_fill", lambda x, y: x.index_fill(1, _columns(x)[:1], 0.25), _filled_column)
    add_case("embedding", lambda x, y: F.embedding(torch.arange(x.shape[0], device=x.device).flip(0), x),
          lambda a, b: a[::-1])  # fmt: skip
    add_case("diagonal_scatter", lambda x, y: x.diagonal_scatter(y.diagonal()), _diagonal_of_b)
    add_case("select_backward", lambda x, y: aten.select_backward(x[0], list(x.shape), 0, 0), _only_first_row)
    add_case("slice_backward", lambda x, y: aten.slice_backward(x[:1], list(x.shape), 0, 0, 1, 1), _only_first_row)
    add_case(
        "diagonal_backward",
        lambda x, y: aten.diagonal_backward(x.diagonal(), list(x.shape), 0, 0, 1),
        lambda a, b: _diagonal_into(np.zeros_like(a), a),
    )
    add_case("constant_pad_nd", lambda x, y: F.pad(x, (1, 2, 3, 0), value=0.3),
          lambda a, b: np.pad(a, ((3, 0), (1, 2)), constant_values=scalar(a, 0.3)))  # fmt: skip
    for dims in (1, 2):
        lead = (slice(None),) if dims == 1 else (None, None)
        width: Any = ((0, 0), (2, 1)) if dims == 1 else ((2, 1), (2, 1))
        add_case(f"replication_pad{dims}d", lambda x, y, k=dims, at=lead: F.pad(x[at], (2, 1) * k, mode="replicate"),
              lambda a, b, at=lead, w=width: np.pad(a, w, mode="edge")[at])  # fmt: skip
        add_case(f"reflection_pad{dims}d",
              lambda x, y, k=dims, at=lead: F.pad(_tripled(x)[at], (2, 1) * k, mode="reflect"),
              lambda a, b, at=lead, w=width: np.pad(np.tile(a, (3, 3)), w, mode="reflect")[at])  # fmt: skip
    add_case("upsample_nearest1d", lambda x, y: F.interpolate(x[None], scale_factor=2.0)[0],
          lambda a, b: np.repeat(a, 2, 1))  # fmt: skip
    add_case("upsample_nearest2d", lambda x, y: F.interpolate(x[None, None], scale_factor=2.0)[0, 0],
          lambda a, b: np.repeat(np.repeat(a, 2, 0), 2, 1))  # fmt: skip
    add_case("upsample_nearest3d", lambda x, y: F.interpolate(x[None, None, None], scale_factor=2.0)[0, 0],
          lambda a, b: np.stack([np.repeat(np.repeat(a, 2, 0), 2, 1)] * 2))  # fmt: skip
    add_case("pixel_shuffle", lambda x, y: F.pixel_shuffle(torch.stack([x, y, y, x])[None], 2)[0, 0], _shuffled)
    add_case("pixel_unshuffle", lambda x, y: F.pixel_unshuffle(x.repeat(2, 2)[None, None], 2)[0], _unshuffled)
    add_case("channel_shuffle", lambda x, y: F.channel_shuffle(torch.stack([x, x, y, y])[None], 2)[0],
          lambda a, b: np.stack([a, b, a, b]))  # fmt: skip
    add_case("im2col", lambda x, y: F.unfold(x[None, None], (1, 1))[0], lambda a, b: a.reshape(1, -1))
    add_case("block_diag", lambda x, y: aten.block_diag([x, y]), _blocks)
    add_case("new_full", lambda x, y: x.new_full((2, 3), 0.3), lambda a, b: np.full((2, 3), 0.3, a.dtype))
    for name, value in (("zeros", 0), ("ones", 1)):
        add_case(name, lambda x, y, n=name: getattr(torch, n)(2, 3, dtype=x.dtype, device=x.device),
              lambda a, b, v=value: np.full((2, 3), v, a.dtype))  # fmt: skip
        add_case(f"new_{name}", lambda x, y, n=name: getattr(x, f"new_{n}")(2, 3),
              lambda a, b, v=value: np.full((2, 3), v, a.dtype))  # fmt: skip
    add_case("full", lambda x, y: torch.full((3, 5), 0.3, dtype=x.dtype, device=x.device),
          lambda a, b: np.full((3, 5), 0.3, a.dtype))  # fmt: skip
    add_case("eye", lambda x, y: torch.eye(5, 7, dtype=x.dtype, device=x.device), lambda a, b: np.eye(5, 7))
    add_case("arange", lambda x, y: torch.arange(3, 1003, 7, dtype=x.dtype, device=x.device),
          lambda a, b: np.arange(3, 1003, 7, dtype=a.dtype))  # fmt: skip
    add_case("scalar_tensor", lambda x, y: torch.scalar_tensor(0.1, dtype=x.dtype, device=x.device),
          lambda a, b: scalar(a, 0.1))  # fmt: skip


def _tripled(x: Tensor) -> Tensor:
    return x.repeat(3, 3)  # reflection needs room


def _first_row_of_b(a: Array, b: Array) -> Array:
    result = a.copy()
    result[0] = b[0]
    return result


def _filled_column(a: Array, b: Array) -> Array:
    result = a.copy()
    result[:, _steps(a)[0]] = 0.25
    return result


def _only_first_row(a: Array, b: Array) -> Array:
    return _first_row_of_b(np.zeros_like(a), a)


def _diagonal_into(target: Array, source: Array) -> Array:
    n = min(target.shape)
    target[np.arange(n), np.arange(n)] = source[np.arange(n), np.arange(n)]
    return target


def _diagonal_of_b(a: Array, b: Array) -> Array:
    return _diagonal_into(a.copy(), b)


def _shuffled(a: Array, b: Array) -> Array:
    result = np.empty((2 * a.shape[0], 2 * a.shape[1]), a.dtype)
    result[::2, ::2], result[::2, 1::2], result[1::2, ::2], result[1::2, 1::2] = a, b, b, a
    return result


def _unshuffled(a: Array, b: Array) -> Array:
    tiled = np.tile(a, (2, 2))
    return np.stack([tiled[::2, ::2], tiled[::2, 1::2], tiled[1::2, ::2], tiled[1::2, 1::2]])


def _blocks(a: Array, b: Array) -> Array:
    result = np.zeros((2 * a.shape[0], 2 * a.shape[1]), a.dtype)
    result[: a.shape[0], : a.shape[1]], result[a.shape[0] :, a.shape[1] :] = a, b
    return result


_by_order()
_moves()

ALL_CASES: tuple[Case, ...] = tuple(CASES)  # those of both halves
