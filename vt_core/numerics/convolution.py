"""Float64 convolutions of images on the CPU, and their two backward passes, as cache-blocked products.

PyTorch writes a matrix of all windows, sample by sample, and multiplies it: far below what the machine can do where
the windows are many or the images small. Here windows are packed block by block into the operand of a product whose
inner tile stays in registers (``_jit_convolution``), all samples together. With ``bits`` operands are quantised on the
way, bit for bit as ``quantise`` does it along the dimensions that the sum runs over.

Every output is the sum of its terms in one order, whatever the blocks and the number of threads. Functions return None
where they do not apply, where PyTorch is as fast, and where a result is not finite: then the device's own kernel
decides which elements are NaN.

Time over that of PyTorch's float64 kernels, ResNet-50 on 32 x 32 images, batch 32, two cores with AVX-512
(``python -m bench.bench_convolution``); the first number is without, the second with quantisation:

=============================  ============  ============  ============
convolution                    forward       input         weight
=============================  ============  ============  ============
3 x 3, 64 channels, 32 x 32    0.33 0.36     0.91 0.93     0.36 0.39
3 x 3, 128 channels, 16 x 16   0.48 0.48     0.80 0.81     0.51 0.49
3 x 3, 256 channels, 8 x 8     0.50 0.52     0.47 0.46     0.78 1.00
3 x 3, 512 channels, 4 x 4     0.28 0.26     0.18 0.20     0.84 0.59
1 x 1, 256 -> 1024, 8 x 8      0.57 0.54     0.43 0.48     left  1.30
1 x 1, 64 -> 256, 32 x 32      left  0.94    left  1.01    left  0.67
all of a training step         0.5  0.5
=============================  ============  ============  ============

"left": a 1 x 1 convolution with stride 1 is a product of matrices as they lie. Without quantisation it is left to
PyTorch for images of ``_LARGE`` places and for all weight gradients. Too small are fewer than ``_LEAST_PRODUCTS``
products, 64 positions (128 for a weight gradient, whose tiles are written for each block of positions), and outputs or
terms that fill less than 0.6 of their tiles; the gradient of few input channels is left too: 32, with a stride 128, or
256 for large images.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_convolution as _jit
from vt_core.numerics.convolution_operands import (
    Array,
    Images,
    Pair,
    flat,
    images_of,
    pair,
    panels,
    room,
    rows_of,
    share,
    shifts_of,
    threads,
)

_INFINITE = 0x7FF0000000000000
_TERMS = 512  # of a block, in channels and taps
_POSITIONS = 512  # of a block of a weight gradient's sum
_PANELS = 16  # of a block, at most
_RIGHT = 48 << 10  # values of a packed block: 384 KiB of the second-level cache
_LEAST_PRODUCTS = 1 << 24
_LARGE = 1024  # places of an image


@dataclass(frozen=True)
class Settings:
    """Stride, padding and dilation of a two-dimensional convolution in one group, each for rows and columns."""

    stride: Pair
    padding: Pair
    dilation: Pair

    def are_usual(self) -> bool:
        """Return whether PyTorch accepts them."""
        return min(self.padding) >= 0 and min(*self.stride, *self.dilation) > 0

    def output(self, image: Pair, kernel: Pair) -> Pair:
        """Return the size of the result for an image and a kernel of these sizes."""
        spans = [self.dilation[d] * (kernel[d] - 1) + 1 for d in (0, 1)]
        high, wide = ((image[d] + 2 * self.padding[d] - spans[d]) // self.stride[d] + 1 for d in (0, 1))
        return high, wide


def _layout(x: Tensor) -> torch.memory_format:
    nhwc = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if nhwc else torch.contiguous_format


def _applies(operands: Sequence[Tensor], settings: Settings, x: Sequence[int], weight: Sequence[int]) -> Pair | None:
    """Return the size of the result of ``x`` and ``weight`` (shapes), None where nothing here applies to it."""
    if os.environ.get("VT_REFERENCE_KERNELS") == "1" or not settings.are_usual() or len(x) != 4 or len(weight) != 4:
        return None
    if not all(t.dtype == torch.float64 and t.device.type == "cpu" and t.numel() for t in operands):
        return None
    size = settings.output(pair(x[2:]), pair(weight[2:]))
    return size if x[1] == weight[1] and min(size) > 0 and min(*x, *weight) > 0 else None


def _fills(count: int, size: int) -> bool:
    """Whether panels of ``size`` for ``count`` rows or columns are mostly not padding."""
    return count >= 0.6 * size * -(-count // size)


def _pays(outputs: int, terms: int, positions: int, fewest_outputs: int = 1, fewest_positions: int = 64) -> bool:
    """Say whether ``outputs x positions`` sums of ``terms`` products are enough work to be faster here."""
    enough = outputs >= fewest_outputs and positions >= fewest_positions
    return enough and outputs * terms * positions >= _LEAST_PRODUCTS


def _offsets(kernel: Pair, padding: Pair, dilation: Pair) -> tuple[Array, Array]:
    """Return the rows and columns of the taps, relative to the window's first position in the image."""
    down, right = np.divmod(np.arange(kernel[0] * kernel[1], dtype=np.int64), kernel[1])
    return down * dilation[0] - padding[0], right * dilation[1] - padding[1]


