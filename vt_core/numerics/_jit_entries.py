"""Compiled handling of log entries (CPU): what form they take, and whether an auditor agrees with all of them.

``sparse`` spells the rules out. See ``_jit`` for the conventions; the rounding functions are the same as there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from vt_core.numerics._jit_base import (
    ABSOLUTE,
    BLOCK,
    DROPPED,
    EXPONENT,
    LIMIT,
    NORMAL,
    OFFSET,
    RTOL,
    SHIFT,
    SMALLEST,
    TO_SUBNORMAL,
    bits_of,
    both,
    compiled,
    exclusive,
    larger,
    minus,
    pointer,
    shifted_right,
    truncated,
)
from vt_core.numerics._jit_rounding import rnd, tame

_FACTOR = np.uint64(0x9E3779B1)
_LOW_32 = np.uint64(0xFFFFFFFF)


@compiled
def _index(y: Any, cap: Any, lattice: Any) -> Any:
    """Place of the grid value ``y`` in the ordered list of all grid values (see ``grid.lattice_index``)."""
    dropped, offset, smallest_normal, inverse_quantum = lattice
    a = abs(y)
    a = cap if a > cap else a
    if a < smallest_normal:
        place = np.int64(a * inverse_quantum)
    else:
        place = (np.float64(a).view(np.int64) >> dropped) - offset
    return -place if y < 0.0 else place


@compiled
def _place(y: Any, ints: Any, to_subnormal: Any) -> Any:
    """Do as ``_index`` for what ``tame`` returns, in integers of the width of ``y``."""
    a = abs(y)
    pattern = bits_of(a)
    normal = minus(shifted_right(pattern, ints[DROPPED]), ints[OFFSET])
    place = truncated(a * to_subnormal) if pattern < ints[NORMAL] else normal
    return minus(exclusive(place, place), place) if y < 0.0 else place


@compiled
def _describe_tame(values: Any, ints: Any, floats: Any, hair: Any, parity: Any, is_full: Any, rounded: Any) -> Any:
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    rtol, absolute, to_subnormal = floats[RTOL], floats[ABSOLUTE], floats[TO_SUBNORMAL]
    top = smallest
    for j in range(values.size):
        v = values[j]
        top = larger(top, both(bits_of(v), exponent))
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        y = tame(v, exponent, smallest, shift)
        low = _place(tame(v - wide, exponent, smallest, shift), ints, to_subnormal)
        high = _place(tame(v + wide, exponent, smallest, shift), ints, to_subnormal)
        full = high - low != 1
        is_full[j] = full
        parity[j] = _place(y, ints, to_subnormal) & 1 & ~np.int64(full)
        rounded[j] = y
    return top


@compiled
def _describe_wild(
    values: Any, floats: Any, hair: Any, params: Any, lattice: Any, parity: Any, is_full: Any, rounded: Any
) -> None:
    rtol, absolute = floats[RTOL], floats[ABSOLUTE]
    for j in range(values.size):
        v = values[j]
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        y = rnd(np.float64(v), params) + 0.0
        low = _index(rnd(np.float64(v - wide), params), params[0], lattice)
        high = _index(rnd(np.float64(v + wide), params), params[0], lattice)
        full = high - low != 1
        is_full[j] = full
        parity[j] = _index(y, params[0], lattice) & 1 & ~np.int64(full)
        rounded[j] = y


@compiled
def describe(
    values: Any, ints: Any, floats: Any, hair: Any, params: Any, lattice: Any, parity: Any, is_full: Any, rounded: Any
) -> None:
    """For each logged value, as it was before rounding: is the entry a full one, else which parity it has.

    What the values are rounded to goes to ``rounded``.
    """
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        v, p, f, r = values[start:stop], parity[start:stop], is_full[start:stop], rounded[start:stop]
        if _describe_tame(v, ints, floats, hair, p, f, r) > ints[LIMIT]:
            _describe_wild(v, floats, hair, params, lattice, p, f, r)


@compiled
def in_order(positions: Any, size: Any) -> Any:
    """Say whether ``positions`` ascend within ``range(size)``."""
    if positions.size == 0:
        return True
    wrong = (positions[0] < 0) | (positions[-1] >= size)
    before = positions[:-1]
    after = positions[1:]
    for j in range(after.size):
        wrong |= after[j] <= before[j]
    return not wrong


@compiled
def _own_tame(x: Any, parity: Any, is_full: Any, ints: Any, floats: Any, hair: Any, own: Any, doubtful: Any) -> Any:
    """Put the roundings of ``x`` into ``own``; say which entries are implausible or name others; return top, how many.

    Full entries are taken to name the auditor's own rounding.
    """
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    rtol, absolute, to_subnormal = floats[RTOL], floats[ABSOLUTE], floats[TO_SUBNORMAL]
    top = smallest
    wrong = 0
    for j in range(x.size):
        v = x[j]
        top = larger(top, both(bits_of(v), exponent))
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        y = tame(v, exponent, smallest, shift)
        low = _place(tame(v - tau, exponent, smallest, shift), ints, to_subnormal)
        high = _place(tame(v + tau, exponent, smallest, shift), ints, to_subnormal)
        named = (high - low <= 1) & ((_place(y, ints, to_subnormal) & 1) == parity[j])
        straddles = tame(v - wide, exponent, smallest, shift) != tame(v + wide, exponent, smallest, shift)
        doubt = not (straddles & (named | is_full[j]))
        wrong += doubt
        doubtful[j] = doubt
        own[j] = y
    return top, wrong


@compiled
def _own_wild(
    x: Any, parity: Any, is_full: Any, floats: Any, hair: Any, params: Any, lattice: Any, own: Any, doubtful: Any
) -> Any:
    rtol, absolute = floats[RTOL], floats[ABSOLUTE]
    wrong = 0
    for j in range(x.size):
        v = x[j]
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        y = rnd(np.float64(v), params) + 0.0
        low = _index(rnd(np.float64(v - tau), params), params[0], lattice)
        high = _index(rnd(np.float64(v + tau), params), params[0], lattice)
        named = (high - low <= 1) & ((_index(y, params[0], lattice) & 1) == parity[j])
        straddles = rnd(np.float64(v - wide), params) != rnd(np.float64(v + wide), params)
        doubt = not (straddles & (abs(v) < np.inf) & (named | is_full[j]))
        wrong += doubt
        doubtful[j] = doubt
        own[j] = y
    return wrong


@compiled
def confirm(
    address: Any,
    positions: Any,
    parity: Any,
    full_index: Any,
    full_values: Any,
    start: Any,
    stop: Any,
    ints: Any,
    floats: Any,
    hair: Any,
    params: Any,
    lattice: Any,
    own: Any,
    doubtful: Any,
) -> Any:
    """Put the auditor's own roundings at the entries from ``start`` to ``stop`` into ``own``; return how many doubtful.

    Not ``doubtful`` are entries that are plausible and name that value. ``positions`` and ``full_index`` are in order.
    ``sparse.judge`` spells the rule out and decides over the others.
    """
    x = carray(pointer(address), positions[-1] + 1, floats.dtype)
    values, is_full = np.empty(BLOCK, x.dtype), np.empty(BLOCK, np.bool_)
    full = np.searchsorted(full_index, start)
    total = 0
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        _gather(x, positions[begin:end], values)
        is_full[:] = False
        first = full
        while full < full_index.size and full_index[full] < end:
            is_full[full_index[full] - begin] = True
            full += 1
        block, bits, mine, doubts = values[: end - begin], parity[begin:end], own[begin:end], doubtful[begin:end]
        top, wrong = _own_tame(block, bits, is_full, ints, floats, hair, mine, doubts)
        if top > ints[LIMIT]:
            wrong = _own_wild(block, bits, is_full, floats, hair, params, lattice, mine, doubts)
        total += wrong
        for k in range(first, full):
            claimed, at = full_values[k], full_index[k]
            other = claimed != own[at] or (claimed == 0.0 and np.copysign(1.0, claimed) < 0.0)
            if other and not doubtful[at]:
                doubtful[at] = True
                total += 1
    return total


@compiled
def _gather(x: Any, positions: Any, out: Any) -> None:
    for j in range(positions.size):
        out[j] = x[np.uint64(positions[j])]


@compiled
def gather(address: Any, positions: Any, out: Any) -> None:
    """Copy the elements at ``positions``, which are in order and not negative, to ``out``."""
    _gather(carray(pointer(address), positions[-1] + 1, out.dtype), positions, out)


@compiled
def _decided_tame(x: Any, used: Any, ints: Any, floats: Any, hair: Any, rest: Any) -> Any:
    """Do as ``decided`` for a block that turns out to be tame iff top, the first result, is within the limit."""
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    rtol, absolute, to_subnormal = floats[RTOL], floats[ABSOLUTE], floats[TO_SUBNORMAL]
    top = smallest
    decisions, flipped = 0, 0
    for j in range(x.size):
        v = x[j]
        top = larger(top, both(bits_of(v), exponent))
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        free = tame(v - tau, exponent, smallest, shift) != tame(v + tau, exponent, smallest, shift)
        low = _place(tame(v - wide, exponent, smallest, shift), ints, to_subnormal)
        high = _place(tame(v + wide, exponent, smallest, shift), ints, to_subnormal)
        decides = free & (high - low == 1)
        rest[j] = free & (not decides)
        decisions += decides
        flipped += decides & (used[j] != tame(v, exponent, smallest, shift))
    return top, decisions, flipped


@compiled
def decided(x: Any, used: Any, ints: Any, floats: Any, hair: Any, rest: Any) -> Any:
    """Return how many entries decide between two neighbouring grid values, and how many name the farther one.

    ``x`` are the auditor's values before rounding, ``used`` (the same dtype) those that were used. ``rest`` says which
    entries were left out: those that name one of more than two values, and blocks that are not tame.
    """
    decisions, flipped = 0, 0
    for start in range(0, x.size, BLOCK):
        stop = min(start + BLOCK, x.size)
        top, some, others = _decided_tame(x[start:stop], used[start:stop], ints, floats, hair, rest[start:stop])
        if top > ints[LIMIT]:
            rest[start:stop] = True
        else:
            decisions += some
            flipped += others
    return decisions, flipped


@compiled
def replace(address: Any, positions: Any, values: Any, floats: Any) -> Any:
    """Write grid values to ``positions``, which are in order; return by how much that changes the fingerprint."""
    x = carray(pointer(address), positions[-1] + 1, floats.dtype)
    change = np.uint64(0)
    for j in range(positions.size):
        at = np.uint64(positions[j])
        before, after = np.float32(x[at]).view(np.uint32), np.float32(values[j]).view(np.uint32)
        factor = (np.uint64(2) * at + np.uint64(1)) * _FACTOR
        change += (np.uint64(after) - np.uint64(before)) * (factor & _LOW_32)
        x[at] = values[j]
    return change
