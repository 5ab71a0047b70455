"""Writing a safetensors file and its SHA-256 in one pass; the bytes are those that the safetensors library writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vt_core.errors import SpecError
from vt_core.evidence.digests import write_hashed
from vt_core.training.narrow import raw_bytes

_PART_BYTES = 1 << 22
_NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
"""The dtypes that a checkpoint may hold, in the order that safetensors gives them, by growing alignment."""

_ORDER = {dtype: place for place, dtype in enumerate(_NAMES)}

DTYPES = frozenset(_NAMES)


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> tuple[str, int]:
    """Write CPU tensors of any strides into the safetensors file ``path``; return SHA-256 (hex) and size in bytes.

    The widest dtypes come first, tensors of one dtype by name. Raises SpecError for a dtype that no checkpoint may
    hold and OSError if the file cannot be written.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise SpecError(f"{name} has dtype {tensor.dtype}, which no checkpoint may hold: keep it out of the state")
    names = sorted(tensors, key=lambda name: (-_ORDER[tensors[name].dtype], name))
    return write_hashed(path, _parts([(name, tensors[name]) for name in names]))


def _parts(tensors: list[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    header, end = {}, 0
    for name, tensor in tensors:
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of eight bytes
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in tensors:
        raw = raw_bytes(tensor).data
        yield from (raw[start : start + _PART_BYTES] for start in range(0, len(raw), _PART_BYTES))
