"""Run under a CPU profile: prints what ``check_device`` finds and digests of some operations as one JSON object."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.canonical import apply_form
from vt_core.engine.proof import check_device
from vt_core.engine.proof_cases import nasty

N = 4096


def arguments(dtype: type[np.floating[Any]]) -> list[Tensor]:
    rng = np.random.default_rng(3)
    usual = [torch.from_numpy(rng.standard_normal(N).astype(dtype)) for _ in range(3)]
    strange = [torch.from_numpy(nasty(rng, (4, N), dtype).ravel()[:N].copy()) for _ in range(3)]
    return [torch.cat([u, s]) for u, s in zip(usual, strange, strict=True)]


FORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., dict[str, Any]]]] = {
    "sqrt": (lambda a, b, c: torch.sqrt(a), lambda a, b, c: {"self": a}),
    "addcmul": (
        lambda a, b, c: torch.addcmul(a, b, c, value=0.3),
        lambda a, b, c: {"self": a, "tensor1": b, "tensor2": c, "value": 0.3},
    ),
    "lerp": (lambda a, b, c: torch.lerp(a, b, 0.1), lambda a, b, c: {"self": a, "end": b, "weight": 0.1}),
    "add": (lambda a, b, c: torch.add(a, b, alpha=0.3), lambda a, b, c: {"self": a, "other": b, "alpha": 0.3}),
}


def digest(x: Tensor) -> str:
    return hashlib.sha256(torch.where(x.isnan(), torch.nan, x).numpy().tobytes()).hexdigest()


def digests() -> dict[str, dict[str, str]]:
    result: dict[str, dict[str, str]] = {}
    for dtype in (np.float64, np.float32):
        given = arguments(dtype)
        for name, (kernel, form) in FORMS.items():
            value = apply_form(name, form(*given))
            assert value is not None
            result[f"{name} {dtype.__name__}"] = {"kernel": digest(kernel(*given)), "form": digest(value)}
    return result


if __name__ == "__main__":
    proof = check_device(torch.device("cpu"))
    print(json.dumps({"capability": torch.backends.cpu.get_cpu_capability(), "proof": proof, "digests": digests()}))
