"""The smallest real job: 8 x 8 handwritten digits, a small convolution net with batch norm and dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vt_core.errors import SpecError
from vt_core.jobs import parts
from vt_core.training.job import Dataset, Job, Stream, module_files

_PIXEL_MEAN, _PIXEL_STD = 4.884165, 6.016788  # of all pixels, which run from 0 to 16
IMAGES = 1797


class DigitsDataset:
    """Images (N, 1, 8, 8) float32 in [0, 1] and labels (N,) int64, split into training and held-out parts."""

    def __init__(self, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], hold_out: int) -> None:
        """Hold out ``hold_out`` evenly spaced samples.

        Neighbours often come from one writer, so the spacing gives both parts the same mix of writers without
        a random draw. Raises SpecError unless 0 <= hold_out < N.
        """
        count = len(labels)
        if not 0 <= hold_out < count:
            raise SpecError(f"hold_out must be from 0 to {count - 1}, not {hold_out}")
        held = np.zeros(count, dtype=bool)
        if hold_out:
            held[np.arange(hold_out, dtype=np.int64) * count // hold_out] = True
        self.images, self.labels = images[~held], labels[~held]
        self.held_images, self.held_labels = images[held], labels[held]

    def __len__(self) -> int:
        """Return the number of training samples."""
        return len(self.labels)

    def batch(self, indices: npt.NDArray[np.int64], stream: Stream) -> dict[str, npt.NDArray[Any]]:
        """Return ``images`` (B, 1, 8, 8) float32 and ``labels`` (B,) int64; nothing is augmented."""
        return {"images": self.images[indices], "labels": self.labels[indices]}

    def manifest(self) -> dict[str, str]:
        """Return the digests of the training images and labels."""
        return {"images": parts.array_digest(self.images), "labels": parts.array_digest(self.labels)}


class DigitsNet(nn.Module):
    """Three 3 x 3 convolutions with batch norm, two max pools, dropout, one linear layer."""

    def __init__(self, width: int, dropout: float) -> None:
        """Build the net with ``width`` channels in the first layer and twice that in the others."""
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = (
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
        )
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(2 * width)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(2 * width * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores (B, 10) of ``images`` (B, 1, 8, 8)."""
        x = torch.relu(self.norm1(self.conv1(images)))  # (B, W, 8, 8)
        x = nn.functional.max_pool2d(torch.relu(self.norm2(self.conv2(x))), 2)  # (B, 2W, 4, 4)
        x = nn.functional.max_pool2d(torch.relu(self.norm3(self.conv3(x))), 2)  # (B, 2W, 2, 2)
        scores: torch.Tensor = self.linear(self.dropout(x.flatten(1)))
        return scores


class DigitsJob(Job):
    """Digits of scikit-learn (bundled with it: nothing is downloaded), SGD with momentum."""

    def __init__(
        self,
        batch_size: int = 64,
        width: int = 16,
        dropout: float = 0.1,
        lr: float = 0.05,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        hold_out: int = 297,
    ) -> None:
        """Check and keep the arguments; raises SpecError for one out of range."""
        parts.check_positive(batch_size=batch_size, width=width)
        parts.check_fraction(dropout=dropout, momentum=momentum)
        parts.check_not_negative(lr=lr, weight_decay=weight_decay, hold_out=hold_out)
        if not isinstance(hold_out, int) or hold_out > IMAGES - batch_size:
            raise SpecError(f"hold_out {hold_out!r} must be an integer that leaves a batch of the {IMAGES} images")
        self.batch_size, self.width, self.dropout = batch_size, width, float(dropout)
        self.lr, self.momentum, self.weight_decay = float(lr), float(momentum), float(weight_decay)
        self.hold_out = hold_out

    def build_model(self) -> nn.Module:
        """Return a new net with PyTorch's default (uniform) initialisation."""
        return DigitsNet(self.width, self.dropout)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum; only kernels and matrices decay."""
        groups = parts.decay_groups(model, self.weight_decay)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, foreach=False)

    def dataset(self, location: str | None) -> DigitsDataset:
        """Return the digits; ``location`` is not used, since scikit-learn carries the data."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        # Standardised, not k / 16: with dyadic pixels the first layer's sums would be exact ties by the thousand,
        # each of which needs a log entry.
        images = ((np.asarray(bunch.images) - _PIXEL_MEAN) / _PIXEL_STD).astype(np.float32)[:, None]
        return DigitsDataset(images, np.asarray(bunch.target).astype(np.int64), self.hold_out)

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean cross entropy (nats)."""
        return nn.functional.cross_entropy(model(batch["images"]), batch["labels"])

    def evaluate(self, model: nn.Module, dataset: Dataset) -> dict[str, float]:
        """Return ``accuracy`` and ``loss`` on the held-out digits."""
        if not isinstance(dataset, DigitsDataset) or not len(dataset.held_labels):
            return {}
        return parts.classify(model, dataset.held_images, dataset.held_labels)

    def sources(self) -> list[Path]:
        """Return this file and the shared parts."""
        return super().sources() + module_files(parts)
