"""Compiled loops of Golomb-Rice codes; see ``engine.rice``. Bits fill words (uint64) from the least significant one.

Groups of positions are coded one after the other; a ``state`` (uint64) carries the two streams from one to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vt_core.numerics._jit_base import compiled, trailing_zeros

# ``state`` of a writer or reader, for remainders and then for quotients: the word that is begun (of a reader: what is
# left of it), how many bits of it are filled (of a reader: how many of the stream are read) and the words before.
WORD, FILLED, WORDS, ONES, REACHED, ONES_WORDS = range(6)

_SIZE = np.int64(64)
_ONE = np.uint64(1)
_NONE = np.uint64(0)


@compiled
def best_parameter(values: Any, total: Any, most: Any) -> Any:
    """Return the parameter, at most ``most``, that codes ``values`` (uint64) with the fewest bits; of equals the least.

    ``total`` is their sum. The best is at most 1 below and 2 above floor(log2(mean + 1)).
    """
    about = np.int64(0)
    while (np.uint64(total) // np.uint64(values.size) + _ONE) >> np.uint64(about + 1):
        about += 1
    first = min(max(about - 1, 0), most)
    k0, k1, k2, k3 = np.uint64(first), np.uint64(first + 1), np.uint64(first + 2), np.uint64(first + 3)
    q0, q1, q2, q3 = _NONE, _NONE, _NONE, _NONE
    for i in range(values.size):
        v = values[i]
        q0, q1, q2, q3 = q0 + (v >> k0), q1 + (v >> k1), q2 + (v >> k2), q3 + (v >> k3)
    best, least = first, np.int64(q0)
    for k, quotients in ((first + 1, np.int64(q1)), (first + 2, np.int64(q2)), (first + 3, np.int64(q3))):
        bits = quotients + (k - first) * values.size
        if k <= most and bits < least:
            best, least = k, bits
    return best


@compiled
def _gaps(positions: Any, gaps: Any) -> Any:
    """Fill ``gaps``; return what is negative unless the positions ascend, and all their bits."""
    before, wrong, seen = np.int64(-1), np.int64(0), np.int64(0)
    for i in range(positions.size):
        position = positions[i]
        gap = position - before - 1
        gaps[i] = gap
        wrong |= gap
        seen |= position
        before = position
    return wrong, seen


@compiled
def _write(values: Any, parameter: Any, state: Any, remainders: Any, unary: Any) -> None:
    word, filled, at = state[WORD], np.int64(state[FILLED]), np.int64(state[WORDS])
    ones, reached, ones_at = state[ONES], np.int64(state[REACHED]), np.int64(state[ONES_WORDS])
    width, mask = np.int64(parameter), (_ONE << np.uint64(parameter)) - _ONE
    for i in range(values.size):
        value = values[i]
        remainder = value & mask
        word |= remainder << np.uint64(filled)
        filled += width
        if filled >= _SIZE:  # no parameter has as many bits as a word, so some of them are from before
            remainders[at] = word
            at += 1
            filled -= _SIZE
            word = remainder >> np.uint64(width - filled)
        reached += np.int64(value >> np.uint64(width))
        while reached >= _SIZE:
            unary[ones_at] = ones
            ones_at += 1
            ones = _NONE
            reached -= _SIZE
        ones |= _ONE << np.uint64(reached)
        reached += 1
    state[WORD], state[FILLED], state[WORDS] = word, np.uint64(filled), np.uint64(at)
    state[ONES], state[REACHED], state[ONES_WORDS] = ones, np.uint64(reached), np.uint64(ones_at)


@compiled
def put(positions: Any, gaps: Any, most: Any, limit: Any, state: Any, remainders: Any, unary: Any) -> Any:
    """Code a group; return its parameter, or -1 unless its positions ascend within ``range(limit)``, a power of two.

    ``gaps`` (int64) is room for as many. With the best parameter the quotients sum to at most four times the number.
    """
    wrong, seen = _gaps(positions, gaps)
    if wrong < 0 or seen < 0 or seen >= limit:
        return np.int64(-1)
    values = gaps[: positions.size].view(np.uint64)
    best = best_parameter(values, positions[-1] - (positions.size - 1), most)
    _write(values, best, state, remainders, unary)
    return best


@compiled
def flush(state: Any, remainders: Any, unary: Any) -> Any:
    """Write the words that are begun; return the lengths of both streams in bits."""
    remainders[state[WORDS]], unary[state[ONES_WORDS]] = state[WORD], state[ONES]
    size = np.uint64(64)
    return np.int64(state[WORDS] * size + state[FILLED]), np.int64(state[ONES_WORDS] * size + state[REACHED])


@compiled
def take(out: Any, parameter: Any, limit: Any, state: Any, remainders: Any, unary: Any) -> Any:
    """Fill ``out`` with the next group's positions; False unless there are as many below ``limit``, a power of two.

    The caller has checked that the remainders have as many bits, and one word more. ``state`` is all zero at first.
    """
    left, after, at = state[ONES], np.int64(state[REACHED]), np.int64(state[ONES_WORDS])
    bits = np.int64(state[FILLED])
    width, mask, most = np.int64(parameter), (_ONE << np.uint64(parameter)) - _ONE, limit >> np.int64(parameter)
    position = np.int64(-1)
    for i in range(out.size):
        while left == _NONE:
            if at == unary.size:
                return False
            left = unary[at]
            at += 1
        bit = _SIZE * (at - 1) + np.int64(trailing_zeros(left))
        left &= left - _ONE
        quotient = bit - after
        after = bit + 1
        word, shift = bits >> 6, np.uint64(bits & 63)
        # The shift is at most 63: first by 1, then by the rest, for by 64 it would do nothing.
        found = (remainders[word] >> shift) | ((remainders[word + 1] << _ONE) << (np.uint64(63) - shift))
        bits += width
        if quotient >= most:
            return False
        position += ((quotient << width) | np.int64(found & mask)) + 1  # both are below the limit: no wrap
        if position >= limit:
            return False
        out[i] = position
    state[ONES], state[REACHED], state[ONES_WORDS] = left, np.uint64(after), np.uint64(at)
    state[FILLED] = np.uint64(bits)
    return True


@compiled
def is_empty(state: Any, unary: Any) -> Any:
    """Say whether a reader has taken all that the unary stream holds."""
    rest = state[ONES]
    for i in range(np.int64(state[ONES_WORDS]), unary.size):
        rest |= unary[i]
    return rest == _NONE
