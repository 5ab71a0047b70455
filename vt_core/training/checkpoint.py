"""Checkpoints on disk: ``checkpoint.safetensors`` at grid width and ``scalars.json``; nothing is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.training.state import State

TENSORS = "checkpoint.safetensors"
SCALARS = "scalars.json"
_MAX_SCALARS_BYTES = 64 << 20


def save_checkpoint(state: State, directory: Path) -> None:
    """Write a state into ``directory``. Raises OSError if that cannot be done, for example on a full disk."""
    try:
        save_file(state.tensors, directory / TENSORS)
    except SafetensorError as error:  # safetensors does not say it by an OSError
        raise OSError(f"cannot write {directory / TENSORS}: {error}") from error
    (directory / SCALARS).write_bytes(dumps({"step": state.step, "scalars": state.scalars}))


def load_checkpoint(directory: Path) -> State:
    """Read a state back, bit for bit. Raises EvidenceError("evidence_malformed").

    The caller has checked the files' digests, so a malformed file was committed as such.
    """
    try:
        tensors = load_file(directory / TENSORS, device="cpu")
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise EvidenceError("evidence_malformed", f"{TENSORS}: {error}", file=TENSORS) from error
    plain: Any = loads_strict((directory / SCALARS).read_bytes(), SCALARS, _MAX_SCALARS_BYTES)
    if not isinstance(plain, dict) or set(plain) != {"step", "scalars"} or type(plain["step"]) is not int:
        raise EvidenceError("evidence_malformed", f"{SCALARS} needs exactly a step and scalars", file=SCALARS)
    allowed = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8,
               torch.int8, torch.int16, torch.bool)  # fmt: skip
    for name, tensor in tensors.items():
        if tensor.dtype not in allowed:
            raise EvidenceError("evidence_malformed", f"{TENSORS}: {name} has dtype {tensor.dtype}", file=TENSORS)
    return State(plain["step"], tensors, plain["scalars"])
