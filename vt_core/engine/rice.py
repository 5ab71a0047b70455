"""Golomb-Rice coding of many groups of ascending positions (compiled: ``numerics/_jit_rice.py``).

A group is coded by its first position and the gaps between the others minus one. Such a value ``g`` with parameter
``k`` is the quotient ``g >> k`` in unary (that many 0 bits, then a 1) and the low ``k`` bits. Each group has the
parameter that gives the fewest bits. Quotients and remainders of all groups go to two separate bit streams (least
significant bit first).
Rice, Plaunt 1971; the bounds on the best parameter: Kiely, "Selecting the Golomb parameter in Rice coding",
JPL IPN Progress Report 42-159, 2004.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vt_core.numerics import _jit_rice as _jit

IntArray = NDArray[np.int64]

MAX_PARAMETER = 40
POSITION_LIMIT = 1 << 40


def best_parameter(values: IntArray) -> int:
    """Return the best parameter for ``values`` (int64, at least one, 0 <= value < 2**40); the smallest of equals."""
    return int(_jit.best_parameter(values.view(np.uint64), values.sum(), MAX_PARAMETER))


def encode(groups: Sequence[IntArray]) -> tuple[list[int], bytes, bytes]:
    """Return the parameter of each group of positions (int64, at least one), the remainder and the unary stream.

    ValueError unless the positions of each ascend below 2**40.
    """
    total = sum(group.size for group in groups)
    # Room for the most that there can be. Of large arrays the system provides only what is written.
    remainders, unary = np.empty(total + 1, "<u8"), np.empty(5 * total // 64 + 2, "<u8")
    scratch = np.empty(max((group.size for group in groups), default=0), np.int64)
    state = np.zeros(6, np.uint64)
    parameters = []
    for group in groups:
        positions = np.ascontiguousarray(group, np.int64)
        parameters.append(int(_jit.put(positions, scratch, MAX_PARAMETER, POSITION_LIMIT, state, remainders, unary)))
        if parameters[-1] < 0:
            raise ValueError("positions are not ascending, or not below 2**40")
    low_bits, unary_bits = _jit.flush(state, remainders, unary)
    return parameters, _first_bytes(remainders, low_bits), _first_bytes(unary, unary_bits)


def remainder_bytes(counts: Sequence[int], parameters: Sequence[int]) -> int:
    """Return the length of the remainder stream of groups of so many positions."""
    return (sum(count * parameter for count, parameter in zip(counts, parameters, strict=True)) + 7) // 8


def decode(remainders: bytes, unary: bytes, counts: Sequence[int], parameters: Sequence[int]) -> list[IntArray]:
    """Return the groups of positions; ValueError if the streams do not hold exactly so many, ascending below 2**40.

    Needs memory in proportion to the sum of ``counts`` and the length of the streams. Padding bits are not checked:
    the caller encodes again and compares.
    """
    expected = remainder_bytes(counts, parameters)
    if len(remainders) != expected:
        raise ValueError(f"the remainder stream has {len(remainders)} bytes, not {expected}")
    low, ones, state = _words(remainders), _words(unary), np.zeros(6, np.uint64)
    groups = []
    for count, parameter in zip(counts, parameters, strict=True):
        group = np.empty(count, np.int64)
        if not _jit.take(group, parameter, POSITION_LIMIT, state, low, ones):
            raise ValueError("the unary stream is too short, or a position is not below 2**40")
        groups.append(group)
    if not _jit.is_empty(state, ones):
        raise ValueError("the unary stream holds more than there are entries")
    return groups


def _first_bytes(words: NDArray[np.uint64], bits: int) -> bytes:
    return words.view(np.uint8)[: (bits + 7) // 8].tobytes()


def _words(stream: bytes) -> NDArray[np.uint64]:
    """Return a stream as words, padded with zeros to at least one word more."""
    return np.frombuffer(stream + bytes(16 - len(stream) % 8), "<u8")
