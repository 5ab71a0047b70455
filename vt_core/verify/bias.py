"""Does the log lie within its freedom? Two tests over the entries of an audit, for each op class.

What an accepted entry can do depends on how far apart grid values lie, compared with the tolerance:

* A *decision*: the auditor's own value lies within one tolerance of one rounding boundary, and the log names one of two
  neighbouring grid values. Honest hardware names another one than the auditor rarely (about E|dx| / 2 tau of the
  decisions); a trainer who steers the weights through the log does so in half of them or more. A binomial test.
* A *fine* entry: the grid is finer than the tolerance, as for all values near zero, and the log names one of many. Two
  honest machines may disagree there always (what is left of a sum that cancels is noise), but by E|dx| on average,
  while a liar moves by a whole tolerance. The mean distance is tested, by Hoeffding's inequality ("Probability
  inequalities for sums of bounded random variables", 1963).

All other accepted entries only repeat the auditor's own rounding: between one and two tolerances from a boundary, and
at exact zeros. A liar can write them at will, so they must not dilute its rate. What is counted follows from the
auditor's own values; leaving out honest entries only raises a liar's rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vt_core.numerics import Grid, Tolerance, count_decisions
from vt_core.numerics.grid import DoubleArray, FloatArray, lattice_index, lattice_value, round_array
from vt_core.numerics.scale import HAIR, absolute_part, stepped

HONEST_RATE = 0.10
"""Upper bound of E|dx| / 2 tau, the share of decisions on which two honest machines disagree; docs/threat-model.md."""

SIGNIFICANCE = 1e-9
"""An honest trainer is accused by chance less often than this, per op class and audit."""

USES = ("decisions", "flipped", "fine", "moved")
"""Keys of the whole numbers among the counts of an op class; ``pushed`` is in tolerances."""


@dataclass(frozen=True)
class Bias:
    """An op class whose log disagrees with the auditor's own rounding more often than honest hardware does."""

    op_class: str
    entries: int
    disagreements: int
    p_value: float


@dataclass(frozen=True)
class Uses:
    """What accepted entries were used for, see the module's docstring; the fields are the keys of a class's counts.

    ``flipped`` decisions and ``moved`` fine entries name another value than the auditor's own rounding. ``pushed`` is
    the sum, over fine entries, of the least |x - x'| / tau that explains the entry (each at most 1).
    """

    decisions: int
    flipped: int
    fine: int
    moved: int
    pushed: float


def uses(x: FloatArray, used: FloatArray, tolerance: Tolerance, scale_exp: int, grid: Grid) -> Uses:
    """Count what accepted entries were used for.

    ``x`` (1-d, float64 or float32) are the auditor's values at the entries before rounding, ``used`` (same dtype and
    shape) the grid values that were used, ``scale_exp`` the exponent ``e`` of tau. Non-finite ``x`` do not count.
    """
    decisions, flipped, rest = count_decisions(x, used, tolerance, scale_exp, grid)
    others = exact_uses(x[rest], used[rest].astype(np.float64), tolerance, scale_exp, grid)
    return replace(others, decisions=others.decisions + decisions, flipped=others.flipped + flipped)


def exact_uses(x: FloatArray, used: DoubleArray, tolerance: Tolerance, scale_exp: int, grid: Grid) -> Uses:
    """Do as :func:`uses` by its definition, in NumPy; ``used`` is float64."""
    grid = stepped(grid, tolerance, scale_exp)
    finite = np.isfinite(x) & ~np.isnan(used)
    x, used, kind = x[finite], used[finite], x.dtype.type
    tau = np.abs(x) * kind(tolerance.rtol) + kind(absolute_part(scale_exp, tolerance))
    wide = (tau * kind(2)) * kind(HAIR)
    edges = (round_array(v, grid) for v in (x - tau, x + tau, x - wide, x + wide))
    low, high, wide_low, wide_high = (lattice_index(e, grid) for e in edges)
    own = round_array(x, grid)
    free, differs = low != high, used != own
    decides = free & (wide_high - wide_low == 1)
    push = _distance(x, tau, used, grid)
    # Honest trainers log no exact zeros: a liar could log them, or move them by next to nothing, to dilute its mean.
    fine = free & ~decides & ((own != 0.0) | (push > 2.0 * HONEST_RATE))
    flipped, moved = decides & differs, fine & differs
    return Uses(int(decides.sum()), int(flipped.sum()), int(fine.sum()), int(moved.sum()), float(push[fine].sum()))


