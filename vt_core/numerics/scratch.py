"""Buffers that are used again: the pages of fresh ones cost as much as the work on them."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

KEPT = 1 << 23
"""Most values (64 MiB) of a buffer that is kept; a larger one is freed after use."""


class Scratch(threading.local):
    """One float64 buffer a name and thread (CPU). What was in it before is overwritten: return no view of it."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, count: int) -> Tensor:
        """Return ``count`` values of the buffer ``name``, a flat tensor with arbitrary contents."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = torch.from_numpy(np.empty(count))  # NumPy asks the system for huge pages
            if count <= KEPT:
                self._buffers[name] = buffer
        return buffer[:count]
