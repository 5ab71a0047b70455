"""Elementary functions with the same bits on every machine: fixed sequences of correctly rounded IEEE operations.

Float64 tensors of any layout and device. On the CPU a compiled loop, else (or with VT_REFERENCE_KERNELS=1) the same
operations on whole tensors. No function of a library for mathematics is used: those differ between machines. The
functions themselves, cores, are in the files ``_jit_elementary*``, with the accuracy of each. What they promise
relative to tiny results holds while the exponentials and products in between are normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_elementary as _jit
from vt_core.numerics._jit_elementary_base import kernel
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.quantise import check_float64, memory_order, use_compiled

_loop = cache(kernel)


def apply(core: Callable[..., Any], *tensors: Tensor, numbers: tuple[float, ...] = ()) -> Tensor:
    """Return ``core(*tensors, *numbers)`` element by element, for a core of one or two tensors.

    The tensors are broadcast. The result is new and lies in memory as the first tensor of its shape does. Raises
    PrecisionError for another dtype than float64.
    """
    check_float64(*tensors)
    given = [t.detach() for t in tensors]
    first = given[0]
    if any(t.shape != first.shape for t in given):
        shape = np.broadcast_shapes(*(t.shape for t in given))
        first = next((t for t in given if t.shape == shape), first.expand(shape))
        given = [t.expand(shape) for t in given]
    if not use_compiled(first):
        # Numbers as tensors: some devices divide by a number by multiplying with its reciprocal.
        values = [torch.full((), v, dtype=torch.float64, device=first.device) for v in numbers]
        found: Tensor = core(*given, *values)
        return found
    order = memory_order(first)
    moved = order != list(range(first.dim()))
    if moved:
        given = [t.permute(order) for t in given]
    flat = [t.contiguous().view(-1).numpy() for t in given]
    result = torch.empty(given[0].shape, dtype=torch.float64)
    out, loop, plain = result.view(-1).numpy(), _loop(core, len(flat)), tuple(map(float, numbers))
    in_parts(lambda i, j: loop(*(f[i:j] for f in flat), out[i:j], plain), out.size, out.size)
    return result.permute([order.index(d) for d in range(first.dim())]) if moved else result


def exp(x: Tensor) -> Tensor:
    """Return exp(x), within 1 ulp, of a float64 tensor. Raises PrecisionError for another dtype."""
    return apply(_jit.exp, x)


def log(x: Tensor) -> Tensor:
    """Return log(x), within 1 ulp, of a float64 tensor. Raises PrecisionError for another dtype."""
    return apply(_jit.log, x)
