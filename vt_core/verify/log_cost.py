"""What a tolerance costs: the share of elements that a trainer would have to log, for every power of two.

An element is logged where a rounding boundary lies within tau of its value. Values lie anywhere between two boundaries,
so the chance is ``2 tau`` over their distance: that gives the share for 2, 4, 8... times a tolerance, or a fraction of
it, from a sample of values, with far less scatter than counting the few that would be logged. What is not spread so
is counted: values that lie on a boundary (structural ties) and those that round to zero. With a least step
(``numerics/policy.py``) the chance never exceeds ``2 tau`` over the step, and values below half a step have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vt_core.engine.rounding_log import entropy_floor_bits
from vt_core.numerics import Grid, Tolerance
from vt_core.numerics.grid import DoubleArray, FloatArray, IntArray, lattice_index, lattice_value, round_array
from vt_core.numerics.reference import ZERO_RULE

MOST_SHIFT = 64
"""Shifts are powers of two from -64 to 64 times a tolerance."""

_TIE = 2.0**-10  # closer to a boundary than this, in tolerances: counted, since few values are so by chance
_TABLES = ("begins", "ends", "sure", "chance", "below")


class LogCost:
    """Estimates the log of one place for the tolerance times ``2**shift``."""

    def __init__(self) -> None:
        self.elements = 0
        self._begins: dict[int, float] = {}  # counted: shift from which an element is logged -> elements
        self._ends: dict[int, float] = {}  # counted: shift from which the zero rule leaves it out again
        self._sure: dict[int, float] = {}  # spread: shift from which the chance is 1 -> elements
        self._chance: dict[int, float] = {}  # spread: the same shift -> sum of the chances at shift 0, if unbounded
        self._below: dict[int, float] = {}  # spread: shift from which an element is below half a step -> elements
        self._most = 1.0  # the largest chance

    def add(self, x: FloatArray, numel: int, tolerance: Tolerance, scale_exp: int, grid: Grid) -> None:
        """Count the sample ``x`` (1-d, float64 or float32) of a tensor of ``numel`` elements, before rounding."""
        self.elements += numel
        if not x.size:
            return
        x = x[np.isfinite(x)].astype(np.float64)
        weight = numel / max(1, x.size)
        y = round_array(x, grid)
        place = lattice_index(y, grid)
        centre = lattice_value(place, grid)
        lower, upper = ((lattice_value(place + side, grid) + centre) * 0.5 for side in (-1, 1))
        tau = np.abs(x) * tolerance.rtol + math.ldexp(1.0, scale_exp + tolerance.atol_exp)
        boundary = np.maximum(np.minimum(x - lower, upper - x), 0.0) / tau
        begins = _shift(boundary)
        ends = np.where(y == 0.0, _shift(np.abs(x) / ZERO_RULE / tau), MOST_SHIFT + 1)
        chance = 2.0 * tau / (upper - lower)
        step = tolerance.step_exp
        fine = np.zeros(x.shape, np.bool_) if step is None else chance >= 2.0 ** (1 - step)
        counted = ((y == 0.0) | (boundary <= _TIE)) & (begins < ends) & ~fine
        _count(self._begins, begins[counted], weight)
        _count(self._ends, ends[counted], weight)
        if step is not None:
            self._most = 2.0 ** (1 - step)
            _count(self._below, _shift(np.abs(x) / tau * 2.0 ** (2 - step))[y != 0.0], weight)
        chance = chance[y != 0.0]
        sure = -_shift(chance / self._most)
        _count(self._sure, sure, weight)
        _count(self._chance, sure, weight, chance)

    def entries(self, shift: int) -> float:
        """Return the expected number of entries among all elements that were added."""
        expected = sum(n for s, n in self._begins.items() if s <= shift)
        expected -= sum(n for s, n in self._ends.items() if s <= shift)
        expected += self._most * sum(n for s, n in self._sure.items() if s < shift)
        expected -= self._most * sum(n for s, n in self._below.items() if s <= shift)
        expected += sum(math.ldexp(c, shift) for s, c in self._chance.items() if s >= shift)
        return min(max(0.0, expected), float(self.elements))

    def bits(self, shift: int) -> float:
        """Return the least bits for these entries: random positions and one bit each."""
        return entropy_floor_bits(self.elements, round(self.entries(shift)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON (counts in hexadecimal)."""
        tables = {name: {str(k): v.hex() for k, v in getattr(self, f"_{name}").items()} for name in _TABLES}
        return {"elements": self.elements, "most": self._most.hex(), **tables}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> LogCost:
        """Read what :meth:`to_json` returned."""
        cost = LogCost()
        cost.elements, cost._most = plain["elements"], float.fromhex(plain["most"])
        for name in _TABLES:
            setattr(cost, f"_{name}", {int(k): float.fromhex(v) for k, v in plain[name].items()})
        return cost


def _count(table: dict[int, float], shifts: IntArray, weight: float, amounts: DoubleArray | None = None) -> None:
    found, where = np.unique(shifts, return_inverse=True)
    for shift, total in zip(found, np.bincount(where, amounts, found.size), strict=True):
        table[int(shift)] = table.get(int(shift), 0.0) + weight * float(total)


def _shift(ratio: DoubleArray) -> IntArray:
    """Return the smallest integer ``s`` with ``2**s >= ratio``, within the limits."""
    fraction, exponent = np.frexp(ratio)
    shifts: IntArray = np.where(ratio == 0.0, -MOST_SHIFT, exponent - (fraction == 0.5)).astype(np.int64)
    return np.clip(shifts, -MOST_SHIFT, MOST_SHIFT)
