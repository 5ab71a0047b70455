"""Grid values at storage width: as a snapshot (:func:`snapshot`) or block by block for hashing (:func:`narrow`).

Both give the same bytes on every machine. ``tensor.to(torch.bfloat16)`` does not: PyTorch makes three different NaN
of one, by device, vector width and position.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.numerics._jit_base import compiled

_BFLOAT16_NAN = 0x7FC0
_NAN_BITS = np.uint16(_BFLOAT16_NAN)


@compiled
def _to_float32(x: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = np.float32(x[i])


@compiled
def _to_bfloat16(x: Any, out: Any) -> None:
    """Round to nearest even by way of float32, as PyTorch does; ``out`` takes the bits (uint16)."""
    for i in range(out.size):
        y = np.float32(x[i])
        bits: Any = y.view(np.uint32)
        rounded = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))
        out[i] = _NAN_BITS if y != y else rounded


def narrow(x: NDArray[Any], out: NDArray[np.uint8], storage: torch.dtype) -> NDArray[np.uint8]:
    """Write ``x`` at the width of ``storage`` into the front of ``out`` and return that part.

    ``x``: float64 or float32, one-dimensional and contiguous. ``storage``: float32, bfloat16 or float16. ``out``
    (uint8, aligned for it) has room for ``x.size`` values. Exact for grid values; others are rounded to nearest even.
    Holds no interpreter lock while it works.
    """
    part = out[: x.size * storage.itemsize]
    if storage == torch.float32:
        _to_float32(x, part.view(np.float32))
    elif storage == torch.bfloat16:
        _to_bfloat16(x, part.view(np.uint16))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            part.view(np.float16)[:] = x.astype(np.float32)  # by way of float32, as PyTorch does
    return part


def snapshot(x: Tensor, storage: torch.dtype) -> Tensor:
    """Return a copy of ``x`` (any device and strides) as a contiguous CPU tensor of dtype ``storage``."""
    copy = torch.empty(x.shape, dtype=storage, device="cpu").copy_(x)
    if storage == torch.bfloat16 and x.dtype != storage:
        copy.view(torch.int16)[copy.isnan()] = _BFLOAT16_NAN
    return copy


def vector(x: Tensor) -> Tensor:
    """Return the elements of ``x`` in row-major order, without gaps: its own memory if it lies so already."""
    flat = x.detach().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,))  # a vector of one element may have any stride


def raw_bytes(x: Tensor) -> NDArray[np.uint8]:
    """Return the little-endian bytes of a CPU tensor in row-major order, in its own memory if it lies so already."""
    flat = vector(x)
    found: NDArray[np.uint8] = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return found
