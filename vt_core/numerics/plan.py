"""What the compiled kernels need to know of a grid, a tolerance and a scale, in the form that they take."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vt_core.numerics._jit_base import LIMIT
from vt_core.numerics.grid import Grid
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.reference import ZERO_RULE
from vt_core.numerics.scale import HAIR, absolute_part, acceptable_scales, check_compute, scale_exponent, stepped

Params = tuple[float, float, int, int]
Lattice = tuple[int, int, float, float]

_MOST_PLANS = 512


class Site(NamedTuple):
    """What the kernels take for one tensor: ``ints`` and ``floats`` of ``_jit_base``, and the values rounded onto."""

    ints: NDArray[Any]
    floats: NDArray[Any]
    params: Params
    lattice: Lattice
    grid: Grid


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
        self.params = grid_params(grid)
        width, bias = (53, 1023) if dtype == torch.float64 else (24, 127)
        # Tame blocks need room for values within tau of theirs and for 1.5 * 2**(E + width - precision), which must
        # stay in its binade when a value is added.
        limit = min(grid.emax - 2, bias - 2 - (width - grid.precision)) if grid.precision <= width - 2 else None
        self._largest_tau = -1.0 if limit is None else 2.0**limit
        self._width, self._bias, self._limit = width, bias, limit
        self.ints = self._ints(grid)
        self.floats = np.zeros(6, self.kind)
        self._sites: dict[int, Site] = {}
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

    def at(self, scale: int) -> Site:
        """Return what the kernels take for a tensor whose scale is ``2**scale``."""
        found = self._sites.get(scale)
        if found is None:
            found = self._sites[scale] = self._site(scale)
        return found

    def _ints(self, grid: Grid) -> NDArray[Any]:
        width, bias, limit, bits = self._width, self._bias, self._limit, self._width - 1
        own_subnormals = self._own_subnormals(grid)
        return np.array(
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

    def _own_subnormals(self, grid: Grid) -> bool:
        """Tell whether subnormals are those of the compute dtype: their patterns ascend like those of other values."""
        return grid.emin == 1 - self._bias

    def _site(self, scale: int) -> Site:
        assert self.tolerance is not None
        absolute = absolute_part(scale, self.tolerance)
        grid = stepped(self.grid, self.tolerance, scale)
        ints = self.ints if grid is self.grid else self._ints(grid)
        if absolute > self._largest_tau:
            ints = ints.copy()
            ints[LIMIT] = -1  # never tame
        # No less than tau and the rounding of x - tau anywhere in the tensor.
        unit = 2.0 * float(np.finfo(self.kind).eps)
        bound = math.ldexp(self.tolerance.rtol * HAIR + unit, scale) + absolute * HAIR
        silent = min(absolute * ZERO_RULE, 2.0 ** (grid.quantum_exponent - 1))
        to_subnormal = 0.0 if self._own_subnormals(grid) else 2.0**-grid.quantum_exponent
        floats = np.array([self.tolerance.rtol, absolute, ZERO_RULE, 2.0 * bound, silent, to_subnormal], self.kind)
        return Site(ints, floats, grid_params(grid), _lattice(grid), grid)


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
