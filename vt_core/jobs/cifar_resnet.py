"""ResNet on CIFAR-10: SGD with momentum, warm-up and cosine schedule, crop and flip."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from vt_core.errors import SpecError
from vt_core.jobs import cifar_data, parts, resnet
from vt_core.training.job import Dataset, Job, module_files


class CifarResNetJob(Job):
    """ResNet-18 or ResNet-50 on the binary version of CIFAR-10 in the folder ``location``."""

    def __init__(
        self,
        depth: int = 18,
        batch_size: int = 128,
        width: int = 64,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        warmup_steps: int = 0,
        cosine_steps: int | None = None,
        augment: bool = True,
        clip_norm: float | None = None,
    ) -> None:
        """Check and keep the arguments; raises SpecError for one out of range.

        ``cosine_steps`` is the step at which the rate reaches zero, warm-up included; None keeps it constant.
        """
        parts.check_positive(depth=depth, batch_size=batch_size, width=width)
        if depth not in (18, 50):
            raise SpecError(f"depth must be 18 or 50, not {depth!r}")
        parts.check_not_negative(lr=lr, weight_decay=weight_decay)
        parts.check_fraction(momentum=momentum)
        parts.check_schedule(warmup_steps, cosine_steps, ("warmup_steps", "cosine_steps"))
        if not isinstance(augment, bool):
            raise SpecError(f"augment must be true or false, not {augment!r}")
        parts.check_clip(clip_norm)
        self.depth, self.batch_size, self.width = depth, batch_size, width
        self.lr, self.momentum, self.weight_decay = float(lr), float(momentum), float(weight_decay)
        self.warmup_steps, self.cosine_steps = warmup_steps, cosine_steps
        self.augment, self.clip_norm = augment, clip_norm

    def build_model(self) -> nn.Module:
        """Return a new net."""
        return resnet.ResNet(self.depth, self.width, cifar_data.CLASSES)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with momentum; only kernels and matrices decay."""
        groups = parts.decay_groups(model, self.weight_decay)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, foreach=False)

    def dataset(self, location: str | None) -> cifar_data.CifarDataset:
        """Return the images in the folder ``location``; raises SpecError if absent, malformed or too few."""
        dataset = cifar_data.load_cifar(location, self.augment)
        if len(dataset) < self.batch_size:
            raise SpecError(f"CIFAR data: {len(dataset)} images do not fill a batch of {self.batch_size}")
        return dataset

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean cross entropy (nats)."""
        return nn.functional.cross_entropy(model(batch["images"]), batch["labels"])

    def learning_rate(self, step: int) -> float | None:
        """Return the rate of ``step`` (from 1) by warm-up and cosine."""
        return parts.warmup_cosine(step, peak=self.lr, warmup=self.warmup_steps, total=self.cosine_steps)

    def before_update(self, model: nn.Module) -> None:
        """Clip the global gradient norm, if asked for."""
        parts.clip_gradients(model, self.clip_norm)

    def evaluate(self, model: nn.Module, dataset: Dataset) -> dict[str, float]:
        """Return ``accuracy`` and ``loss`` on test_batch.bin, or nothing where it is absent."""
        held = dataset.held_out_images() if isinstance(dataset, cifar_data.CifarDataset) else None
        return {} if held is None else parts.classify(model, *held)

    def sources(self) -> list[Path]:
        """Return this file, the net, the data reader and the shared parts."""
        return super().sources() + module_files(resnet, cifar_data, parts)
