"""Golomb-Rice coding of many groups of small integers at once (compiled: ``numerics/_jit_rice.py``).

A value ``g`` with parameter ``k`` is the quotient ``g >> k`` in unary (that many 0 bits, then a 1) and the
low ``k`` bits. Each group has the parameter that gives the fewest bits. Quotients and remainders of all
groups go to two separate bit streams (least significant bit first).
Rice, Plaunt 1971; the bounds on the best parameter: Kiely, "Selecting the Golomb parameter in Rice coding",
JPL IPN Progress Report 42-159, 2004.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vt_core.numerics import _jit_rice as _jit

IntArray = NDArray[np.int64]

MAX_PARAMETER = 40
VALUE_LIMIT = 1 << 40


def best_parameters(values: IntArray, counts: IntArray) -> IntArray:
    """Return the best parameter of each group of ``values`` (int64, 0 <= value < 2**40); the smallest of
    equals.

    ``counts`` are the group sizes, each at least 1; the groups follow each other in ``values``.
    """
    starts = np.cumsum(counts) - counts
    means = np.add.reduceat(values, starts) // counts
    # floor(log2(mean + 1)); frexp is exact, and the best parameter is at most 1 below and 2 above.
    middle = np.frexp((means + 1).astype(np.float64))[1].astype(np.int64) - 1
    best = np.zeros_like(counts)
    for group, (first, count, about) in enumerate(zip(starts.tolist(), counts.tolist(), middle.tolist(), strict=True)):
        tried = sorted({min(max(about + offset, 0), MAX_PARAMETER) for offset in (-1, 0, 1, 2)})
        best[group] = min(tried, key=lambda k: _jit.code_bits(values, first, first + count, k))
    return best


def encode(values: IntArray, widths: IntArray) -> tuple[bytes, bytes]:
    """Return the remainder stream and the unary stream; ``widths`` is the parameter of each value."""
    words = np.zeros(int(widths.sum()) // 64 + 2, "<u8")
    unary = np.zeros((int(_jit.unary_bits(values, widths)) + 7) // 8, np.uint8)
    _jit.encode(values, widths, words, unary)
    return words.tobytes()[: remainder_bytes(widths)], unary.tobytes()


def remainder_bytes(widths: IntArray) -> int:
    """Return the length of the remainder stream."""
    return (int(widths.sum()) + 7) // 8


def decode(remainders: bytes, unary: bytes, widths: IntArray) -> IntArray:
    """Return the values; ValueError if the streams do not hold exactly ``widths.size`` values below 2**40.

    Needs memory in proportion to ``widths.size`` and the length of the streams. Padding bits are not checked:
    the caller encodes again and compares.
    """
    if len(remainders) != remainder_bytes(widths):
        raise ValueError(f"the remainder stream has {len(remainders)} bytes, not {remainder_bytes(widths)}")
    values = np.empty(widths.size, np.int64)
    found = int(_jit.quotients(np.frombuffer(unary, np.uint8), values))
    if found != widths.size:
        raise ValueError(f"the unary stream holds {found} values, not {widths.size}")
    if not _jit.join(values, widths, np.frombuffer(remainders + bytes(8), np.uint8), VALUE_LIMIT):
        raise ValueError("a value is too large")
    return values
