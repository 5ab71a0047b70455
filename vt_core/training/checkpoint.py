"""Checkpoints on disk: ``checkpoint.safetensors`` at grid width and ``scalars.json``; nothing is ever unpickled."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.digests import read_bounded, write_hashed
from vt_core.training.state import State
from vt_core.training.tensor_file import DTYPES, write_tensors

TENSORS = "checkpoint.safetensors"
SCALARS = "scalars.json"
MAX_SCALARS_BYTES = 64 << 20
MAX_TENSORS_BYTES = 1 << 40
MAX_HEADER_BYTES = 16 << 20  # the format itself allows 100 MB
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 64
_LENGTH = struct.Struct("<Q")
_MOST_ELEMENTS = 1 << 60


def save_checkpoint(state: State, directory: Path) -> dict[str, dict[str, Any]]:
    """Write a state into ``directory``; return name -> {sha256, size} of its files.

    Raises OSError if that cannot be done, for example on a full disk, and SpecError for a state that no auditor would
    read (see ``MAX_TENSORS``).
    """
    tensors = write_tensors(state.tensors, directory / TENSORS)
    try:
        _check_header(directory / TENSORS)
    except EvidenceError as error:
        raise SpecError(f"this model's state is outside what evidence may hold: {error}") from error
    scalars = write_hashed(directory / SCALARS, [dumps({"step": state.step, "scalars": state.scalars})])
    return {name: {"sha256": sha256, "size": size} for name, (sha256, size) in ((TENSORS, tensors), (SCALARS, scalars))}


def load_checkpoint(directory: Path) -> State:
    """Read a state back, bit for bit. Raises EvidenceError("evidence_malformed").

    The caller has checked the files' digests, so a malformed file was committed as such. The header is checked here
    before safetensors makes an object of each entry; the tensors' bytes stay in the file (mapped) until they are used.
    """
    _check_header(directory / TENSORS)
    try:
        tensors = load_file(directory / TENSORS, device="cpu")
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        LookupError,
        ArithmeticError,
        MemoryError,
    ) as error:
        raise EvidenceError("evidence_malformed", f"{TENSORS}: {error}", file=TENSORS) from error
    plain: Any = loads_strict(read_bounded(directory / SCALARS, MAX_SCALARS_BYTES, SCALARS), SCALARS, MAX_SCALARS_BYTES)
    if not isinstance(plain, dict) or set(plain) != {"step", "scalars"} or type(plain["step"]) is not int:
        raise EvidenceError("evidence_malformed", f"{SCALARS} needs exactly a step and scalars", file=SCALARS)
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise EvidenceError("evidence_malformed", f"{TENSORS}: {name} has dtype {tensor.dtype}", file=TENSORS)
    return State(plain["step"], tensors, plain["scalars"])


def _check_header(path: Path) -> None:
    """Check length, number of tensors and names of a safetensors header (u64 length, then JSON) against the limits.

    The rest (offsets that fit the shapes and leave no holes) is what safetensors itself checks.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(_LENGTH.size)
            length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else size
            if size > MAX_TENSORS_BYTES or length > min(MAX_HEADER_BYTES, size - len(start)):
                raise ValueError(f"a header of {length} bytes in a file of {size} is not accepted")
            text = file.read(length).decode()
        if text.count("{") > MAX_TENSORS + 2:  # before anything is made of it
            raise ValueError(f"there are more than {MAX_TENSORS} tensors")
        header = json.loads(text, object_pairs_hook=_no_duplicates)
        for name, entry in header.items():
            if name != "__metadata__":
                _check_shape(name, entry["shape"])
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise EvidenceError("evidence_malformed", f"{TENSORS}: {error}", file=TENSORS) from error


def _check_shape(name: str, shape: list[int]) -> None:
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{name[:200]!r} has no usable shape")
    # Also where a dimension is 0 and the tensor empty: PyTorch multiplies the others for its strides.
    if math.prod(n for n in shape if n) > _MOST_ELEMENTS:
        raise ValueError(f"{name[:200]!r} has a shape that is too large")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        raise ValueError("its header names a tensor or a field twice")
    return plain
