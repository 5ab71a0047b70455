"""ResNet-18 and ResNet-50 (He et al., arXiv 1512.03385) for 32 x 32 images: a 3 x 3 stem and no max pool."""

from __future__ import annotations

import torch
from torch import nn

from vt_core.errors import SpecError


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        """Map ``channels`` to ``width`` channels, dividing the side by ``stride``."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, width, H / stride, W / stride) of ``x`` (B, channels, H, W)."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 (with the stride) and a 1 x 1 convolution, and a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        """Map ``channels`` to ``4 * width`` channels, dividing the side by ``stride``."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width * self.expansion)
        self.shortcut = _shortcut(channels, width * self.expansion, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (B, 4 * width, H / stride, W / stride) of ``x`` (B, channels, H, W)."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return torch.relu(y + self.shortcut(x))


_DEPTHS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, int, int, int]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNet(nn.Module):
    """A residual net of ``depth`` layers; ``width`` 64 is the standard one."""

    def __init__(self, depth: int, width: int = 64, classes: int = 10) -> None:
        """Build and initialise the net; raises SpecError for a depth other than 18 or 50."""
        super().__init__()
        if depth not in _DEPTHS:
            raise SpecError(f"depth must be one of {', '.join(map(str, _DEPTHS))}, not {depth!r}")
        block, counts = _DEPTHS[depth]
        self.conv = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        channels, blocks = width, []
        for stage, count in enumerate(counts):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(channels, width << stage, stride))
                channels = (width << stage) * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(channels, classes)
        self.apply(_initialise)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return class scores (B, classes) of ``images`` (B, 3, 32, 32)."""
        x = torch.relu(self.norm(self.conv(images)))  # (B, W, 32, 32)
        x = self.blocks(x)  # (B, C, 4, 4)
        scores: torch.Tensor = self.linear(x.mean(dim=(2, 3)))
        return scores


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))


def _initialise(module: nn.Module) -> None:
    """He initialisation by output fan (arXiv 1502.01852), in its uniform form.

    The variance is that of the normal form, but a uniform draw is exact arithmetic, so initialisation adds no
    entry to the rounding log.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_uniform_(module.weight, mode="fan_out", nonlinearity="relu")