def _is_pointwise(kernel: Pair, settings: Settings) -> bool:
    return kernel == (1, 1) and settings.padding == (0, 0)


def _is_product(kernel: Pair, settings: Settings, bits: int | None) -> bool:
    """Whether it is nothing but a product of each sample with the weight, which PyTorch multiplies as it lies."""
    return bits is None and _is_pointwise(kernel, settings) and settings.stride == (1, 1)


def convolution_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings, bits: int | None = None
) -> Tensor | None:
    """Return the convolution (N, O, H', W') of ``x`` (N, C, H, W) with ``weight`` (O, C, kernel), or None.

    With ``bits`` each sample of ``x`` and each output channel of ``weight`` is quantised first; the bias is not.
    """
    size = _applies((x, weight) if bias is None else (x, weight, bias), settings, x.shape, weight.shape)
    if size is None or (bias is not None and bias.shape != (len(weight),)):
        return None
    samples, channels, outputs = len(x), x.shape[1], len(weight)
    kernel, places = pair(weight.shape[2:]), size[0] * size[1]
    if not _pays(outputs, weight[0].numel(), samples * places) or not _fills(outputs, _jit.ROWS):
        return None
    if places >= _LARGE and _is_product(kernel, settings, bits):
        return None
    source, weights = x.detach().contiguous(), weight.detach().contiguous()
    shifts, limit = shifts_of(source, (1, samples, source[0].numel()), bits)
    weight_shifts, weight_limit = shifts_of(weights, (1, outputs, weights[0].numel()), bits)
    step = settings.stride
    if _is_pointwise(kernel, settings) and step != (1, 1):
        source, step = source[:, :, :: step[0], :: step[1]].contiguous(), (1, 1)
    offsets = _offsets(kernel, settings.padding, settings.dilation)
    images = images_of("images", source, size, offsets, step, shifts, limit, (channels, samples))
    left = panels(weights, weight_shifts, weight_limit, False, np.arange(kernel[0] * kernel[1]))
    out = torch.empty((samples, outputs, *size), dtype=torch.float64)
    added = np.zeros(outputs) if bias is None else flat(bias.detach().contiguous())
    strides = (outputs * places, places, size[1], 1, 0)
    largest = _gather(images, images.taps, left, flat(out), outputs, added, strides, (samples, *size))
    return None if largest == _INFINITE else out.contiguous(memory_format=_layout(x))


