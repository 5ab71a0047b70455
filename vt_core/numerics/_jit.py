"""Compiled inner loops of the interval rule (CPU). ``kernels`` is the interface; ``reference`` says what and why.

No fastmath anywhere: each line is one IEEE operation of the compute dtype, in the order of the reference. Tensors come
as the address and number of their elements, which costs a call far less than an array does. Loops over a block have no
branches and run over slices, not computed indexes: only then does LLVM vectorise them. ``_jit_base`` explains tame and
wild blocks, ``ints``, ``floats`` and ``params``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from vt_core.numerics._jit_base import (
    ABSOLUTE,
    BLOCK,
    EXPONENT,
    LIMIT,
    MAGNITUDE,
    REACH,
    RTOL,
    SHIFT,
    SILENT,
    SMALLEST,
    TO_HALF,
    ZERO_RULE,
    bits_of,
    both,
    compiled,
    either,
    exclusive,
    float_of,
    larger,
    minus,
    plus,
    pointer,
    trailing_zeros,
)
from vt_core.numerics._jit_rounding import binade_of, rnd, tame

# Where something in a block may have to be logged, the place is narrowed down to parts.
PART = 64

_TO_BITS = np.uint64(0x0102040810204080)  # times eight bytes that are 0 or 1: their bits in the highest byte
_FACTOR = np.uint64(0x9E3779B1)
_LOW_32 = np.uint64(0xFFFFFFFF)


@compiled
def _largest_pattern(bits: Any, magnitude: Any) -> Any:
    best = exclusive(magnitude, magnitude)
    for i in range(bits.size):
        best = larger(best, both(bits[i], magnitude))
    return best


@compiled
def _largest_finite(bits: Any, magnitude: Any, infinity: Any) -> Any:
    best = none = exclusive(magnitude, magnitude)
    for i in range(bits.size):
        a = both(bits[i], magnitude)
        best = larger(best, a if a < infinity else none)
    return best


@compiled
def largest(address: Any, start: Any, stop: Any, ints: Any, floats: Any) -> Any:
    """Return the largest finite magnitude of the elements from ``start`` to ``stop``, 0 if there is none."""
    bits = carray(pointer(address), stop, ints.dtype)[start:stop]
    best = _largest_pattern(bits, ints[MAGNITUDE])
    if best >= ints[EXPONENT]:
        best = _largest_finite(bits, ints[MAGNITUDE], ints[EXPONENT])
    return float_of(best, floats[0])


@compiled
def _round_tame(x: Any, save: Any, ints: Any) -> Any:
    """Round a block that turns out to be tame iff the result, its largest exponent bits, is within the limit.

    The values before rounding go to ``save``.
    """
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    top = smallest
    for i in range(x.size):
        v = x[i]
        save[i] = v
        binade = binade_of(v, exponent, smallest)
        top = larger(top, binade)
        c = float_of(plus(binade, shift), v)
        x[i] = (v + c) - c
    return top


@compiled
def _audit_tame(x: Any, save: Any, ints: Any, floats: Any) -> Any:
    """Do as ``_round_tame`` by the rule for unlogged elements."""
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    rtol, absolute = floats[RTOL], floats[ABSOLUTE]
    zero = absolute - absolute
    top = smallest
    for i in range(x.size):
        v = x[i]
        save[i] = v
        binade = binade_of(v, exponent, smallest)
        top = larger(top, binade)
        c = float_of(plus(binade, shift), v)
        y = (v + c) - c
        a = abs(v)
        x[i] = y if a > a * rtol + absolute else zero
    return top


@compiled
def _excess(v: Any, y: Any, half: Any, reach: Any, silent: Any) -> Any:
    """Return a negative number if surely ``v``, rounded to ``y``, need not be logged.

    An element that is logged has a rounding boundary within tau. Boundaries lie half a grid spacing from the
    rounded value, but a quarter below a power of two: where a quarter is within tau, half is within twice that.
    Where ``half`` a spacing is no normal number, its pattern is garbage that is negative or zero: a candidate.
    """
    excess = (abs(v - y) - half) + reach
    return excess if abs(v) > silent else -reach


@compiled
def _train_tame(x: Any, save: Any, ints: Any, floats: Any) -> Any:
    """Do as ``_round_tame``; the second result is negative if surely nothing in the block must be logged."""
    exponent, smallest, shift, to_half = ints[EXPONENT], ints[SMALLEST], ints[SHIFT], ints[TO_HALF]
    reach, silent = floats[REACH], floats[SILENT]
    top = smallest
    signs = bits_of(-reach)
    for i in range(x.size):
        v = x[i]
        save[i] = v
        binade = binade_of(v, exponent, smallest)
        top = larger(top, binade)
        c = float_of(plus(binade, shift), v)
        y = (v + c) - c
        signs = both(signs, bits_of(_excess(v, y, float_of(minus(binade, to_half), v), reach, silent)))
        x[i] = y
    return top, signs


@compiled
def _signs_tame(x: Any, ints: Any, floats: Any) -> Any:
    """Return a negative number if surely nothing in a tame block must be logged."""
    exponent, smallest, shift, to_half = ints[EXPONENT], ints[SMALLEST], ints[SHIFT], ints[TO_HALF]
    reach, silent = floats[REACH], floats[SILENT]
    signs = bits_of(-reach)
    for i in range(x.size):
        v = x[i]
        binade = binade_of(v, exponent, smallest)
        c = float_of(plus(binade, shift), v)
        half = float_of(minus(binade, to_half), v)
        signs = both(signs, bits_of(_excess(v, (v + c) - c, half, reach, silent)))
    return signs


@compiled
def _flag_tame(x: Any, mask: Any, ints: Any, floats: Any) -> None:
    """Put into ``mask`` which elements of a tame block the trainer logs, as 0 or 1."""
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    for i in range(x.size):
        v = x[i]
        mask[i] = _is_logged(v, tame(v, exponent, smallest, shift), exponent, smallest, shift, floats)


@compiled
def _flag_and_round_tame(x: Any, save: Any, mask: Any, ints: Any, floats: Any) -> Any:
    """Do as ``_round_tame`` and ``_flag_tame`` in one pass."""
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    top = smallest
    for i in range(x.size):
        v = x[i]
        save[i] = v
        top = larger(top, both(bits_of(v), exponent))
        y = tame(v, exponent, smallest, shift)
        mask[i] = _is_logged(v, y, exponent, smallest, shift, floats)
        x[i] = y
    return top


@compiled
def _is_logged(v: Any, y: Any, exponent: Any, smallest: Any, shift: Any, floats: Any) -> Any:
    a = abs(v)
    tau = a * floats[RTOL] + floats[ABSOLUTE]
    straddles = tame(v - tau, exponent, smallest, shift) != tame(v + tau, exponent, smallest, shift)
    return straddles & ((y != 0.0) | (a > tau * floats[ZERO_RULE]))


@compiled
def _change_tame(x: Any, ints: Any) -> Any:
    """Return top, and zero iff rounding changes no bit if that is within the limit."""
    exponent, smallest, shift = ints[EXPONENT], ints[SMALLEST], ints[SHIFT]
    top = smallest
    difference = exclusive(smallest, smallest)
    for i in range(x.size):
        v = x[i]
        binade = binade_of(v, exponent, smallest)
        top = larger(top, binade)
        c = float_of(plus(binade, shift), v)
        difference = either(difference, exclusive(bits_of(v), bits_of((v + c) - c)))
    return top, difference


@compiled
def _round_wild(x: Any, params: Any) -> None:
    for i in range(x.size):
        y = rnd(np.float64(x[i]), params) + 0.0
        x[i] = y if x[i] == x[i] else np.nan


@compiled
def _audit_wild(x: Any, floats: Any, params: Any) -> None:
    rtol, absolute = floats[RTOL], floats[ABSOLUTE]
    for i in range(x.size):
        a = abs(x[i])
        y = rnd(np.float64(x[i]), params) + 0.0
        y = 0.0 if (a <= a * rtol + absolute) & (abs(y) < np.inf) else y
        x[i] = y if x[i] == x[i] else np.nan


@compiled
def _flag_wild(x: Any, mask: Any, floats: Any, params: Any) -> None:
    """Put into ``mask`` which elements of a block the trainer logs, as 0 or 1."""
    rtol, absolute, zero_rule = floats[RTOL], floats[ABSOLUTE], floats[ZERO_RULE]
    for i in range(x.size):
        v = x[i]
        a = abs(v)
        tau = a * rtol + absolute
        straddles = rnd(np.float64(v - tau), params) != rnd(np.float64(v + tau), params)
        silent_zero = (rnd(np.float64(v), params) == 0.0) & (a <= tau * zero_rule) & (tau <= params[1])
        mask[i] = straddles & (not silent_zero) & (a < np.inf)


@compiled
def _collect(x: Any, mask: Any, begin: Any, positions: Any, values: Any) -> Any:
    """Copy the elements of a block whose mask is 1; return how many.

    Eight bytes of the mask, which has room for a multiple of 64, become eight bits at a time.
    """
    mask[x.size : (x.size + 63) & ~63] = 0
    words = mask.view(np.uint64)
    count = 0
    for at in range(0, x.size, 64):
        bits = np.uint64(0)
        for k in range(8):
            bits |= ((words[(at >> 3) + k] * _TO_BITS) >> np.uint64(56)) << np.uint64(8 * k)
        while bits:
            i = at + np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            positions[count] = begin + i
            values[count] = x[i]
            count += 1
    return count


@compiled
def block_fingerprint(y: Any, start: Any) -> Any:
    """Fingerprint of grid values whose first has the row-major index ``start``, modulo 2**64."""
    total = np.uint64(0)
    factor = (np.uint64(2) * np.uint64(start) + np.uint64(1)) * _FACTOR
    step = np.uint64(2) * _FACTOR
    for i in range(y.size):
        total += np.uint64(np.float32(y[i]).view(np.uint32)) * (factor & _LOW_32)
        factor += step
    return total


@compiled
def fingerprint(address: Any, start: Any, stop: Any, floats: Any) -> Any:
    """Fingerprint, modulo 2**64, of the grid values from ``start`` to ``stop``."""
    return block_fingerprint(carray(pointer(address), stop, floats.dtype)[start:stop], start)


@compiled
def plain(address: Any, start: Any, stop: Any, ints: Any, floats: Any, params: Any, want_fingerprint: Any) -> Any:
    """Round the elements from ``start`` to ``stop`` in place; return the fingerprint modulo 2**64."""
    x = carray(pointer(address), stop, floats.dtype)
    save = np.empty(BLOCK, x.dtype)
    total = np.uint64(0)
    for begin in range(start, stop, BLOCK):
        block = x[begin : min(begin + BLOCK, stop)]
        if _round_tame(block, save[: block.size], ints) > ints[LIMIT]:
            block[:] = save[: block.size]
            _round_wild(block, params)
        if want_fingerprint:
            total += block_fingerprint(block, begin)
    return total


@compiled
def is_on_grid(address: Any, start: Any, stop: Any, ints: Any, floats: Any, params: Any) -> Any:
    """Say whether rounding the elements from ``start`` to ``stop`` changes no bit."""
    x = carray(pointer(address), stop, floats.dtype)
    out = np.empty(BLOCK, x.dtype)
    for begin in range(start, stop, BLOCK):
        block = x[begin : min(begin + BLOCK, stop)]
        top, difference = _change_tame(block, ints)
        if top > ints[LIMIT]:
            rounded = out[: block.size]
            rounded[:] = block
            _round_wild(rounded, params)
            difference = np.int64(np.any(rounded.view(ints.dtype) != block.view(ints.dtype)))
        if difference != 0:
            return False
    return True


@compiled
def auditor(address: Any, start: Any, stop: Any, ints: Any, floats: Any, params: Any, want_fingerprint: Any) -> Any:
    """Round the elements from ``start`` to ``stop`` in place by the rule for unlogged elements.

    Return the fingerprint modulo 2**64.
    """
    x = carray(pointer(address), stop, floats.dtype)
    save = np.empty(BLOCK, x.dtype)
    total = np.uint64(0)
    for begin in range(start, stop, BLOCK):
        block = x[begin : min(begin + BLOCK, stop)]
        if _audit_tame(block, save[: block.size], ints, floats) > ints[LIMIT]:
            block[:] = save[: block.size]
            _audit_wild(block, floats, params)
        if want_fingerprint:
            total += block_fingerprint(block, begin)
    return total


@compiled
def trainer(
    address: Any,
    start: Any,
    stop: Any,
    ints: Any,
    floats: Any,
    params: Any,
    want_fingerprint: Any,
    positions: Any,
    values: Any,
) -> Any:
    """Round the elements from ``start`` to ``stop`` in place and collect what is logged.

    Positions (row-major) and values before rounding go to ``positions`` and ``values``. Returns how many, the
    index of the first element not handled (less than ``stop`` if the arrays, which have room for more than a
    block, are full), and the fingerprint modulo 2**64.
    """
    x = carray(pointer(address), stop, floats.dtype)
    save, mask = np.empty(BLOCK, x.dtype), np.empty(BLOCK, np.uint8)
    total = np.uint64(0)
    count = 0
    dense = False  # where nearly every block has something to log, trying whether it has does not pay
    for begin in range(start, stop, BLOCK):
        block = x[begin : min(begin + BLOCK, stop)]
        if count + block.size >= positions.size:
            return count, begin, total
        saved = save[: block.size]
        before = count
        nothing = False
        if dense:
            top = _flag_and_round_tame(block, saved, mask, ints, floats)
        else:
            top, signs = _train_tame(block, saved, ints, floats)
            nothing = signs < 0
        is_tame = top <= ints[LIMIT]
        if not is_tame:
            block[:] = saved
            _flag_wild(block, mask, floats, params)
            _round_wild(block, params)
        if dense or not is_tame:
            count += _collect(saved, mask, begin, positions[count:], values[count:])
        elif not nothing:
            for at in range(0, block.size, PART):
                part = saved[at : at + PART]
                if _signs_tame(part, ints, floats) >= 0:
                    _flag_tame(part, mask, ints, floats)
                    count += _collect(part, mask, begin + at, positions[count:], values[count:])
        dense = (count - before) * 32 > block.size
        if want_fingerprint:
            total += block_fingerprint(block, begin)
    return count, stop, total


@compiled
def square_root(x: Any, out: Any) -> None:
    """Elementwise square root by the processor's instruction, correctly rounded by IEEE 754."""
    for i in range(x.size):
        out[i] = np.sqrt(x[i])
