"""Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), compiled: NumPy's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from vt_core.numerics._jit_base import compiled


def _typed_product(context: Any, a: Any, b: Any) -> Any:
    """Return the low and the high half of the product of two uint64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = context.get_value_type(types.uint64)
        wide = type(narrow)(128)
        product = builder.mul(*(builder.zext(x, wide) for x in arguments))
        halves = [builder.trunc(product, narrow), builder.trunc(builder.lshr(product, wide(64)), narrow)]
        return context.make_tuple(builder, signature.return_type, halves)

    both: Any = types.Tuple((types.uint64, types.uint64))  # type: ignore[no-untyped-call]
    return both(types.uint64, types.uint64), generate


_product: Any = intrinsic(_typed_product)
_FACTORS = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_BUMPS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)


@compiled
def fill(key0: Any, key1: Any, counter: Any, least: Any, out: Any) -> None:
    """Fill ``out`` (blocks of four) with the numbers after those of ``counter``: ten rounds of Philox 4x64 a block.

    With ``least``, a uint64, only whether they are at least that.
    """
    for i in range(out.shape[0]):
        counter += np.uint64(1)
        a, b, c, d = counter, np.uint64(0), np.uint64(0), np.uint64(0)
        k, m = key0, key1
        for _ in range(10):
            low0, high0 = _product(_FACTORS[0], a)
            low1, high1 = _product(_FACTORS[1], c)
            a, b, c, d = high1 ^ b ^ k, low1, high0 ^ d ^ m, low0
            k += _BUMPS[0]
            m += _BUMPS[1]
        if least is None:
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a, b, c, d
        else:
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = a >= least, b >= least, c >= least, d >= least
