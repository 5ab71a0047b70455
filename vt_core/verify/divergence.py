"""How far two computations of the same operation lie apart: in units of the tensor's scale, and in tolerances.

A *place* is an operation in a module. For each place the largest divergence is kept and how the others are distributed,
in eighths of a power of two, so that processes can hand over what they saw as a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vt_core.numerics import OpClass, Tolerance
from vt_core.numerics.grid import DoubleArray

_PER_OCTAVE = 8
_ZERO, _INFINITE = -(1 << 20), 1 << 20  # bins beside those of positive finite values


class Spread:
    """Weighted histogram of a nonnegative quantity, with its largest value."""

    def __init__(self) -> None:
        self.weights: dict[int, float] = {}
        self.largest = 0.0

    def add(self, values: DoubleArray, weight: float) -> None:
        """Count ``values`` (1-d, >= 0, may be inf), each with ``weight`` (0: only the largest is kept)."""
        if not values.size:
            return
        self.largest = max(self.largest, float(values.max()))
        if weight <= 0.0:
            return
        bins = np.full(values.shape, _INFINITE, np.int64)
        bins[values == 0.0] = _ZERO
        usual = (values > 0.0) & np.isfinite(values)
        bins[usual] = np.ceil(_PER_OCTAVE * np.log2(values[usual])).astype(np.int64)
        for place, count in zip(*np.unique(bins, return_counts=True), strict=True):
            self.weights[int(place)] = self.weights.get(int(place), 0.0) + weight * float(count)

    def merge(self, other: Spread) -> None:
        """Add what ``other`` counted."""
        self.largest = max(self.largest, other.largest)
        for place, weight in other.weights.items():
            self.weights[place] = self.weights.get(place, 0.0) + weight

    def quantile(self, share: float) -> float:
        """Return a value that at least ``share`` of the weight does not exceed, at most an eighth of an octave above.

        0.0 if nothing was counted.
        """
        wanted, seen = share * sum(self.weights.values()), 0.0
        for place in sorted(self.weights):
            seen += self.weights[place]
            if seen >= wanted * (1.0 - 1e-12):
                if place in (_ZERO, _INFINITE):
                    return 0.0 if place == _ZERO else math.inf
                edge: float = 2.0 ** (place / _PER_OCTAVE)
                return min(edge, self.largest)
        return 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON (floats in hexadecimal)."""
        return {"largest": self.largest.hex(), "weights": {str(k): v.hex() for k, v in self.weights.items()}}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Spread:
        """Read what :meth:`to_json` returned."""
        spread = Spread()
        spread.largest = float.fromhex(plain["largest"])
        spread.weights = {int(k): float.fromhex(v) for k, v in plain["weights"].items()}
        return spread


@dataclass
class Place:
    """Divergence at one operation in one module.

    ``elements`` passed through it in all steps, ``compared`` of them were compared. ``scaled`` is ``|dx| / 2**e``,
    ``tolerances`` is ``|dx| / tau``.
    """

    op: str
    module: str
    op_class: OpClass
    elements: int = 0
    compared: int = 0
    scaled: Spread = field(default_factory=Spread)
    tolerances: Spread = field(default_factory=Spread)

    def add(self, scaled: DoubleArray, tolerances: DoubleArray, weight: float) -> None:
        """Count divergences (1-d), each with ``weight``; 0: only the largest is kept."""
        self.scaled.add(scaled, weight)
        self.tolerances.add(tolerances, weight)

    def merge(self, other: Place) -> None:
        """Add what was seen elsewhere of the same place."""
        self.elements += other.elements
        self.compared += other.compared
        self.scaled.merge(other.scaled)
        self.tolerances.merge(other.tolerances)


class Measured:
    """The places of a run, by operation and module."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], Place] = {}

    def at(self, op: str, module: str, op_class: OpClass) -> Place:
        """Return the place, a new one if it was not seen yet."""
        return self.places.setdefault((op, module), Place(op, module, op_class))

    def merge(self, other: Measured) -> None:
        """Add what another process measured."""
        for place in other.places.values():
            self.at(place.op, place.module, place.op_class).merge(place)

    def total(self, op_class: OpClass) -> Place:
        """Return all places of a class as one; op and module are those of the largest divergence in tolerances."""
        found = [p for p in self.places.values() if p.op_class == op_class]
        worst = max(found, key=lambda p: p.tolerances.largest, default=None)
        total = Place("", "", op_class)
        if worst is not None and worst.tolerances.largest > 0.0:
            total.op, total.module = worst.op, worst.module
        for place in found:
            total.merge(place)
        return total

    def worst(self, count: int) -> list[Place]:
        """Return the ``count`` places with the largest divergence in tolerances, the largest first."""
        diverging = [p for p in self.places.values() if p.tolerances.largest > 0.0]
        return sorted(diverging, key=lambda p: -p.tolerances.largest)[:count]

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain JSON."""
        return [
            {
                "op": p.op, "module": p.module, "op_class": str(p.op_class), "elements": p.elements,
                "compared": p.compared, "scaled": p.scaled.to_json(), "tolerances": p.tolerances.to_json(),
            }
            for p in self.places.values()
        ]  # fmt: skip

    @staticmethod
    def from_json(plain: Iterable[Mapping[str, Any]]) -> Measured:
        """Read what :meth:`to_json` returned."""
        measured = Measured()
        for p in plain:
            place = measured.at(p["op"], p["module"], OpClass(p["op_class"]))
            place.elements, place.compared = p["elements"], p["compared"]
            place.scaled, place.tolerances = Spread.from_json(p["scaled"]), Spread.from_json(p["tolerances"])
        return measured


def divergence(
    x: NDArray[Any], other: NDArray[Any], tolerance: Tolerance, scale_exp: int
) -> tuple[DoubleArray, DoubleArray]:
    """Return ``|x - other|`` in units of ``2**scale_exp`` and in tolerances at ``x`` (float64, the shape of ``x``).

    ``x`` and ``other`` are float64 or float32 of one shape. Two equal infinities or two NaN do not diverge; a finite
    value beside one that is not, or unlike infinities, are infinitely far apart.
    """
    a, b = x.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        away = np.abs(a - b)
        away[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
        away[np.isnan(away)] = np.inf
        scaled: DoubleArray = np.ldexp(away, -scale_exp)
        tau = np.abs(a) * tolerance.rtol + math.ldexp(1.0, scale_exp + tolerance.atol_exp)
        # Where x is infinite or NaN, tau is too: what differs from it is no matter of tolerance.
        tolerances: DoubleArray = np.where((away == 0.0) | np.isinf(away), away, away / tau)
    return scaled, tolerances