def convolution_backward_input(
    grad: Tensor, weight: Tensor, image: Pair, settings: Settings, bits: int | None = None
) -> Tensor | None:
    """Return the gradient (N, C, H, W) of the input from ``grad`` (N, O, H', W'), or None; ``image`` is (H, W).

    It is a convolution of ``grad`` for each of the stride's places, with those taps of the kernel that meet there.
    With ``bits`` each sample of ``grad`` and each input channel of ``weight`` is quantised first.
    """
    samples, outputs, channels = len(grad), len(weight), weight.shape[1]
    size = _applies((grad, weight), settings, (samples, channels, *image), weight.shape)
    if size is None or grad.shape != (samples, outputs, *size):
        return None
    kernel, step = pair(weight.shape[2:]), settings.stride
    places = image[0] * image[1]
    fewest = 32 if step == (1, 1) else 128 if places < _LARGE else 256
    if not _pays(channels, outputs * kernel[0] * kernel[1], samples * size[0] * size[1], fewest_outputs=fewest):
        return None
    if places >= _LARGE and _is_product(kernel, settings, bits):
        return None
    source, weights = grad.detach().contiguous(), weight.detach().contiguous()
    shifts, limit = shifts_of(source, (1, samples, source[0].numel()), bits)
    weight_shifts, weight_limit = shifts_of(weights, (outputs, channels, kernel[0] * kernel[1]), bits)
    down, right = _offsets(kernel, settings.padding, settings.dilation)
    # Tap t of output place p meets the input at step * p + offset: for input i that is place (i - offset) / step.
    meets = [(i, j) for i in range(min(step[0], image[0])) for j in range(min(step[1], image[1]))]
    taps = {(i, j): np.flatnonzero(((i - down) % step[0] == 0) & ((j - right) % step[1] == 0)) for i, j in meets}
    used = [(p, t) for p, found in taps.items() for t in found]
    rows = np.array([(p[0] - down[t]) // step[0] for p, t in used], np.int64)
    columns = np.array([(p[1] - right[t]) // step[1] for p, t in used], np.int64)
    out = torch.empty((samples, channels, *image), dtype=torch.float64)
    if not used or any(not len(found) for found in taps.values()):
        out.zero_()
    if not used:
        return out.contiguous(memory_format=_layout(grad))
    most = (-(-image[0] // step[0]), -(-image[1] // step[1]))
    images = images_of("images", source, most, (rows, columns), (1, 1), shifts, limit, (outputs, samples))
    zero, largest = np.zeros(channels), 0
    for place, found in taps.items():
        if not len(found):
            continue
        left = panels(weights, weight_shifts, weight_limit, True, found)
        here = np.array([images.taps[k] for k, (p, _) in enumerate(used) if p == place], np.int64)
        strides = (channels * places, places, step[0] * image[1], step[1], place[0] * image[1] + place[1])
        covered = (samples, -(-(image[0] - place[0]) // step[0]), -(-(image[1] - place[1]) // step[1]))
        largest = max(largest, _gather(images, here, left, flat(out), channels, zero, strides, covered))
    return None if largest == _INFINITE else out.contiguous(memory_format=_layout(grad))


def convolution_backward_weight(
    grad: Tensor, x: Tensor, kernel: Pair, settings: Settings, bits: int | None = None
) -> Tensor | None:
    """Return the gradient (O, C, kernel) of the weight from ``grad`` (N, O, H', W') and ``x`` (N, C, H, W), or None.

    With ``bits`` each channel of ``grad`` and of ``x`` is quantised first.
    """
    samples, channels, outputs = len(x), x.shape[1], grad.shape[1]
    size = _applies((grad, x), settings, x.shape, (outputs, channels, *kernel))
    if size is None or grad.shape != (samples, outputs, *size):
        return None
    positions, terms = samples * size[0] * size[1], channels * kernel[0] * kernel[1]
    if not _pays(outputs, terms, positions, fewest_positions=128) or _is_product(kernel, settings, bits):
        return None
    if not _fills(outputs, _jit.ROWS) or not _fills(terms, _jit.COLUMNS):
        return None
    image = pair(x.shape[2:])
    source, gradient = x.detach().contiguous(), grad.detach().contiguous()
    x_shifts, limit = shifts_of(source, (samples, channels, image[0] * image[1]), bits)
    shifts, grad_limit = shifts_of(gradient, (samples, outputs, size[0] * size[1]), bits)
    step = settings.stride
    if _is_pointwise(kernel, settings) and step != (1, 1):
        source, step = source[:, :, :: step[0], :: step[1]].contiguous(), (1, 1)
    offsets = _offsets(kernel, settings.padding, settings.dilation)
    images = images_of("images", source, size, offsets, step, x_shifts, limit, (1, channels), _jit.WIDTH)
    none = np.zeros(1, np.int64)
    whole = _jit.WIDTH if images.direct else _jit.WIDTH * size[0]  # a run is then a row, and is read in whole vectors
    grads = images_of("gradient", gradient, size, (none, none), (1, 1), shifts, grad_limit, (1, outputs), whole)
    out = torch.empty((outputs, channels, *kernel), dtype=torch.float64)
    largest = _weight_gradient(images, grads, (samples, *size), flat(out), outputs)
    return None if largest == _INFINITE else out


def _gather(
    images: Images, taps: Array, left: Array, out: Array, outputs: int, bias: Array, out_strides: tuple[int, ...],
    positions: tuple[int, int, int],
) -> int:  # fmt: skip
    """Run ``gather`` over all cores for ``positions`` (samples, rows, columns); return the largest exponent.

    ``out_strides``: of sample, output, row and column, and the first place.
    """
    samples, rows, columns = positions
    blocks = -(-images.channels * len(taps) // _TERMS)
    block = -(-images.channels // min(blocks, images.channels))
    group = max(1, min(_PANELS, _RIGHT // (block * len(taps) * _jit.COLUMNS)))
    whole = images.direct and out_strides[2:4] == (columns, 1)  # a sample is one run
    width = rows * columns if whole else columns
    total = samples * rows * columns
    sizes = (
        images.channels, images.plane, block, total, rows * columns, width, outputs, out_strides[1], images.direct,
    )  # fmt: skip
    grid = (images.channels * images.plane, images.row, out_strides[0], *out_strides[2:])
    across, along = -(-total // _jit.COLUMNS), -(-outputs // _jit.ROWS)
    by_position = across >= min(along, 4 * threads())

    def work(begin: int, end: int) -> int:
        part = (begin, end, 0, along) if by_position else (0, across, begin, end)
        kept = 1 if block == images.channels else part[3] - part[2]
        right = room.take("right", group * block * len(taps) * _jit.COLUMNS + _jit.COLUMNS)
        tiles = room.take("tiles", kept * group * _jit.ROWS * _jit.COLUMNS)
        runs = room.take("runs", group * _jit.COLUMNS * 5, np.int64).reshape(-1, 5)
        found = _jit.gather(
            images.data, left, out, images.shifts, images.limit, bias, taps, sizes, grid, part, right, tiles, runs
        )
        return int(found)

    return max(map(int, share(work, across if by_position else along, outputs * total * len(taps))))


def _weight_gradient(images: Images, grads: Images, positions: tuple[int, int, int], out: Array, outputs: int) -> int:
    """Run ``weight_gradient`` over all cores for ``positions`` (samples, rows, columns); see ``_gather``."""
    samples, rows, columns = positions
    terms = images.channels * len(images.taps)
    along, across = -(-outputs // _jit.ROWS), -(-terms // _jit.COLUMNS)
    total = samples * rows * columns
    block = min(_POSITIONS, -(-total // _jit.WIDTH) * _jit.WIDTH)
    whole = images.direct and grads.direct
    width = rows * columns if whole else columns
    group = max(1, min(_PANELS, _RIGHT // (block * _jit.COLUMNS)))
    sizes = (total, block, rows * columns, width, outputs, terms)
    grid = (images.channels * images.plane, images.row, grads.channels * grads.plane, grads.row, 1, 0)
    grad_rows, grad_shifts = rows_of(grads, _jit.ROWS)
    source_rows, source_shifts = rows_of(images, _jit.COLUMNS)
    limits = (grads.limit, images.limit)
    by_output = outputs >= terms

    def work(begin: int, end: int) -> int:
        part = (begin, end, 0, across) if by_output else (0, along, begin, end)
        high, wide = part[1] - part[0], part[3] - part[2]
        spare = _jit.WIDTH * _jit.COLUMNS
        left = room.take("left part", high * block * _jit.ROWS + spare)
        right = room.take("right", group * block * _jit.COLUMNS + spare)
        tiles = room.take("tiles", high * wide * _jit.ROWS * _jit.COLUMNS)
        runs = room.take("runs", block * 5, np.int64).reshape(-1, 5)
        found = _jit.weight_gradient(
            grads.data, images.data, out, grad_rows, grad_shifts, source_rows, source_shifts, limits, sizes, grid,
            part, group, left, right, tiles, runs,
        )  # fmt: skip
        return int(found)

    return max(map(int, share(work, along if by_output else across, outputs * terms)))
