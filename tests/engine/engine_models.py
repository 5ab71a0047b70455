"""Models of many kinds, written as users write them, and a program that replays them under another CPU profile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from engine_support import TinyJob, floats, mean_square, replay, whole
from torch import Tensor, nn

from vt_core.engine import mode
from vt_core.engine.rounding_log import StepLog, decode_step, encode_step

SEQUENCES = {"x": floats(32, 12, 24)}
IMAGES = {"x": floats(24, 3, 12, 12)}
TOKENS = {"x": whole(20, 32, 9), "y": whole(4, 32, seed=2)}


class Attention(nn.Module):
    """Separate projections with biases: the key's bias has a gradient that is zero but for rounding errors."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 12)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Softmax(nn.Module):
    """Attention by hand, without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 24**0.5, -1) @ self.v(x)


class Named(nn.Module):
    """Takes what it needs of a module that returns tuples or wants several inputs."""

    def __init__(self, inner: nn.Module, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.use = inner, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.inner, x)


class Cells(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 16)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return h


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ELU(), nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.PReLU(8),
        nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def cancelling() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ELU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.Flatten(),
        nn.Linear(1024, 4),
    )  # fmt: skip


def uneven(*shape: int) -> np.ndarray[Any, Any]:
    """Return values of very different magnitudes."""
    return np.asarray(floats(*shape) * np.exp(2 * floats(*shape, seed=9)))


def by_target(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    return lambda model, batch: loss(model(batch["x"]), batch["y"])


def ctc(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores = model(batch["x"]).log_softmax(-1).transpose(0, 1)
    n = scores.shape[1]
    targets = torch.arange(1, 4).expand(n, 3)
    return F.ctc_loss(scores, targets, torch.full((n,), 12), torch.full((n,), 3))


def cosine(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    a, b = model(batch["x"]).chunk(2, dim=1)
    return 1 - F.cosine_similarity(a, b, dim=1).mean() + F.pairwise_distance(a, b).mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def job_of(build: Callable[[], nn.Module], arrays: Any, objective: Any = mean_square, **more: Any) -> TinyJob:
    return TinyJob(build, arrays, objective, adam, batch_size=8, **more)


def _labels(kind: str) -> dict[str, Any]:
    return {"x": floats(32, 24), "y": floats(32, 4, seed=3) if kind == "real" else whole(2, 32, 4, seed=3) * 1.0}


def _dense() -> nn.Module:
    return nn.Sequential(
        nn.Linear(24, 40), nn.SiLU(), nn.LayerNorm(40), nn.Linear(40, 20), nn.Softplus(), nn.Linear(20, 4)
    )


JOBS: dict[str, Callable[[], TinyJob]] = {
    "transformer layer": lambda: job_of(
        lambda: nn.TransformerEncoderLayer(24, 4, 48, 0.1, batch_first=True), SEQUENCES),
    "transformer decoder": lambda: job_of(
        lambda: Named(
            nn.TransformerDecoderLayer(24, 4, 48, 0.1, "gelu", batch_first=True), lambda m, x: m(x, x.flip(1))
        ),
        SEQUENCES,
    ),
    "multi-head attention": lambda: job_of(
        lambda: Named(nn.MultiheadAttention(24, 3, dropout=0.1, batch_first=True), lambda m, x: m(x, x, x)[0]),
        SEQUENCES,
    ),
    "attention with biases": lambda: job_of(Attention, SEQUENCES),
    "softmax by hand": lambda: job_of(Softmax, SEQUENCES),
    "LSTM cells": lambda: job_of(lambda: Cells(_FirstOf(nn.LSTMCell(24, 16))), SEQUENCES),
    "GRU cells": lambda: job_of(lambda: Cells(nn.GRUCell(24, 16)), SEQUENCES),
    "LSTM": lambda: job_of(
        lambda: Named(
            nn.LSTM(24, 8, 2, dropout=0.1, bidirectional=True, batch_first=True), lambda m, x: m(x)[0][:, -1]
        ),
        SEQUENCES,
    ),
    "GRU": lambda: job_of(
        lambda: Named(nn.GRU(12, 8), lambda m, x: m(x.transpose(1, 2).transpose(0, 1))[1][0]), SEQUENCES
    ),
    "biased convolution before batch norm": lambda: job_of(convolutions, IMAGES),
    "cancelling bias": lambda: TinyJob(cancelling, {"x": uneven(32, 3, 12, 12)}, mean_square, adam, batch_size=16),
    "group and instance norm": lambda: job_of(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 6, 3), nn.InstanceNorm2d(6, affine=True),
            nn.Mish(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(96, 4),
        ),
        IMAGES,
    ),
    "transposed convolution": lambda: job_of(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(6, 3, 4, 2, 1), nn.Sigmoid()),
        IMAGES,
    ),
    "convolution 1d": lambda: job_of(
        lambda: nn.Sequential(nn.Conv1d(12, 16, 5, padding=2), nn.Hardswish(), nn.AdaptiveMaxPool1d(4), nn.Flatten(),
                              nn.Linear(64, 4)), SEQUENCES
    ),
    "convolution 3d": lambda: job_of(
        lambda: nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.LeakyReLU(0.1), nn.MaxPool3d(2), nn.Flatten(),
                              nn.Linear(32, 4)), {"x": floats(24, 1, 6, 6, 6)}
    ),
    "upsampling": lambda: job_of(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear"),
                              nn.Conv2d(4, 4, 3),
 nn.AdaptiveAvgPool2d((3, 5)), nn.PixelShuffle(2), nn.Upsample(7),
 nn.ReflectionPad2d(1)),
        IMAGES,
    ),
    "embedding with padding": lambda: job_of(
        lambda: nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Flatten(), nn.Linear(144, 4)), TOKENS,
        by_target(F.cross_entropy),
    ),
    "label smoothing": lambda: job_of(
        lambda: nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Flatten(), nn.Linear(144, 4)), TOKENS,
        by_target(lambda p, y: F.cross_entropy(p, y, label_smoothing=0.1)),
    ),
    "embedding bag": lambda: job_of(
        lambda: nn.Sequential(nn.EmbeddingBag(20, 16, mode="mean"), nn.Linear(16, 4)), TOKENS,
        by_target(lambda p, y: F.nll_loss(F.log_softmax(p, 1), y, weight=torch.tensor([1.0, 2.0, 0.5, 1.0]))),
    ),
    "binary cross entropy": lambda: job_of(_dense, _labels("binary"), by_target(nn.BCEWithLogitsLoss())),
    "smooth l1": lambda: job_of(_dense, _labels("real"), by_target(nn.SmoothL1Loss())),
    "huber": lambda: job_of(_dense, _labels("real"), by_target(nn.HuberLoss())),
    "l1": lambda: job_of(_dense, _labels("real"), by_target(nn.L1Loss())),
    "divergence": lambda: job_of(
        _dense, _labels("real"), by_target(lambda p, y: F.kl_div(p.log_softmax(1), y.softmax(1), reduction="batchmean"))
    ),
    "ctc": lambda: job_of(lambda: nn.Sequential(nn.Linear(24, 24), nn.GELU("tanh"), nn.Linear(24, 5)), SEQUENCES, ctc),
    "cosine similarity": lambda: job_of(_dense, _labels("real"), cosine),
    "root mean square norm": lambda: job_of(
        lambda: nn.Sequential(nn.Linear(24, 32), nn.RMSNorm(32), nn.GLU(), nn.Linear(16, 4)), _labels("real"), clip=0.5
    ),
    "weight norm": lambda: job_of(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(24, 16)), nn.SELU(), nn.Linear(16, 4)),
        _labels("real"),
    ),
    "bilinear": lambda: job_of(lambda: Named(nn.Bilinear(24, 24, 6), lambda m, x: m(x, x.flip(1))), _labels("real")),
    "einsum": lambda: job_of(
        lambda: Named(nn.Linear(24, 24), lambda m, x: torch.einsum("bld,bmd->blm", m(x), x).cumsum(1)), SEQUENCES
    ),
}  # fmt: skip


class _FirstOf(nn.Module):
    """An LSTM cell with its cell state kept beside it for the length of a sequence."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        h, c = self.cell(x, (h, torch.tanh(h)))
        return h + 0.1 * c


