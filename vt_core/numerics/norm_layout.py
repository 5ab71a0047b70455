"""How tensors fall into groups that share a mean and a variance, and where the groups lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.scratch import Scratch

scratch = Scratch()
"""Where the runs of a group are put together."""


@dataclass(frozen=True)
class Groups:
    """How a tensor falls into groups that share a mean and a variance.

    (samples, channels, places): a channel is a group. (rows, columns): a row is. (samples, groups, channels, places):
    several channels of one sample are.
    """

    shape: tuple[int, ...]

    @property
    def by_channel(self) -> bool:
        """Return whether a channel is a group: it has one weight."""
        return len(self.shape) == 3

    @property
    def dims(self) -> tuple[int, ...]:
        """Return the dimensions that a group runs over."""
        return {2: (1,), 3: (0, 2), 4: (2, 3)}[len(self.shape)]

    @property
    def weight_dims(self) -> tuple[int, ...]:
        """Return the dimensions that share a weight."""
        return {2: (0,), 3: (0, 2), 4: (0, 3)}[len(self.shape)]

    @cached_property
    def terms(self) -> int:
        """Return the number of elements of a group."""
        return prod(self.shape[d] for d in self.dims)

    @cached_property
    def weight_terms(self) -> int:
        """Return the number of elements that share a weight."""
        return prod(self.shape[d] for d in self.weight_dims)

    @cached_property
    def statistics_shape(self) -> tuple[int, ...]:
        """Return the shape of means and variances, for broadcasting."""
        return tuple(1 if d in self.dims else n for d, n in enumerate(self.shape))

    @cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """Return the shape of weight and bias, for broadcasting."""
        return tuple(1 if d in self.weight_dims else n for d, n in enumerate(self.shape))


class Runs(NamedTuple):
    """Where the groups of a contiguous tensor lie: ``count`` runs of ``length`` neighbours, and the steps between.

    The weight of run i of group j is number ``(j % period) * group_weight + i * run_weight``.
    """

    sizes: tuple[int, int, int, int]
    weights: tuple[int, int, int]


def of_parts(work: Callable[[Any, int, int], object], shape: tuple[int, ...], rows: int, size: int) -> Any:
    """Return what ``work`` puts into an int64 array for each part of the rows, stacked (in no particular order)."""
    found: list[Any] = []

    def part(begin: int, end: int) -> None:
        into = np.empty(shape, np.int64)
        work(into, begin, end)
        found.append(into)

    in_parts(part, rows, size)
    return found[0][None] if len(found) == 1 else np.stack(found)


def runs_of(groups: Groups) -> Runs:
    """Return where the groups of a contiguous tensor lie."""
    if groups.by_channel:
        samples, channels, length = groups.shape
        return Runs((samples, length, channels * length, length), (channels, 1, 0))
    _, count, width, length = groups.shape
    return Runs((width, length, length, width * length), (count, width, 1))


def together(sizes: tuple[int, int, int, int]) -> int:
    """Return how many neighbouring groups to copy at once: some 4 KiB side by side, and 256 KiB in all."""
    count, length, run_step, _ = sizes
    if run_step == length:
        return 1  # each lies together anyway
    return max(1, min(512 // max(1, length), (1 << 15) // max(1, count * length)))


def channels_last(x: Tensor) -> Tensor:
    """Return ``x`` as a contiguous (rows, channels) matrix."""
    return x.detach().movedim(1, -1).reshape(-1, x.shape[1]).contiguous()


def matrix_of(x: Tensor) -> Tensor | None:
    """Return the same if ``x`` lies so in memory, or has one place a sample; else None."""
    if prod(x.shape[2:]) == 1 or (not x.is_contiguous() and x.movedim(1, -1).is_contiguous()):
        return channels_last(x)
    return None


def shaped_like(matrix: Tensor, x: Tensor) -> Tensor:
    """Return a (rows, channels) matrix in the shape of ``x``."""
    if matrix.shape[0] == x.shape[0]:
        return matrix.view(x.shape)
    return matrix.view(x.movedim(1, -1).shape).movedim(-1, 1)


def flat(x: Tensor) -> Any:
    """Return the values as a flat array that shares memory with contiguous ones."""
    return x.detach().numpy().reshape(-1)


def vector(values: Tensor | None, groups: Groups, default: float) -> Any:
    """Return weight or bias as a flat array, of the default if there is none."""
    return np.full(prod(groups.weight_shape), default) if values is None else flat(values)
