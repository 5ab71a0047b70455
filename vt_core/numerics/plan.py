"""What the compiled kernels need to know of a grid, a tolerance and a scale, in the form that they take."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vt_core.numerics._jit_base import LIMIT
from vt_core.numerics.grid import Grid
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.reference import ZERO_RULE
from vt_core.numerics.scale import HAIR, absolute_part, acceptable_scales, check_compute, scale_exponent

Params = tuple[float, float, int, int]
Lattice = tuple[int, int, float, float]

_MOST_PLANS = 512


class Plan:
    """The constants of one (grid, tolerance, compute dtype), computed once.

    ``ints`` and ``floats`` (see ``_jit_base``) are for functions that know no tolerance; :meth:`at` gives those for a
    scale.
    """

    def __init__(self, grid: Grid, tolerance: Tolerance | None, dtype: torch.dtype) -> None:
        check_compute(dtype, tolerance)
        self.grid, self.tolerance, self.dtype = grid, tolerance, dtype
        self.kind: type[np.floating[Any]] = np.float64 if dtype == torch.float64 else np.float32
        self.whole: type[np.signedinteger[Any]] = np.int64 if dtype == torch.float64 else np.int32
        self.hair = self.kind(HAIR)
        self.params, self.lattice = grid_params(grid), _lattice(grid)
        width, bias = (53, 1023) if dtype == torch.float64 else (24, 127)
        # Tame blocks need room for values within tau of theirs and for 1.5 * 2**(E + width - precision), which must
        # stay in its binade when a value is added.
        limit = min(grid.emax - 2, bias - 2 - (width - grid.precision)) if grid.precision <= width - 2 else None
        self._largest_tau = -1.0 if limit is None else 2.0**limit
        bits = width - 1
        own_subnormals = grid.emin == 1 - bias  # of the compute dtype: their patterns ascend like those of the others
        self.ints = np.array(
            [
                (2 * bias + 1) << bits,
                np.iinfo(self.whole).max,
                (grid.emin + bias) << bits,
                ((width - grid.precision) << bits) | (1 << (bits - 1)),
                grid.precision << bits,
                -1 if limit is None else (limit + bias) << bits,
                width - grid.precision,
                (grid.emin + bias - 1) << (grid.precision - 1),
                0 if own_subnormals else (grid.emin + bias) << bits,
            ],
            self.whole,
        )
        self._to_subnormal = 0.0 if own_subnormals else 2.0**-grid.quantum_exponent
        self.floats = np.zeros(6, self.kind)
        self._never_tame = self.ints.copy()
        self._never_tame[LIMIT] = -1
        self._sites: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        if tolerance is not None:
            # Well inside a binade the scale needs no closer look: neither side can see another one.
            margin = 32.0 * (tolerance.rtol + tolerance.atol)
            self._inside = 0.5 * (1.0 + margin), 1.0 - margin

    def scale(self, largest: float, floor: float, auditor: bool) -> tuple[int, range | None]:
        """Return the scale exponent, and those that the other side may see (None: only this one)."""
        size = floor if floor > largest else largest
        fraction, exponent = math.frexp(size)
        if self._inside[0] < fraction < self._inside[1] and -100 < exponent < 127:
            return exponent, None
        assert self.tolerance is not None
        acceptable = acceptable_scales(largest, self.tolerance, self.dtype, auditor, floor)
        return scale_exponent(size, self.dtype), acceptable

    def at(self, scale: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return ``ints`` and ``floats`` for a tensor whose scale is ``2**scale``."""
        found = self._sites.get(scale)
        if found is None:
            found = self._sites[scale] = self._site(scale)
        return found

    def _site(self, scale: int) -> tuple[NDArray[Any], NDArray[Any]]:
        assert self.tolerance is not None
        absolute = absolute_part(scale, self.tolerance)
        ints = self.ints if absolute <= self._largest_tau else self._never_tame
        # No less than tau and the rounding of x - tau anywhere in the tensor.
        unit = 2.0 * float(np.finfo(self.kind).eps)
        bound = math.ldexp(self.tolerance.rtol * HAIR + unit, scale) + absolute * HAIR
        silent = min(absolute * ZERO_RULE, 2.0 ** (self.grid.quantum_exponent - 1))
        return ints, np.array(
            [self.tolerance.rtol, absolute, ZERO_RULE, 2.0 * bound, silent, self._to_subnormal], self.kind
        )


_plans: dict[tuple[int, int, torch.dtype], Plan] = {}


def plan_for(grid: Grid, tolerance: Tolerance | None, dtype: torch.dtype) -> Plan:
    """Return the plan; PrecisionError and SpecError as :func:`scale.check_compute`."""
    # By identity, which costs less than equality; a plan keeps its grid and tolerance alive.
    plan = _plans.get((id(grid), id(tolerance), dtype))
    if plan is None:
        plan = Plan(grid, tolerance, dtype)
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[id(grid), id(tolerance), dtype] = plan
    return plan


@functools.lru_cache
def _lattice(grid: Grid) -> Lattice:
    offset = (grid.emin + 1022) << (grid.precision - 1)
    return (53 - grid.precision, offset, 2.0**grid.emin, 2.0**-grid.quantum_exponent)


@functools.lru_cache
def grid_params(grid: Grid) -> Params:
    """Return ``params`` of ``_jit_base``: the grid as float64 loops need it."""
    smallest_binade = (grid.emin + 1023) << 52
    return (2.0 ** (grid.emax + 1), grid.max_value, smallest_binade, (53 - grid.precision) << 52)
