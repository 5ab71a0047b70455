"""The target number formats ("grids") and their integer lattice.

A grid is a set of binary floating-point numbers with ``precision`` significant bits (the hidden one included)
and exponents from ``emin`` to ``emax``, with gradual underflow and infinities as in IEEE 754. Every grid here
is a subset of float32, so a grid value fits a float32 exactly.

Rounding onto a grid is to nearest, ties to even; -0 becomes +0 and every NaN becomes one canonical quiet NaN.
The functions here are the plain NumPy form, for few elements; ``reference`` and ``kernels`` round whole
tensors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vt_core.errors import SpecError

FloatArray = NDArray[np.floating[Any]]
DoubleArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_DROPPED_BITS = 16


@dataclass(frozen=True)
class Grid:
    """A target number format.

    ``precision`` counts the hidden bit, ``emin`` and ``emax`` are the exponents of the smallest normal number
    ``2**emin`` and of the largest binade, ``storage`` is the dtype that checkpoints use (it holds every grid
    value).
    """

    name: str
    precision: int
    emin: int
    emax: int
    storage: torch.dtype

    @staticmethod
    def parse(name: str) -> Grid:
        """Return the grid called ``name``: float32, bfloat16, float16, or float32-dD (low D bits dropped,
        1..16).

        Raises SpecError for any other name.
        """
        known = _NAMED.get(name)
        if known is not None:
            return known
        match = re.fullmatch(r"float32-d([1-9][0-9]?)", name)
        if match is None or int(match.group(1)) > MAX_DROPPED_BITS:
            raise SpecError(
                f"unknown grid {name!r}; use float32, bfloat16, float16, or float32-dD with D from 1 to "
                f"{MAX_DROPPED_BITS} (float32 without its low D bits)"
            )
        return Grid(name, 24 - int(match.group(1)), -126, 127, torch.float32)

    @property
    def quantum_exponent(self) -> int:
        """Exponent of the smallest subnormal, ``2**(emin - precision + 1)``."""
        return self.emin - self.precision + 1

    @property
    def max_value(self) -> float:
        """Largest finite grid value."""
        return float((2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax)


_NAMED = {
    "float32": Grid("float32", 24, -126, 127, torch.float32),
    "bfloat16": Grid("bfloat16", 8, -126, 127, torch.bfloat16),
    "float16": Grid("float16", 11, -14, 15, torch.float16),
}


def round_array(x: FloatArray, grid: Grid) -> DoubleArray:
    """Return ``x`` (any shape, float32 or float64) rounded onto ``grid``, as float64.

    Every step but the one ``rint`` is exact: scale so that the grid spacing at ``x`` is 1, round, scale back.
    """
    wide = np.asarray(x, dtype=np.float64)
    finite = np.isfinite(wide)
    safe = np.where(finite, wide, 0.0)
    # Beyond the last binade everything overflows; clipping keeps the exponents small, the result is the same.
    safe = np.clip(safe, -(2.0 ** (grid.emax + 1)), 2.0 ** (grid.emax + 1))
    _, exponent = np.frexp(safe)
    spacing = np.maximum(exponent - grid.precision, grid.quantum_exponent).astype(np.int32)
    rounded = np.ldexp(np.rint(np.ldexp(safe, -spacing)), spacing)
    rounded = np.where(np.abs(rounded) > grid.max_value, np.copysign(np.inf, safe), rounded)
    result: DoubleArray = np.where(finite, rounded + 0.0, np.where(np.isnan(wide), np.nan, wide))
    return result


def lattice_index(y: FloatArray, grid: Grid) -> IntArray:
    """Return the place of grid values ``y`` (no NaN) in the ordered list of all grid values; int64, 0 for
    zero.

    Neighbouring values have neighbouring indexes, through the subnormals, across zero and up to infinity,
    which follows the largest finite value. The parity of the index is the parity of the last place of the
    significand.
    """
    magnitude = np.minimum(np.abs(np.asarray(y, dtype=np.float64)), 2.0 ** (grid.emax + 1))
    _, exponent = np.frexp(magnitude)
    # frexp gives zero the exponent 0; its binade is that of the subnormals.
    binade = np.where(magnitude == 0, grid.emin, np.maximum(exponent.astype(np.int64) - 1, grid.emin))
    significand = np.ldexp(magnitude, (grid.precision - 1 - binade).astype(np.int32)).astype(np.int64)
    index = significand + (binade - grid.emin) * (1 << (grid.precision - 1))
    result: IntArray = np.where(np.asarray(y) < 0, -index, index)
    return result


def lattice_value(index: IntArray, grid: Grid) -> DoubleArray:
    """Return the value at ``index``, as float64; the inverse of :func:`lattice_index`.

    The index of infinity gives ``2**(emax + 1)``, the value that would stand there in a grid without
    overflow: the rounding boundary between the largest finite value and infinity is the middle of the two.
    """
    magnitude = np.abs(index)
    half = 1 << (grid.precision - 1)
    binade = np.maximum(magnitude // half - 1, 0)
    significand = magnitude - binade * half
    value = np.ldexp(significand.astype(np.float64), (binade + grid.quantum_exponent).astype(np.int32))
    result: DoubleArray = np.where(index < 0, -value, value)
    return result
