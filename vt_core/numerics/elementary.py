"""Elementary functions with the same bits on every machine: fixed sequences of correctly rounded IEEE operations.

Tensors of any layout and device. On the CPU a compiled loop, else (or with VT_REFERENCE_KERNELS=1) the same operations
on whole tensors, in float64: float32 is widened, by the compiled loops value by value, and the result is cut. No
function of a library for mathematics is used: those differ between machines. The functions themselves, cores, are in
the files ``_jit_elementary*``, with the accuracy of each. What they promise relative to tiny results holds while the
exponentials and products in between are normal numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import _jit_elementary as _jit
from vt_core.numerics._jit_elementary_base import kernel
from vt_core.numerics._jit_quantise import in_parts
from vt_core.numerics.quantise import check_float64, memory_order, use_compiled

DTYPES = torch.float64, torch.float32
"""What exact functions take; they compute in float64."""

_loop = cache(kernel)


def dtype_of(*tensors: Tensor) -> torch.dtype:
    """Return the dtype of all tensors; raises PrecisionError unless there is one and it is in ``DTYPES``."""
    dtypes = {t.dtype for t in tensors}
    if len(dtypes) > 1 or not dtypes.issubset(DTYPES):
        raise PrecisionError(f"exact functions need tensors of float64 or of float32, not {sorted(map(str, dtypes))}")
    return tensors[0].dtype


def apply(
    core: Callable[..., Any], *tensors: Tensor, numbers: tuple[float, ...] = (), dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``core(*tensors, *numbers)`` element by element, for a core of one or two tensors.

    The tensors, all float64 or all float32, are broadcast. The core computes in float64; its values are cut to
    ``dtype``, float64 or float32, by default that of the tensors. The result is new and lies in memory as PyTorch's
    copy of the first tensor of its shape would. Raises PrecisionError for another dtype, or for several.
    """
    common = dtype_of(*tensors)
    kept = dtype or common
    given = [t.detach() for t in tensors]
    first = given[0]
    if any(t.shape != first.shape for t in given):
        shape = np.broadcast_shapes(*(t.shape for t in given))
        first = next((t for t in given if t.shape == shape), first.expand(shape))
        given = [t.expand(shape) for t in given]
    if not use_compiled(first):
        # Numbers as tensors: some devices divide by a number by multiplying with its reciprocal.
        values = [torch.full((), v, dtype=torch.float64, device=first.device) for v in numbers]
        found: Tensor = core(*(t.double() for t in given), *values)
        return found.to(kept)
    result = torch.empty_like(first, dtype=kept)
    order = memory_order(result)
    flat = [t.permute(order).contiguous().view(-1).numpy() for t in given]
    out, loop, plain = result.permute(order).view(-1).numpy(), _loop(core, len(flat)), tuple(map(float, numbers))
    in_parts(lambda i, j: loop(*(f[i:j] for f in flat), out[i:j], plain), out.size, out.size)
    return result


def exp(x: Tensor) -> Tensor:
    """Return exp(x), within 1 ulp, of a float64 tensor. Raises PrecisionError for another dtype."""
    check_float64(x)
    return apply(_jit.exp, x)


def log(x: Tensor) -> Tensor:
    """Return log(x), within 1 ulp, of a float64 tensor. Raises PrecisionError for another dtype."""
    check_float64(x)
    return apply(_jit.log, x)
