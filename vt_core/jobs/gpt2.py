"""GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019) in plain PyTorch.

Pre-norm blocks, learned positions, tied input and output embeddings, the tanh form of GELU, weights drawn
from N(0, 0.02) and residual projections from N(0, 0.02 / sqrt(2 * layers)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from vt_core.errors import SpecError


@dataclass(frozen=True)
class Gpt2Config:
    """Shape of a model; ``width`` is divisible by ``heads``."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    context: int


# The last four are the published models; the small ones are for tests, a laptop, a workstation.
SIZES: dict[str, Gpt2Config] = {
    "nano": Gpt2Config(layers=2, heads=2, width=48, vocabulary=256, context=128),
    "tiny": Gpt2Config(layers=4, heads=4, width=128, vocabulary=512, context=256),
    "small": Gpt2Config(layers=6, heads=6, width=384, vocabulary=4096, context=512),
    "124M": Gpt2Config(layers=12, heads=12, width=768, vocabulary=50257, context=1024),
    "355M": Gpt2Config(layers=24, heads=16, width=1024, vocabulary=50257, context=1024),
    "774M": Gpt2Config(layers=36, heads=20, width=1280, vocabulary=50257, context=1024),
    "1558M": Gpt2Config(layers=48, heads=25, width=1600, vocabulary=50257, context=1024),
}


def size_config(size: str) -> Gpt2Config:
    """Return the shape named ``size``; raises SpecError for an unknown name."""
    if size not in SIZES:
        raise SpecError(f"size must be one of {', '.join(SIZES)}, not {size!r}")
    return SIZES[size]


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, config: Gpt2Config, dropout: float) -> None:
        """Build the joint query-key-value projection and the output projection."""
        super().__init__()
        self.heads, self.dropout = config.heads, dropout
        self.attend = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, C) of ``x`` (B, T, C)."""
        batch, time, width = x.shape
        heads = self.attend(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, T, C / H)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        out: torch.Tensor = self.project(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """Attention and a feed-forward layer of four times the width, each after a layer norm and added back."""

    def __init__(self, config: Gpt2Config, dropout: float) -> None:
        """Build one block."""
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(config.width), Attention(config, dropout)
        self.norm2 = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.project = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, T, C) of ``x`` (B, T, C)."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        out: torch.Tensor = x + self.dropout(self.project(hidden))
        return out


class Gpt2(nn.Module):
    """The language model: token ids in, scores of the next token out."""

    def __init__(self, config: Gpt2Config, dropout: float) -> None:
        """Build and initialise the model."""
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(config, dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self._initialise()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (B, T, V) of ``tokens`` (B, T) int64; raises ValueError if T exceeds the context."""
        time = tokens.shape[1]
        if time > self.config.context:
            raise ValueError(f"{time} tokens do not fit a context of {self.config.context}")
        x = self.dropout(self.tokens(tokens) + self.positions.weight[:time])  # (B, T, C)
        for block in self.blocks:
            x = block(x)
        # The output layer is the embedding itself: no second name for one tensor in the state.
        return functional.linear(self.norm(x), self.tokens.weight)

    def _initialise(self) -> None:
        residual = 0.02 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim >= 2:
                nn.init.normal_(parameter, std=residual if name.endswith("project.weight") else 0.02)