def biased_class(
    counts: Mapping[str, Mapping[str, Any]],
    honest_rate: float = HONEST_RATE,
    significance: float = SIGNIFICANCE,
) -> Bias | None:
    """Return the op class with the smallest p value below ``significance``, or None.

    ``counts`` maps op class to the fields of :class:`Uses`, or, of an auditor that does not tell entries apart, to
    ``entries`` and ``disagreements``. H0: a decision is flipped with probability at most ``honest_rate``, and a fine
    entry is pushed by at most ``2 * honest_rate`` on average, since E|dx| / 2 tau is the rate and E|dx| / tau the push.
    """
    worst: Bias | None = None
    for op_class, n in counts.items():
        flips, total = flips_of(n)
        fine, moved, pushed = int(n.get("fine", 0)), int(n.get("moved", 0)), float(n.get("pushed", 0.0))
        for found in (
            Bias(op_class, total, flips, p_value(total, flips, honest_rate)),
            Bias(op_class, fine, moved, push_p_value(fine, pushed, honest_rate)),
        ):
            if found.p_value < significance and (worst is None or found.p_value < worst.p_value):
                worst = found
    return worst


def flips_of(n: Mapping[str, Any]) -> tuple[int, int]:
    """Return (flipped, decisions) of one op class, or (disagreements, entries) where entries are not told apart."""
    if "decisions" in n:
        return int(n.get("flipped", 0)), int(n["decisions"])
    return int(n.get("disagreements", 0)), int(n.get("entries", 0))


def p_value(decisions: int, flipped: int, honest_rate: float = HONEST_RATE) -> float:
    """Return P(at least ``flipped`` of ``decisions``) if each is flipped with probability ``honest_rate``."""
    from scipy.stats import binom

    return float(binom.sf(flipped - 1, decisions, honest_rate)) if flipped > 0 else 1.0


def push_p_value(fine: int, pushed: float, honest_rate: float = HONEST_RATE) -> float:
    """Return Hoeffding's bound on P(a sum of at least ``pushed``) over ``fine`` pushes of mean 2 * ``honest_rate``."""
    excess = pushed - 2.0 * honest_rate * fine
    return math.exp(-2.0 * excess * excess / fine) if fine > 0 and excess > 0 else 1.0


def most_flips(decisions: int, honest_rate: float = HONEST_RATE, significance: float = SIGNIFICANCE) -> int:
    """Return the largest number of flipped ones among ``decisions`` that the test lets pass: a liar's budget."""
    from scipy.stats import binom

    if decisions <= 0:
        return 0
    most = min(int(binom.isf(significance, decisions, honest_rate)) + 1, decisions)
    while most > 0 and p_value(decisions, most, honest_rate) < significance:
        most -= 1
    return most


def most_pushed(fine: int, honest_rate: float = HONEST_RATE, significance: float = SIGNIFICANCE) -> float:
    """Return the largest sum of pushes over ``fine`` entries that the test lets pass, in tolerances."""
    return min(float(fine), 2.0 * honest_rate * fine + math.sqrt(-math.log(significance) * fine / 2.0))


def _distance(x: FloatArray, tau: FloatArray, used: DoubleArray, grid: Grid) -> DoubleArray:
    """How far, in tau and at most 1, ``x`` lies from the cell of values that round to ``used``."""
    place = lattice_index(used, grid)
    centre = lattice_value(place, grid)
    lower, upper = ((lattice_value(place + side, grid) + centre) * 0.5 for side in (-1, 1))
    wide = x.astype(np.float64)
    gap = np.maximum(np.maximum(lower - wide, wide - upper), 0.0)
    distance: DoubleArray = np.minimum(gap / tau.astype(np.float64), 1.0)
    return distance
