"""Golomb-Rice coding of many groups of small integers at once, in NumPy.

A value ``g`` with parameter ``k`` is the quotient ``g >> k`` in unary (that many 0 bits, then a 1) and the
low ``k`` bits. Each group has the parameter that gives the fewest bits. Quotients and remainders of all
groups go to two separate bit streams (least significant bit first), so that neither needs a loop over values.
Rice, Plaunt 1971; the bounds on the best parameter: Kiely, "Selecting the Golomb parameter in Rice coding",
JPL IPN Progress Report 42-159, 2004.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    least = np.full_like(counts, np.iinfo(np.int64).max)
    for offset in (-1, 0, 1, 2):
        parameter = np.clip(middle + offset, 0, MAX_PARAMETER)
        bits = counts * (parameter + 1) + np.add.reduceat(values >> np.repeat(parameter, counts), starts)
        better = bits < least
        best[better], least[better] = parameter[better], bits[better]
    return best


def encode(values: IntArray, widths: IntArray) -> tuple[bytes, bytes]:
    """Return the remainder stream and the unary stream; ``widths`` is the parameter of each value."""
    ends = np.cumsum((values >> widths) + 1)
    unary = np.zeros(int(ends[-1]) if values.size else 0, np.uint8)
    unary[ends - 1] = 1
    remainders = (values & ((1 << widths) - 1)).astype(np.uint64)
    return _pack(remainders, widths), np.packbits(unary, bitorder="little").tobytes()


def remainder_bytes(widths: IntArray) -> int:
    """Return the length of the remainder stream."""
    return (int(widths.sum()) + 7) // 8


def decode(remainders: bytes, unary: bytes, widths: IntArray) -> IntArray:
    """Return the values; ValueError if the streams do not hold exactly ``widths.size`` values below 2**40.

    Needs memory in proportion to ``widths.size`` and the length of the streams. Padding bits are not checked:
    the caller encodes again and compares.
    """
    ends = np.flatnonzero(np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little"))
    if ends.size != widths.size:
        raise ValueError(f"the unary stream holds {ends.size} values, not {widths.size}")
    quotients = np.diff(ends, prepend=-1) - 1
    if np.any(quotients >= VALUE_LIMIT >> widths):
        raise ValueError("a value is too large")
    return (quotients << widths) | _unpack(remainders, widths)


def _pack(values: NDArray[np.uint64], widths: IntArray) -> bytes:
    total = int(widths.sum())
    words = np.zeros(total // 64 + 2, np.uint64)
    if values.size:
        offsets = np.cumsum(widths) - widths
        word, shift = offsets >> 6, (offsets & 63).astype(np.uint64)
        starts = np.flatnonzero(np.diff(word, prepend=-1))
        words[word[starts]] = np.bitwise_or.reduceat(values << shift, starts)
        # At most one value crosses into each word, so plain indexing does not lose any.
        crossing = (offsets & 63) + widths > 64
        words[word[crossing] + 1] |= values[crossing] >> (np.uint64(64) - shift[crossing])
    return words.astype("<u8").tobytes()[: (total + 7) // 8]


def _unpack(data: bytes, widths: IntArray) -> IntArray:
    offsets = np.cumsum(widths) - widths
    padded = np.frombuffer(data + bytes(8), np.uint8)
    # Each value (at most 40 bits) lies in the eight bytes from the byte in which it starts.
    windows = np.lib.stride_tricks.sliding_window_view(padded, 8)[offsets >> 3]
    wide = np.ascontiguousarray(windows).view("<u8")[:, 0] >> (offsets & 7).astype(np.uint64)
    return wide.astype(np.int64) & ((1 << widths) - 1)
