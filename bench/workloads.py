"""What is measured: models and batch sizes, on synthetic data made here or real data where it is given."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Workload:
    reference: str
    args: dict[str, Any]
    data: str  # "cifar", "text" or "none"
    train: dict[str, Any] = field(default_factory=dict)


WORKLOADS = {
    "digits": Workload("vt_core.jobs.digits:DigitsJob", {}, "none"),
    "resnet18": Workload(
        "vt_core.jobs.cifar_resnet:CifarResNetJob", {"depth": 18, "batch_size": 32, "lr": 0.02}, "cifar"
    ),
    "resnet50": Workload(
        # A rate at which so small a batch converges: at 0.1 the loss grows to 30 within five steps.
        "vt_core.jobs.cifar_resnet:CifarResNetJob",
        {"depth": 50, "batch_size": 32, "lr": 0.02},
        "cifar",
    ),
    "gpt2_nano": Workload(
        "vt_core.jobs.gpt2_text:Gpt2TextJob", {"size": "nano", "tokens": "byte", "batch_size": 8, "block": 64}, "text"
    ),
    "gpt2_124M": Workload(
        "vt_core.jobs.gpt2_text:Gpt2TextJob",
        {"size": "124M", "tokens": "byte", "batch_size": 8, "block": 64},
        "text",
    ),
}


def location(kind: str, folder: Path) -> str | None:
    """Return where the data lies: in the folder VT_BENCH_DATA names, else synthetic data made in ``folder``."""
    given = os.environ.get("VT_BENCH_DATA")
    if kind == "none":
        return None
    if given:
        return str(Path(given) / {"cifar": "cifar-10-subset", "text": "tiny-shakespeare.txt"}[kind])
    rng = np.random.Generator(np.random.PCG64(1))
    if kind == "text":
        path = folder / "text.txt"
        words = ["".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(2, 9))) for _ in range(500)]
        path.write_text(" ".join(rng.choice(words, 40_000)), encoding="utf-8")
        return str(path)
    path = folder / "cifar"
    path.mkdir(exist_ok=True)
    records = rng.integers(0, 256, (512, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    (path / "data_batch_1.bin").write_bytes(records.tobytes())
    (path / "test_batch.bin").write_bytes(records[:64].tobytes())
    return str(path)
