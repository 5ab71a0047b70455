"""Compiled loops of Golomb-Rice codes; see ``engine.rice``. Bits fill bytes from the least significant one."""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled


@compiled
def code_bits(values: Any, first: Any, last: Any, parameter: Any) -> Any:
    """Return the bits that the values from ``first`` to ``last`` take with a parameter."""
    total = np.int64(0)
    for i in range(first, last):
        total += values[i] >> parameter
    return total + (last - first) * (parameter + 1)


@compiled
def unary_bits(values: Any, widths: Any) -> Any:
    """Return the length of the unary stream in bits."""
    total = np.int64(0)
    for i in range(values.size):
        total += (values[i] >> widths[i]) + 1
    return total


@compiled
def encode(values: Any, widths: Any, words: Any, unary: Any) -> None:
    """Put remainders into ``words`` (uint64) and quotients into ``unary`` (uint8), which are zero and large enough."""
    at, bit = np.int64(0), np.int64(0)
    for i in range(values.size):
        value, width = values[i], widths[i]
        bit += value >> width
        unary[bit >> 3] |= np.uint8(1 << (bit & 7))
        bit += 1
        remainder = np.uint64(value & ((np.int64(1) << width) - 1))
        word, shift = at >> 6, at & 63
        words[word] |= remainder << np.uint64(shift)
        if shift + width > 64:
            words[word + 1] |= remainder >> np.uint64(64 - shift)
        at += width


@compiled
def quotients(unary: Any, out: Any) -> Any:
    """Fill ``out`` with the quotients; return how many ``unary`` holds, which may be more than there is room for."""
    count, gap = np.int64(0), np.int64(0)
    for i in range(unary.size):
        byte = unary[i]
        if byte == 0:
            gap += np.int64(8)
            continue
        for b in range(8):
            if (byte >> b) & 1:
                if count < out.size:
                    out[count] = gap
                count += 1
                gap = np.int64(0)
            else:
                gap += np.int64(1)
    return count


@compiled
def join(quotient: Any, widths: Any, data: Any, limit: Any) -> Any:
    """Put the remainders in ``data`` (with eight bytes more) beside the quotients; False for a value from ``limit`` on.

    The caller has checked that ``data`` has as many bits as ``widths`` say.
    """
    at = np.int64(0)
    for i in range(quotient.size):
        width = widths[i]
        if quotient[i] >= limit >> width:
            return False
        byte, shift, found = at >> 3, at & 7, np.uint64(0)
        for b in range(6):  # up to 40 bits from one of eight places
            found |= np.uint64(data[byte + b]) << np.uint64(8 * b)
        quotient[i] = (quotient[i] << width) | (np.int64(found >> np.uint64(shift)) & ((np.int64(1) << width) - 1))
        at += width
    return True
