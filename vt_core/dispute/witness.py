"""A witness: the values that one record takes and gives, so that its operation can be recomputed alone.

As bytes: length of the header (u32, little-endian), the header as canonical JSON (format, record number), then a
safetensors document with the inputs (``in.RECORD.RESULT``), the results (``out.RESULT``) and the step's record of the
rounding log (``log``). Nothing in it is trusted: inputs must have the agreed digests, results those that the giver
claimed, the log that of the leaf.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from vt_core.dispute.tracking import Origin
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict

FORMAT = "vt-witness/1"
MAX_WITNESS_BYTES = 8 << 30
_LENGTH = struct.Struct("<I")
_MAX_HEADER = 1 << 12
_MAX_NAMES = 1 << 16
_DTYPES = {f"torch.{name}" for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                                        "uint8", "bool")}  # fmt: skip


@dataclass(frozen=True)
class Witness:
    """Values for record ``index`` of a step: inputs by (record, result), results by number, and the step's log."""

    index: int
    inputs: dict[Origin, Tensor]
    outputs: dict[int, Tensor]
    log: bytes

    def to_bytes(self) -> bytes:
        """Return the witness as bytes."""
        header = dumps({"format": FORMAT, "index": self.index})
        tensors = {f"in.{j}.{k}": t.contiguous() for (j, k), t in self.inputs.items()}
        tensors |= {f"out.{k}": t.contiguous() for k, t in self.outputs.items()}
        tensors["log"] = torch.from_numpy(np.frombuffer(self.log, np.uint8).copy())
        return _LENGTH.pack(len(header)) + header + save(tensors)


def parse_witness(data: bytes) -> Witness:
    """Read a witness. Raises EvidenceError("evidence_malformed")."""
    if not _LENGTH.size <= len(data) <= MAX_WITNESS_BYTES:
        raise _malformed(f"it has {len(data)} bytes")
    (length,) = _LENGTH.unpack_from(data)
    if length > min(_MAX_HEADER, len(data) - _LENGTH.size):
        raise _malformed("its header is too long")
    end = _LENGTH.size + length
    header = loads_strict(data[_LENGTH.size : end], "witness", _MAX_HEADER)
    if not isinstance(header, dict) or set(header) != {"format", "index"} or header["format"] != FORMAT:
        raise _malformed(f"not a {FORMAT} object")
    if type(header["index"]) is not int or header["index"] < 0:
        raise _malformed("its record number is no count")
    try:
        tensors = load(data[end:])
    except (SafetensorError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        raise _malformed(str(error)) from error
    if len(tensors) > _MAX_NAMES or "log" not in tensors or tensors["log"].dtype != torch.uint8:
        raise _malformed("too many tensors, or no log")
    log = tensors.pop("log").numpy().tobytes()
    odd = sorted({str(t.dtype) for t in tensors.values()} - _DTYPES)
    if odd:  # no step has them, and not every operation knows them
        raise _malformed(f"it has tensors of {odd[0]}")
    inputs: dict[Origin, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(?:in\.(0|[1-9]\d{0,8})|out)\.(0|[1-9]\d{0,8})", name)
        if match is None:
            raise _malformed(f"it has a tensor {name[:80]!r}")
        if match[1] is None:
            outputs[int(match[2])] = tensor
        else:
            inputs[int(match[1]), int(match[2])] = tensor
    return Witness(header["index"], inputs, outputs, log)


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"witness: {why}", document="witness")
