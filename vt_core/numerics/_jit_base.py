"""What the compiled kernels have in common: how they are compiled, bits of numbers, and what describes a grid to them.

A *tame* block of elements has magnitudes below a limit that excludes NaN, infinities and overflow, and is handled in
the compute dtype; any other block takes slower loops in float64 (``_wild``). ``ints`` (int64 or int32, as wide as the
elements) describes the grid to tame loops and ``floats`` (the compute dtype) the tolerance, both indexed by the
constants below; ``plan`` fills them. ``params`` describes the grid in float64: ``(cap, max_value, smallest_binade,
shift)`` with ``cap = 2**(emax+1)``, ``smallest_binade`` the bits of ``2**emin``, and ``shift = (53 - precision) <<
52``.

Numba's cache notices changes of a function's own file only, but what a function calls is compiled into it. So the name
of each has a digest of all ``_jit*`` files here, and they may call one another.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

# Elements that a loop handles at once: they stay in the first-level cache with what it makes of them.
BLOCK = 512

# ``ints``: masks of the exponent and of all but the sign; bits of 2**emin; what turns the bits of 2**E into
# those of 1.5 * 2**(E + width of the significand - precision); what turns them into half a grid spacing; largest
# exponent bits of a tame block, -1 if none is; bits below the grid's last place, and what then leads to the place
# among the grid's values (``grid.lattice_index``) for magnitudes from the pattern that comes next.
EXPONENT, MAGNITUDE, SMALLEST, SHIFT, TO_HALF, LIMIT, DROPPED, OFFSET, NORMAL = range(9)
# ``floats``: rtol; atol * 2**e; the zero rule's factor; twice what bounds tau and the rounding of x - tau, for the
# whole tensor; the largest magnitude that is surely neither logged nor rounded to anything but zero; one over the
# smallest subnormal of the grid.
RTOL, ABSOLUTE, ZERO_RULE, REACH, SILENT, TO_SUBNORMAL = range(6)

SOURCES = hashlib.sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("_jit*.py")))
).hexdigest()[:16]
"""Names compiled functions in numba's cache."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function, error_model: Literal["python", "numpy"] = "python") -> _Function:
    """Compile on first call; with ``error_model`` "numpy" a division by zero gives an infinity and raises nothing.

    Cached on disk where numba finds a writable place, else for this process only.
    """
    function.__qualname__ += f"-{SOURCES}"
    try:
        return cast(_Function, numba.njit(function, nogil=True, cache=True, error_model=error_model))
    except RuntimeError:  # "no locator available": read-only installation and no cache directory
        return cast(_Function, numba.njit(function, nogil=True, error_model=error_model))


compiled_ieee = functools.partial(compiled, error_model="numpy")
"""``compiled`` with the division of IEEE 754."""


def _typed_pointer(context: Any, address: Any) -> Any:
    """Turn an integer into a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


def _typed_float(context: Any, bits: Any, like: Any) -> Any:
    """Return the float of the type of ``like`` whose pattern is ``bits`` (an integer, cut to that width)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.get_value_type(_WHOLE[like])
        bits = arguments[0]
        if bits.type.width > whole.width:
            bits = builder.trunc(bits, whole)
        return builder.bitcast(bits, context.get_value_type(like))

    return like(bits, like), generate


def _typed_bits(context: Any, value: Any) -> Any:
    """Return the pattern of a float as a signed integer of its width."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(_WHOLE[value]))

    return _WHOLE[value](value), generate


def _typed_larger(context: Any, a: Any, b: Any) -> Any:
    """Return the larger of two integers of one type, in that type (operators widen int32)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return a(a, b), generate


def _typed_truncated(context: Any, value: Any) -> Any:
    """Return a float cut to an integer of its width."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptosi(arguments[0], context.get_value_type(_WHOLE[value]))

    return _WHOLE[value](value), generate


def _typed_trailing_zeros(context: Any, word: Any) -> Any:
    """Return how many of the least significant bits of an integer are 0; all where it is 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return word(word), generate


def _same_width(operation: str) -> Any:
    """Return the binary operation on two integers of one type, in that type (operators widen int32)."""

    def typed(context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return a(a, b), generate

    return intrinsic(typed)


_WHOLE: dict[Any, Any] = {types.float64: types.int64, types.float32: types.int32}
pointer: Any = intrinsic(_typed_pointer)
float_of: Any = intrinsic(_typed_float)
bits_of: Any = intrinsic(_typed_bits)
larger: Any = intrinsic(_typed_larger)
truncated: Any = intrinsic(_typed_truncated)
trailing_zeros: Any = intrinsic(_typed_trailing_zeros)
both, either, exclusive = _same_width("and_"), _same_width("or_"), _same_width("xor")
plus, minus, shifted_right = _same_width("add"), _same_width("sub"), _same_width("ashr")
