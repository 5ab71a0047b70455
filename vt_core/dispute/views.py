"""Views in logical terms: which elements of a value a view shows, whatever the memory layout is.

A *view* is a tuple of stages. Each stage (size, stride, offset) selects elements of the row-major form of what the
stage before gave (the first one of the value itself), as ``torch.as_strided`` does. Strides here are never those of
the machine's memory: a channels_last tensor and a contiguous one give the same stages. One stage is enough unless a
reshape meets something that row-major memory could only show by a copy. The empty tuple is the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vt_core.errors import EvidenceError

Stage = tuple[tuple[int, ...], tuple[int, ...], int]
View = tuple[Stage, ...]
Shape = tuple[int, ...]

MAX_STAGES = 16


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor of ``shape``, 0 for dimensions of one element."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(0 if size == 1 else step)
        step *= size
    return tuple(reversed(strides))


def stage_of(size: Sequence[int], stride: Sequence[int], offset: int) -> Stage:
    """Return the stage in its one form: dimensions of one element and empty selections have no stride."""
    if 0 in size:
        return tuple(size), (0,) * len(size), 0
    return tuple(size), tuple(0 if n == 1 else s for n, s in zip(size, stride, strict=True)), offset


def shape_of(shape: Shape, view: View) -> Shape:
    """Return the shape that ``view`` shows of a value of ``shape``."""
    return view[-1][0] if view else shape


def append(shape: Shape, view: View, stage: Stage) -> View:
    """Return ``view`` of a value of ``shape`` followed by ``stage``, which is left out if it changes nothing."""
    before = shape_of(shape, view)
    return view if stage == stage_of(before, row_major(before), 0) else (*view, stage)


def extend(shape: Shape, view: View, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[View]:
    """Return the views that the view operation ``func`` makes of ``view``, one for each output.

    ``shape`` is that of the value under the view, ``args`` and ``kwargs`` are the operation's; their one tensor
    stands for ``view``. The operation runs on tensors without data.
    """
    size, stride, offset = view[-1] if view else stage_of(shape, row_major(shape), 0)
    under = shape_of(shape, view[:-1])

    def run(shadow: Tensor) -> list[Stage]:
        outputs = func(*tree_map_only(Tensor, lambda _: shadow, args), **kwargs)
        found = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        return [stage_of(tuple(t.shape), t.stride(), t.storage_offset()) for t in found]

    memory = torch.empty(max(math.prod(under), _extent(size, stride, offset)), dtype=torch.uint8, device="meta")
    try:
        return [append(shape, view[:-1], s) for s in run(memory.as_strided(size, stride, offset))]
    except RuntimeError:
        # Row-major memory has no such view: a machine with this layout copies first.
        whole = torch.empty(size, dtype=torch.uint8, device="meta")
        return [append(shape, view, s) for s in run(whole)]


def apply(value: Tensor, view: View) -> Tensor:
    """Return what ``view`` shows of ``value`` as a row-major tensor. EvidenceError if it does not fit."""
    shown = value.contiguous()
    for size, stride, offset in view:
        if _extent(size, stride, offset) > shown.numel():
            raise EvidenceError("evidence_malformed", f"a view reaches beyond a value of {shown.numel()} elements")
        shown = torch.as_strided(shown, size, stride, offset).contiguous()
    return shown


def places(shape: Shape, view: View) -> Tensor:
    """Return the row-major positions (int64, flat) in a value of ``shape`` of the elements that ``view`` shows."""
    return apply(torch.arange(math.prod(shape)).reshape(shape), view).reshape(-1)


def encode_view(view: View) -> list[Any]:
    """Return plain JSON."""
    return [[list(size), list(stride), offset] for size, stride, offset in view]


def decode_view(plain: Any) -> View:
    """Read a view. Raises ValueError for anything but its one form."""
    if not isinstance(plain, list) or len(plain) > MAX_STAGES:
        raise ValueError("a view is a list of a few stages")
    stages = []
    for item in plain:
        size, stride, offset = item
        counts = [*size, *stride, offset]
        if not all(type(n) is int and 0 <= n < 1 << 48 for n in counts):
            raise ValueError("sizes, strides and offsets are counts")
        stage = stage_of(size, stride, offset)
        if stage != (tuple(size), tuple(stride), offset):
            raise ValueError("a view's stage is not in its one form")
        stages.append(stage)
    return tuple(stages)


def _extent(size: Sequence[int], stride: Sequence[int], offset: int) -> int:
    """Return how many elements of row-major memory a stage needs."""
    if 0 in size:
        return 0
    return offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
