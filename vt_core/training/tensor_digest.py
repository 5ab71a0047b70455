"""Digests of tensors by all cores: RFC 6962 over a header (name, dtype, shape) and the raw bytes in chunks of 1 MiB.

Tensors in the compute precision are brought to the width of the grid block by block, in a buffer that stays in a
core's cache, and hashed from there: no copy of the state is made. Results do not depend on the number of threads.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.errors import SpecError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.numerics import Grid
from vt_core.numerics.threads import worker_count
from vt_core.training.narrow import narrow, raw_bytes, snapshot, vector

CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 19  # stays in the second-level cache of a core
_NICE = 10
_SHARED_FROM = 1 << 17  # bytes; less is hashed by the calling thread

_pools: dict[bool, ThreadPoolExecutor] = {}
_lock = threading.Lock()
_own = threading.local()


@dataclass(frozen=True)
class _Piece:
    """One chunk of a tensor; ``values`` is narrowed to ``storage`` before it is hashed, unless that is None."""

    values: NDArray[Any]
    storage: torch.dtype | None

    def hash(self) -> bytes:
        """Return the RFC 6962 leaf hash of the chunk (32 bytes)."""
        hasher = hashlib.sha256(b"\x00")
        if self.storage is None:
            hasher.update(self.values.data)
            return hasher.digest()
        buffer, length = _buffer(), _BLOCK_BYTES // self.storage.itemsize
        for start in range(0, self.values.size, length):
            hasher.update(narrow(self.values[start : start + length], buffer, self.storage).data)
        return hasher.digest()


class Pending:
    """Tensor roots in the making; hashing threads read the tensors' own memory until :meth:`result` has returned.

    Whoever writes to memory in ``reads`` before that gets roots of neither state. What was not on the CPU, contiguous
    and in a dtype that is hashed or narrowed as it lies has been copied: it may change at once.
    """

    def __init__(self, tensors: Mapping[str, Tensor], grid: Grid | None, background: bool = False) -> None:
        """Start hashing ``tensors``; with ``grid`` floating ones of at least one dimension at its storage width.

        In the ``background`` the threads take only time that nobody else wants; :meth:`result` then does what is left.
        """
        if sys.byteorder != "little":
            raise SpecError("big-endian machines are not supported")
        self.reads: set[int] = set()
        """Addresses of the storages that are still read."""
        self._headers: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._pieces: list[_Piece] = []
        for name in sorted(tensors):
            self._add(name, tensors[name].detach(), grid)
        self._hashes: list[bytes] = [b""] * len(self._pieces)
        self._next = itertools.count()  # its next() is one step of the interpreter: no two threads get one number
        self._helpers: list[Future[None]] = []
        if sum(piece.values.nbytes for piece in self._pieces) < _SHARED_FROM:
            self._work()
            self.reads.clear()
        else:
            count = worker_count() if background else worker_count() - 1  # the caller of result() works too
            self._helpers = [_threads(background).submit(self._work) for _ in range(count)]

    def result(self) -> dict[str, bytes]:
        """Finish and return the root (32 bytes) of each tensor by name; lets go of the tensors. May be called again."""
        self._work()
        for helper in self._helpers:
            if not helper.cancel():
                helper.result()
        self._pieces, self._helpers = [], []
        self.reads.clear()
        hashes = iter(self._hashes)
        return {
            name: root([self._headers[name], *itertools.islice(hashes, count)]) for name, count in self._counts.items()
        }

    def _add(self, name: str, tensor: Tensor, grid: Grid | None) -> None:
        dtype = tensor.dtype if grid is None or not at_grid_width(tensor) else grid.storage
        live = tensor.untyped_storage().data_ptr()
        narrowed = dtype != tensor.dtype
        if narrowed and not _readable(tensor):
            tensor, narrowed = snapshot(tensor, dtype), False
        flat = vector(tensor.to("cpu"))
        if flat.untyped_storage().data_ptr() == live:
            self.reads.add(live)
        values = flat.numpy() if narrowed else raw_bytes(flat)
        length = CHUNK_BYTES // (dtype.itemsize if narrowed else 1)
        starts = range(0, values.size, length)
        self._pieces += [_Piece(values[start : start + length], dtype if narrowed else None) for start in starts]
        self._counts[name] = len(starts)
        self._headers[name] = _header(name, str(dtype), tuple(tensor.shape))

    def _work(self) -> None:
        for i in self._next:
            if i >= len(self._pieces):
                return
            self._hashes[i] = self._pieces[i].hash()


def at_grid_width(tensor: Tensor) -> bool:
    """Tell whether a tensor of the state lies on the grid and is stored at its width.

    Others (integers, and 0-dimensional ones such as step counters) are stored as they are.
    """
    return tensor.is_floating_point() and tensor.dim() > 0


def tensor_roots(tensors: Mapping[str, Tensor], grid: Grid | None = None) -> dict[str, bytes]:
    """Return the root (32 bytes) of each tensor by name, as it is or, with ``grid``, as :class:`Pending` does."""
    return Pending(tensors, grid).result()


def state_root(step: int, scalars: Mapping[str, Any], roots: Mapping[str, bytes]) -> bytes:
    """Return the root (32 bytes) of a state: RFC 6962 over tensor roots sorted by name, then step and scalars."""
    tail = dumps({"step": step, "scalars": scalars, "tensors": len(roots)})
    return root([*(leaf_hash(roots[name]) for name in sorted(roots)), leaf_hash(tail)])


@functools.lru_cache(maxsize=1 << 14)
def _header(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    return leaf_hash(dumps({"name": name, "dtype": dtype, "shape": list(shape)}))


def _readable(tensor: Tensor) -> bool:
    """Tell whether :func:`narrow` can read the tensor where it lies."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype in (torch.float64, torch.float32)


def _buffer() -> NDArray[np.uint8]:
    """Return this thread's block."""
    found: NDArray[np.uint8] | None = getattr(_own, "buffer", None)
    if found is None:
        found = _own.buffer = np.empty(_BLOCK_BYTES, np.uint8)
    return found


def _threads(background: bool) -> ThreadPoolExecutor:
    """Return this process's hashing threads: others than those that round, which must not wait behind a state."""
    with _lock:
        if background not in _pools:
            _pools[background] = ThreadPoolExecutor(
                worker_count(), "vt-hash", initializer=_step_back if background else None
            )
        return _pools[background]


def _step_back() -> None:
    """Lower this thread's priority: hashing fills the gaps of a step and does not slow it down.

    Not to the lowest: :meth:`Pending.result` waits for a chunk that is half done, on a busy machine too.
    """
    if sys.platform == "linux":  # elsewhere this would be the priority of the whole process
        thread = threading.get_native_id()
        with suppress(OSError):  # where the system does not allow it, hashing competes with the step
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


def _forget() -> None:
    # A forked child has the pools' objects but not their threads: work given to them would wait for ever.
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
