"""Where the value in a tensor's memory comes from, while a step runs.

Tensors are known by their storage and geometry. A storage has one *base* tensor (what an operation made in it), the
record and result that its value comes from, and the views of it that were seen. A copy without arithmetic is a new
storage that shows its source's value until it is written. Nothing is kept alive: weak references only keep a
storage's identity from being used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from vt_core.dispute.views import View, append, extend, row_major, stage_of
from vt_core.errors import UnsupportedOperation

Origin = tuple[int, int]  # (record, result)
Geometry = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


@dataclass
class Memory:
    """What is known of one storage. Views by geometry: of the base, and of the value at ``origin``."""

    weak: StorageWeakRef
    base: Geometry
    origin: Origin
    of_value: tuple[int, ...]  # shape of the value at ``origin``
    before: View = ()  # the base as a view of the value at ``origin``
    constant: bool = False
    views: dict[Geometry, View] = field(default_factory=dict)  # of the base
    shown: dict[Geometry, View] = field(default_factory=dict)  # of the value at ``origin``

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the base."""
        return self.base[1]

    def written(self, origin: Origin) -> None:
        """The base has a new value, result ``origin``."""
        self.origin, self.of_value, self.before, self.constant = origin, self.shape, (), False
        self.shown = dict(self.views)


def geometry(tensor: Tensor) -> Geometry:
    """Return dtype, sizes, strides (0 for dimensions of one element) and offset in memory."""
    size, stride, _ = stage_of(tuple(tensor.shape), tensor.stride(), 0)
    return tensor.dtype, size, stride, int(tensor.storage_offset())


class Values:
    """All storages that a step has touched."""

    def __init__(self) -> None:
        self._memory: dict[int, Memory] = {}

    def made(self, tensor: Tensor, origin: Origin, constant: bool = False) -> None:
        """An operation made ``tensor`` in new memory."""
        key, memory = self._new(tensor, origin, tuple(tensor.shape), ())
        memory.constant = constant
        self._memory[key] = memory

    def copied(self, source: Tensor, copy: Tensor) -> None:
        """``copy`` is a copy of ``source``, which is known, without arithmetic."""
        memory, _, shown = self.find(source) or _unknown(source)
        key, new = self._new(copy, memory.origin, memory.of_value, shown)
        self._memory[key] = new

    def viewed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """``func`` made views (``result``) of its one tensor argument, which is known."""
        source = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        memory, view, shown = self.find(source) or _unknown(source)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        if any(t.dtype != source.dtype for t in outputs):
            raise UnsupportedOperation(str(func), "", "a view in another dtype has no record", "Convert with .to().")
        if "as_strided" in str(func):  # speaks of memory, not of values
            if memory.base[2] != row_major(memory.shape):
                raise UnsupportedOperation(str(func), "", "it depends on the memory layout", "Use an ordinary view.")
            views = [append(memory.shape, (), _stage(memory, t)) for t in outputs]
            shows = [memory.before + v for v in views]
        else:
            views = extend(memory.shape, view, func, args, kwargs)
            shows = extend(memory.of_value, shown, func, args, kwargs) if memory.before else views
        for tensor, of_base, of_value in zip(outputs, views, shows, strict=True):
            if tensor.untyped_storage()._cdata != source.untyped_storage()._cdata:
                raise UnsupportedOperation(str(func), "", "a view that is none has no record", "Use an ordinary view.")
            place = geometry(tensor)
            memory.views.setdefault(place, of_base)
            memory.shown.setdefault(place, of_value)

    def find(self, tensor: Tensor) -> tuple[Memory, View, View] | None:
        """Return the memory of ``tensor`` and the tensor as a view of the base and of the value; None if unknown."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is None:
            return None
        place = geometry(tensor)
        if place not in memory.views:
            if place[0] != memory.base[0] or memory.base[2] != row_major(memory.shape) or not _inside(memory, tensor):
                return None
            stage = _stage(memory, tensor)
            memory.views[place] = append(memory.shape, (), stage)
            memory.shown[place] = append(memory.of_value, memory.before, stage)
        return memory, memory.views[place], memory.shown[place]

    def known(self, tensor: Tensor) -> bool:
        """Tell whether the tensor's storage has been seen."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        return memory is not None and not memory.constant

    def base(self, tensor: Tensor) -> Tensor:
        """Return the base tensor of the memory that ``tensor``, which is known, lies in."""
        memory, view, _ = self.find(tensor) or _unknown(tensor)
        if not view:
            return tensor.detach()
        dtype, size, stride, offset = memory.base
        base = torch.empty(0, dtype=dtype, device=tensor.device)
        return base.set_(tensor.untyped_storage(), offset, size, stride)

    def _new(self, tensor: Tensor, origin: Origin, shape: tuple[int, ...], shown: View) -> tuple[int, Memory]:
        weak: StorageWeakRef = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        place = geometry(tensor)
        memory = Memory(weak, place, origin, shape, shown, views={place: ()}, shown={place: shown})
        return weak.cdata, memory


def _stage(memory: Memory, tensor: Tensor) -> Any:
    _, size, stride, offset = geometry(tensor)
    return stage_of(size, stride, offset - memory.base[3])


def _inside(memory: Memory, tensor: Tensor) -> bool:
    begin = memory.base[3]
    end = begin + max(1, torch.Size(memory.shape).numel())
    last = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() == 0 or begin <= tensor.storage_offset() <= last < end


def _unknown(tensor: Tensor) -> Any:
    raise UnsupportedOperation(
        "vt::view", "", f"a tensor of shape {tuple(tensor.shape)} is a part of memory that was never seen whole",
        "Make it by operations of the step.",
    )  # fmt: skip
