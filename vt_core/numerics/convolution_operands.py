"""Operands of the products in ``convolution``: quantised, padded, in the order in which compiled loops read them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_convolution as _jit
from vt_core.numerics import _jit_im2col as _prepare
from vt_core.numerics._jit_units import HIGHEST, LIMIT, LOWEST
from vt_core.numerics.threads import share as on_threads
from vt_core.numerics.threads import worker_count

Array = np.ndarray[Any, Any]
Pair = tuple[int, int]

_SMALL = 1 << 15  # values that one thread prepares sooner than two
_KEPT = 1 << 24  # values of an array that is kept: 128 MiB


class _Room(threading.local):
    """Arrays of a thread that are used again: fresh ones cost a page fault every 4 KiB."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def take(self, name: str, size: int, dtype: Any = np.float64) -> Array:
        """Return ``size`` elements whose content is left over from earlier uses, at first zero."""
        found = self.arrays.get(name)
        if found is None or found.size < size:
            found = np.zeros(size, dtype)
            if size <= _KEPT:
                self.arrays[name] = found
        return found[:size]


room = _Room()


@dataclass(frozen=True)
class Images:
    """One operand as planes of memory: those of the tensor itself (``direct``), or padded copies, quantised.

    ``plane`` and ``row`` are strides, ``taps`` places relative to a position; shifts and limit are what is still to
    be applied, for each sample or each channel.
    """

    data: Array
    channels: int
    plane: int
    row: int
    taps: Array
    direct: bool
    shifts: Array
    limit: float


def pair(size: Sequence[int]) -> Pair:
    """Return the first two of these sizes."""
    return int(size[0]), int(size[1])


def flat(x: Tensor) -> Array:
    """Return the memory of a contiguous tensor, in one dimension."""
    values: Array = x.view(-1).numpy()
    return values


def threads() -> int:
    """Return how many threads share the work: as many as PyTorch may use, no more than there are processors."""
    return max(1, min(worker_count(), torch.get_num_threads()))


def share(work: Callable[[int, int], Any], count: int, values: int) -> list[Any]:
    """Call ``work(begin, end)`` for the pieces of ``count`` on all threads, on this one alone for few ``values``."""
    pieces = min(threads(), count) if values > _SMALL else 1
    bounds = [count * i // pieces for i in range(pieces + 1)]
    return on_threads(lambda i: work(bounds[i], bounds[i + 1]), pieces, pieces)


def shifts_of(x: Tensor, sizes: tuple[int, int, int], bits: int | None) -> tuple[Array, float]:
    """Return the rounding constant of each of the B groups of ``x`` (A, B, C), and from where values are infinite."""
    a, b, c = sizes
    if bits is None:
        return np.zeros(b), float("inf")
    largest, values = np.empty(b, np.int64), flat(x)
    share(lambda begin, end: _prepare.largest_fields(values, largest, a, b, c, begin, end), b, x.numel())
    field = np.clip(largest >> 52, LOWEST, HIGHEST)
    return (((field + (53 - bits)) << 52) | (1 << 51)).view(np.float64), LIMIT


def images_of(
    name: str, x: Tensor, positions: Pair, offsets: tuple[Array, Array], step: Pair, shifts: Array, limit: float,
    group: Pair, whole: int = 1,
) -> Images:  # fmt: skip
    """Return ``x`` (N, C, H, W) such that tap t of position (i, j) is at ``step * (i, j) + offsets[t]``.

    Without padding and with one tap that is ``x`` itself if a plane is a multiple of ``whole`` elements; else a copy
    in the room ``name``, which the next call with that name overwrites. Plane p has the shift
    ``p // group[0] % group[1]``.
    """
    n, channels, height, width = x.shape
    down, right = offsets
    single = len(down) == 1 and down[0] == right[0] == 0 and step == (1, 1)
    if single and positions == (height, width) and height * width % whole == 0:
        return Images(flat(x), channels, height * width, width, np.zeros(1, np.int64), True, shifts, limit)
    first, first_column = int(down.min()), int(right.min())
    rows = (positions[0] - 1) * step[0] + int(down.max()) - first + 1
    columns = -(-((positions[1] - 1) * step[1] + int(right.max()) - first_column + 1) // step[1])
    plane = rows * step[1] * columns
    phase, behind = (right - first_column) % step[1], (right - first_column) // step[1]
    taps = ((down - first) * step[1] + phase) * columns + behind
    data, values = room.take(name, n * channels * plane + _jit.COLUMNS), flat(x)
    data[-_jit.COLUMNS :] = 0.0  # read, never used
    shape = (height, width, first, rows, first_column, step[1], columns)
    share(lambda p0, p1: _prepare.stage(values, data, shifts, group, limit, shape, p0, p1), n * channels, data.size)
    nothing = np.zeros(len(shifts))
    return Images(data, channels, plane, step[0] * step[1] * columns, taps, False, nothing, float("inf"))


def panels(weight: Tensor, shifts: Array, limit: float, swapped: bool, taps: Array) -> Array:
    """Return the weights (M, C, kernel) of the taps in panels of outputs, quantised.

    With ``swapped`` they come as (C, M, kernel).
    """
    outputs, channels = weight.shape[:2]
    strides = (weight[0].numel(), weight[0, 0].numel())
    if swapped:
        outputs, channels, strides = channels, outputs, (strides[1], strides[0])
    along = -(-outputs // _jit.ROWS)
    left = room.take("left", along * _jit.ROWS * channels * len(taps))
    values, sizes = flat(weight), (outputs, channels)
    share(
        lambda begin, end: _prepare.pack_weights(
            values, left, shifts, limit, strides, sizes, taps, _jit.ROWS, begin, end
        ),
        along,
        left.size,
    )
    return left


def rows_of(images: Images, size: int) -> tuple[Array, Array]:
    """Return place and rounding constant of each row (channel, tap), filled up to panels of ``size``."""
    places = (np.arange(images.channels)[:, None] * images.plane + images.taps).reshape(-1)
    shifts = np.repeat(images.shifts, len(images.taps))
    missing = -len(places) % size
    return np.pad(places, (0, missing), mode="edge"), np.pad(shifts, (0, missing), mode="edge")
