"""Runs convolutions on tensors that end where a page without access begins: reading past one ends the process."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import convolution as fast

PAGE = mmap.PAGESIZE
_KEPT: list[mmap.mmap] = []
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(*shape: int) -> Tensor:
    """Return random values (float64) whose last byte is the last before a page without access."""
    length = 8 * int(np.prod(shape))
    whole = -(-length // PAGE) * PAGE
    memory = mmap.mmap(-1, whole + PAGE)
    _KEPT.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(address + whole, PAGE, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    values = np.frombuffer(memory, np.float64, length // 8, whole - length).reshape(shape)
    values[...] = np.random.default_rng(0).standard_normal(shape)
    return torch.from_numpy(values)


def main(height: int, width: int) -> None:
    """Run each pass with and without padding, quantised and not, and compare the weight's gradient with PyTorch's."""
    x, grad = guarded(8, 64, height, width), guarded(8, 64, height, width)
    for kernel, padding in ((3, 1), (1, 0)):
        weight, settings = guarded(64, 64, kernel, kernel), fast.Settings((1, 1), (padding,) * 2, (1, 1))
        for bits in (None, 20):
            found = fast.convolution_backward_weight(grad, x, (kernel, kernel), settings, bits)
            fast.convolution_forward(x, weight, None, settings, bits)
            fast.convolution_backward_input(grad, weight, (height, width), settings, bits)
            if found is not None:
                expected = torch.ops.aten.convolution_backward.default(
                    grad, x, weight, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], 1, [False, True, False]
                )[1]
                assert (found - expected).abs().max() < 2e-3 * expected.abs().max()
                print("compared")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
