"""GPT-2 on any text: AdamW, warm-up and cosine schedule, gradient clipping."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from vt_core.errors import SpecError
from vt_core.jobs import gpt2, parts, text_data
from vt_core.training.job import Dataset, Job, module_files

EVALUATION_BLOCKS = 64


class Gpt2TextJob(Job):
    """A GPT-2 of a named size on the UTF-8 text file ``location``."""

    def __init__(
        self,
        size: str = "nano",
        block: int = 64,
        batch_size: int = 8,
        tokens: str = "byte",
        vocab_size: int | None = None,
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        warmup: int = 0,
        total_steps: int | None = None,
        dropout: float = 0.1,
        clip_norm: float | None = 1.0,
        hold_out: float = 0.1,
    ) -> None:
        """Check and keep the arguments; raises SpecError for one out of range.

        ``block`` is the number of tokens a sample, at most the size's context. ``vocab_size`` is the model's
        vocabulary (None: that of the size) and the upper limit of a BPE's. The rate rises for ``warmup``
        steps and falls to a tenth of ``lr`` at ``total_steps`` (None: stays). ``hold_out`` is the share of
        the tokens, taken from the end, that is never trained on.
        """
        config = gpt2.size_config(size)
        parts.check_positive(block=block, batch_size=batch_size)
        if vocab_size is not None:
            parts.check_positive(vocab_size=vocab_size)
            config = dataclasses.replace(config, vocabulary=vocab_size)
        if block > config.context:
            raise SpecError(f"block ({block}) exceeds the context of size {size!r} ({config.context})")
        if tokens not in ("byte", "bpe"):
            raise SpecError(f"tokens must be 'byte' or 'bpe', not {tokens!r}")
        if config.vocabulary < text_data.BYTE_VALUES:
            raise SpecError(f"vocab_size must be {text_data.BYTE_VALUES} or more, not {config.vocabulary}")
        if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
            raise SpecError(f"betas must be two numbers, not {betas!r}")
        parts.check_fraction(beta1=betas[0], beta2=betas[1], dropout=dropout, hold_out=hold_out)
        parts.check_not_negative(lr=lr, weight_decay=weight_decay)
        parts.check_schedule(warmup, total_steps, ("warmup", "total_steps"))
        parts.check_clip(clip_norm)
        self.config, self.block, self.batch_size, self.tokens = config, block, batch_size, tokens
        self.lr, self.weight_decay = float(lr), float(weight_decay)
        self.betas = (float(betas[0]), float(betas[1]))
        self.warmup, self.total_steps = warmup, total_steps
        self.dropout, self.clip_norm, self.hold_out = float(dropout), clip_norm, float(hold_out)

    def build_model(self) -> nn.Module:
        """Return a new model."""
        return gpt2.Gpt2(self.config, self.dropout)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return AdamW (arXiv 1711.05101); only matrices decay."""
        groups = parts.decay_groups(model, self.weight_decay)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, foreach=False, fused=False)

    def dataset(self, location: str | None) -> text_data.TextDataset:
        """Return the blocks of the file ``location``; raises SpecError if it is unusable or too short."""
        dataset = text_data.load_text(location, self.tokens, self.config.vocabulary, self.block, self.hold_out)
        if len(dataset) < self.batch_size:
            raise SpecError(
                f"text is too short: {len(dataset)} blocks of {self.block} tokens do not fill a batch of "
                f"{self.batch_size}"
            )
        return dataset

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean cross entropy of the next token (nats)."""
        scores = model(batch["tokens"])  # (B, T, V)
        return nn.functional.cross_entropy(scores.flatten(0, 1), batch["targets"].flatten())

    def learning_rate(self, step: int) -> float | None:
        """Return the rate of ``step`` (from 1) by warm-up and cosine."""
        return parts.warmup_cosine(step, peak=self.lr, warmup=self.warmup, total=self.total_steps, floor=0.1 * self.lr)

    def before_update(self, model: nn.Module) -> None:
        """Clip the global gradient norm."""
        parts.clip_gradients(model, self.clip_norm)

    def evaluate(self, model: nn.Module, dataset: Dataset) -> dict[str, float]:
        """Return ``loss`` (nats a token) and ``perplexity`` on at most 64 held-out blocks."""
        held = dataset.held_out_batch(EVALUATION_BLOCKS) if isinstance(dataset, text_data.TextDataset) else None
        if held is None:
            return {}
        was_training = model.training
        model.eval()
        total, count = 0.0, len(held["tokens"])
        try:
            with torch.no_grad():
                for first in range(0, count, self.batch_size):
                    part = {
                        name: parts.like_model(model, array[first : first + self.batch_size])
                        for name, array in held.items()
                    }
                    total += float(self.loss(model, part)) * len(part["tokens"])
        finally:
            model.train(was_training)
        return {"loss": total / count, "perplexity": math.exp(min(700.0, total / count))}

    def sources(self) -> list[Path]:
        """Return this file, the model, the text reader and the shared parts."""
        return super().sources() + module_files(gpt2, text_data, parts)
