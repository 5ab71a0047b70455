"""Compiled inner loops of the interval rule (CPU). ``kernels`` is the interface; ``reference`` says what and
why.

All compiled functions that call each other live in this one file: numba's cache notices changes of a
function's own file only. No fastmath anywhere: each line is one IEEE operation of the compute dtype, in the
order of the reference.

The loops over a block are free of branches and calls so that LLVM vectorises them. ``params`` describes the
grid: ``(cap, max_value, smallest_binade, shift)`` with ``cap = 2**(emax+1)``, ``smallest_binade`` the bits of
``2**emin`` as float64, and ``shift = (53 - precision) << 52``. ``rtol`` and ``absolute`` (``atol * 2**e``)
have the dtype of ``x``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

BLOCK = 256

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    """Compile on first call.

    Cached on disk where numba finds a writable place, else for this process only.
    """
    try:
        return cast(_Function, numba.njit(function, nogil=True, cache=True))
    except RuntimeError:  # "no locator available": read-only installation and no cache directory
        return cast(_Function, numba.njit(function, nogil=True))


_EXPONENT_BITS = 0x7FF0000000000000
_FACTOR = np.uint64(0x9E3779B1)
_LOW_32 = np.uint64(0xFFFFFFFF)


@_compiled
def _rnd(v: Any, params: Any) -> Any:
    """Round float64 onto the grid, for all grids below float64.

    Adding and subtracting ``c = 2**(E + 53 - precision)``, ``E`` the exponent of ``v`` (at least ``emin``),
    makes the adder round to the grid's last place, ties to even.
    """
    cap, max_value, smallest_binade, shift = params
    a = abs(v)
    a = cap if a > cap else a
    bits: Any = np.float64(a).view(np.int64)
    c = np.int64(max(bits & _EXPONENT_BITS, smallest_binade) + shift).view(np.float64)
    r = (a + c) - c
    r = np.inf if r > max_value else r
    return np.copysign(r, v)


@_compiled
def largest_bits(bits: Any, mask: Any, infinity: Any) -> Any:
    """Return the bits of the largest finite magnitude; ``bits`` is the integer view of the tensor."""
    best = mask - mask
    for i in range(bits.size):
        a = bits[i] & mask
        best = max(best, a if a < infinity else mask - mask)
    return best


@_compiled
def _is_flagged(v: Any, y: Any, rtol: Any, absolute: Any, zero_rule: Any, params: Any) -> Any:
    """Say whether the trainer logs ``v``, whose rounding is ``y``."""
    a = abs(v)
    tau = a * rtol + absolute
    low = _rnd(np.float64(v - tau), params)
    high = _rnd(np.float64(v + tau), params)
    silent_zero = (y == 0.0) & (a <= tau * zero_rule) & (np.float64(tau) <= params[1])
    return (low != high) & (not silent_zero) & (a < np.inf)


@_compiled
def _plain_block(x: Any, start: Any, stop: Any, params: Any, out: Any) -> None:
    for i in range(start, stop):
        v = np.float64(x[i])
        y = _rnd(v, params) + 0.0
        out[i - start] = y if v == v else np.nan


@_compiled
def _trainer_block(x: Any, start: Any, stop: Any, reach: Any, params: Any, out: Any) -> Any:
    """Round a block and count the elements that *may* have to be logged.

    ``reach = (r, t, zero)`` is such that ``a * r + t`` is no less than tau and the rounding of ``x - tau``, and
    ``zero`` no more than tau times the zero rule (-1 if that does not apply). An element that is logged has a
    rounding boundary within reach. With ``c`` as in ``_rnd`` the grid spacing is ``c * 2**-52``, so boundaries
    lie half a spacing from the rounded value, but a quarter below a power of two.
    """
    cap, max_value, smallest_binade, shift = params
    relative, absolute, zero = reach
    candidates = np.int64(0)
    for i in range(start, stop):
        v = np.float64(x[i])
        a = abs(v)
        b = cap if a > cap else a
        bits: Any = np.float64(b).view(np.int64)
        c = np.int64(max(bits & _EXPONENT_BITS, smallest_binade) + shift).view(np.float64)
        r = (b + c) - c
        to_half = c * 2.0**-53 - abs(b - r)
        quarter = c * 2.0**-54
        nearest = to_half if to_half < quarter else quarter
        within = a * relative + absolute >= nearest
        candidates += np.int64(within & ((r != 0.0) | (a > zero)) & (a < np.inf))
        r = np.inf if r > max_value else r
        y = np.copysign(r, v) + 0.0
        out[i - start] = y if v == v else np.nan
    return candidates


@_compiled
def _auditor_block(x: Any, start: Any, stop: Any, rtol: Any, absolute: Any, params: Any, out: Any) -> None:
    for i in range(start, stop):
        v = np.float64(x[i])
        a = abs(x[i])
        y = _rnd(v, params) + 0.0
        y = 0.0 if (a <= a * rtol + absolute) & (abs(y) < np.inf) else y
        out[i - start] = y if v == v else np.nan


@_compiled
def _fingerprint_block(y: Any, count: Any, index: Any) -> Any:
    """Fingerprint of ``count`` grid values whose first has the row-major index ``index``, modulo 2**64."""
    total = np.uint64(0)
    for i in range(count):
        bits = np.uint64(np.float32(y[i]).view(np.uint32))
        factor = (np.uint64(2) * np.uint64(index + i) + np.uint64(1)) * _FACTOR
        total += bits * (factor & _LOW_32)
    return total


@_compiled
def fingerprint_of(y: Any, start: Any, stop: Any) -> Any:
    """Fingerprint, modulo 2**64, of the grid values ``y[start:stop]``."""
    return _fingerprint_block(y[start:stop], stop - start, start)


@_compiled
def plain(x: Any, start: Any, stop: Any, params: Any, want_fingerprint: Any) -> Any:
    """Round ``x[start:stop]`` in place; return the fingerprint modulo 2**64."""
    out = np.empty(BLOCK, x.dtype)
    total = np.uint64(0)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        _plain_block(x, begin, end, params, out)
        x[begin:end] = out[: end - begin]
        if want_fingerprint:
            total += _fingerprint_block(out, end - begin, begin)
    return total


@_compiled
def auditor(x: Any, start: Any, stop: Any, rtol: Any, absolute: Any, params: Any, want_fingerprint: Any) -> Any:
    """Round ``x[start:stop]`` in place by the rule for unlogged elements.

    Return the fingerprint modulo 2**64.
    """
    out = np.empty(BLOCK, x.dtype)
    total = np.uint64(0)
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        _auditor_block(x, begin, end, rtol, absolute, params, out)
        x[begin:end] = out[: end - begin]
        if want_fingerprint:
            total += _fingerprint_block(out, end - begin, begin)
    return total


@_compiled
def trainer(
    x: Any,
    start: Any,
    stop: Any,
    rtol: Any,
    absolute: Any,
    zero_rule: Any,
    reach: Any,
    params: Any,
    want_fingerprint: Any,
    positions: Any,
    values: Any,
) -> Any:
    """Round ``x[start:stop]`` in place and collect what is logged.

    Positions (row-major) and values before rounding go to ``positions`` and ``values``. Returns how many, the
    index of the first element not handled (less than ``stop`` if the arrays, of at least one block, are
    full), and the fingerprint modulo 2**64.
    """
    out = np.empty(BLOCK, x.dtype)
    total = np.uint64(0)
    count = 0
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        candidates = _trainer_block(x, begin, end, reach, params, out)
        if candidates:
            if count + candidates > positions.size:
                return count, begin, total
            for i in range(begin, end):
                if _is_flagged(x[i], np.float64(out[i - begin]), rtol, absolute, zero_rule, params):
                    positions[count] = i
                    values[count] = x[i]
                    count += 1
        x[begin:end] = out[: end - begin]
        if want_fingerprint:
            total += _fingerprint_block(out, end - begin, begin)
    return count, stop, total


@_compiled
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


@_compiled
def describe(
    values: Any, rtol: Any, absolute: Any, hair: Any, params: Any, lattice: Any, parity: Any, is_full: Any
) -> None:
    """For each logged value, as it was before rounding: is the entry a full one, else which parity it has."""
    for j in range(values.size):
        v = values[j]
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        low = _index(_rnd(np.float64(v - wide), params), params[0], lattice)
        high = _index(_rnd(np.float64(v + wide), params), params[0], lattice)
        is_full[j] = high - low != 1
        parity[j] = 0 if is_full[j] else _index(_rnd(np.float64(v), params), params[0], lattice) & 1


@_compiled
def confirm(
    x: Any,
    parity: Any,
    is_full: Any,
    full_values: Any,
    rtol: Any,
    absolute: Any,
    hair: Any,
    params: Any,
    lattice: Any,
    own: Any,
) -> Any:
    """Say whether all entries are plausible and name the auditor's own roundings, which go to ``own``.

    ``x`` are the auditor's values. ``sparse.judge`` spells the rule out and decides where this returns False.
    """
    full = 0
    for j in range(x.size):
        v = x[j]
        tau = abs(v) * rtol + absolute
        wide = (tau + tau) * hair
        y = _rnd(np.float64(v), params) + 0.0
        if not abs(v) < np.inf or _rnd(np.float64(v - wide), params) == _rnd(np.float64(v + wide), params):
            return False
        if is_full[j]:
            claimed = np.float64(full_values[full])
            full += 1
            if claimed != y or (claimed == 0.0 and np.copysign(1.0, claimed) < 0.0):
                return False
        else:
            low = _index(_rnd(np.float64(v - tau), params), params[0], lattice)
            high = _index(_rnd(np.float64(v + tau), params), params[0], lattice)
            if high - low > 1 or _index(y, params[0], lattice) & 1 != parity[j]:
                return False
        own[j] = y
    return True


@_compiled
def square_root(x: Any, out: Any) -> None:
    """Elementwise square root by the processor's instruction, correctly rounded by IEEE 754."""
    for i in range(x.size):
        out[i] = np.sqrt(x[i])