LOW = {"compute_dtype": "float32", "grid": "bfloat16"}
NO_LOG = "no log"  # replay with empty logs
NO_FLOORS = "no floors"  # without the lower bound of a result's scale (vt_core.engine.scale)


def make(name: str, low: bool = False) -> TinyJob:
    """Return a job; ``low`` computes in float32 and rounds to bfloat16, where profiles disagree often."""
    job = JOBS[name]()
    job.train = {**job.train, **(LOW if low else {})}
    return job


def without_log(record: bytes) -> bytes:
    log = decode_step(record)
    return encode_step(StepLog(log.step, {}, log.fingerprints))


@contextmanager
def no_floors() -> Iterator[None]:
    """Let the scale of a result be its largest magnitude and nothing else."""
    before = mode.scale_floors
    mode.scale_floors = lambda name, arguments, outputs: (0.0,) * outputs
    try:
        yield
    finally:
        mode.scale_floors = before


def main() -> None:
    """Replay what ``argv[1]`` holds and print what was found.

    The file holds a list of [name, low, option, logs by step as hex].
    """
    result: list[Any] = []
    for name, low, option, logs in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        records = {int(step): bytes.fromhex(record) for step, record in logs.items()}
        if option == NO_LOG:
            records = {step: without_log(record) for step, record in records.items()}
        with no_floors() if option == NO_FLOORS else nullcontext():
            found = replay(make(name, low), records)
        result.append(
            {
                "roots": found.roots,
                "traces": [found.traces[s].hex() for s in sorted(found.traces)],
                "findings": [str(f) for f in found.findings],
                "disagreements": found.disagreements,
            }
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
