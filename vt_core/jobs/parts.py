"""What the bundled jobs share: argument checks, digests, parameter groups, clipping, schedule, evaluation."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vt_core.errors import SpecError


def check_positive(**values: object) -> None:
    """Raise SpecError unless each value is an int of 1 or more."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise SpecError(f"{name} must be an integer of 1 or more, not {value!r}")


def check_not_negative(**values: object) -> None:
    """Raise SpecError unless each value is a finite number of 0 or more."""
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
            raise SpecError(f"{name} must be a finite number of 0 or more, not {value!r}")


def check_clip(clip_norm: float | None) -> None:
    """Raise SpecError unless ``clip_norm`` is None or a finite number above 0."""
    if clip_norm is not None:
        check_not_negative(clip_norm=clip_norm)
        if clip_norm == 0:
            raise SpecError("clip_norm must be above 0; use null for no clipping")


def check_fraction(**values: object) -> None:
    """Raise SpecError unless each value is a number in [0, 1)."""
    check_not_negative(**values)
    for name, value in values.items():
        if float(value) >= 1:  # type: ignore[arg-type]
            raise SpecError(f"{name} must be below 1, not {value!r}")


def array_digest(array: npt.NDArray[Any]) -> str:
    """Return the SHA-256 hex of dtype, shape and little-endian row-major bytes of ``array``."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{plain.dtype.str}{plain.shape}".encode())
    digest.update(plain.data)
    return digest.hexdigest()


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return optimizer groups that decay matrices and kernels, but no bias and no normalisation gain."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def clip_gradients(model: nn.Module, max_norm: float | None) -> None:
    """Scale all gradients so that their global 2-norm is at most ``max_norm``; None does nothing."""
    if max_norm is not None:
        # foreach kernels change the sequence of operations between devices.
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=False)


def check_schedule(warmup: int, total: int | None, names: tuple[str, str]) -> None:
    """Raise SpecError unless 0 <= warmup, and ``total`` is None or an int above ``warmup``."""
    check_not_negative(**{names[0]: warmup})
    if not isinstance(warmup, int):
        raise SpecError(f"{names[0]} must be an integer, not {warmup!r}")
    if total is not None:
        check_positive(**{names[1]: total})
        if total <= warmup:
            raise SpecError(f"{names[1]} ({total}) must be above {names[0]} ({warmup})")


def warmup_cosine(step: int, *, peak: float, warmup: int, total: int | None, floor: float = 0.0) -> float:
    """Return the learning rate of ``step`` (from 1): linear up to ``peak``, then half a cosine to ``floor``.

    ``peak`` is reached at step ``warmup`` and ``floor`` at step ``total``; later steps keep it. With
    ``total`` None the rate stays at ``peak``. The cosine (Loshchilov and Hutter, SGDR, arXiv 1608.03983) is
    written as a squared sine, (1 + cos(pi t)) / 2 = sin(pi (1 - t) / 2)^2: near the end the left form
    subtracts almost equal numbers, and the 1e-16 by which C libraries differ would show in the float32 that
    the engine rounds to.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, not {step}")
    if step <= warmup:
        return peak * (step / warmup)
    if total is None:
        return peak
    left = max(0, total - step) / (total - warmup)
    wave = math.sin(0.5 * math.pi * left)
    return floor + (peak - floor) * (wave * wave)


def like_model(model: nn.Module, array: npt.NDArray[Any]) -> torch.Tensor:
    """Return ``array`` as a tensor on the device of ``model``, and in its dtype if it is floating."""
    sample = next(model.parameters())
    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(sample.device)
    return tensor.to(sample.dtype) if tensor.is_floating_point() else tensor


def classify(model: nn.Module, images: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return ``accuracy`` (share in [0, 1]) and ``loss`` (nats) of a classifier in evaluation mode.

    ``images`` is (N, C, H, W), ``labels`` (N,). The model's training flag is put back afterwards, so nothing
    that the next step depends on changes.
    """
    was_training = model.training
    model.eval()
    right, loss = 0, 0.0
    try:
        with torch.no_grad():
            for first in range(0, len(labels), 256):
                part = slice(first, first + 256)
                scores = model(like_model(model, images[part]))
                target = like_model(model, labels[part])
                right += int((scores.argmax(dim=1) == target).sum())
                loss += float(nn.functional.cross_entropy(scores, target, reduction="sum"))
    finally:
        model.train(was_training)
    return {"accuracy": right / len(labels), "loss": loss / len(labels)}
