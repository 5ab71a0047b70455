"""The interval rule for the few elements that are in a log: which form an entry takes, and what an auditor
accepts.

Plain NumPy over the elements concerned, used by the reference. The kernels have compiled forms for the usual case
(``_jit_entries.describe``, and ``_jit_entries.confirm`` where an auditor agrees) and come here for the rest. All
arithmetic that decides is in the compute dtype (the dtype of ``x``), one IEEE operation at a time, so every machine
decides alike; only reported distances use float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vt_core.errors import EvidenceError
from vt_core.numerics.grid import (
    DoubleArray,
    FloatArray,
    Grid,
    IntArray,
    lattice_index,
    lattice_value,
    round_array,
)
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.result import MAX_FINDINGS, AuditorResult, RoundingFinding, SiteEntries
from vt_core.numerics.scale import HAIR, absolute_part

BoolArray = NDArray[np.bool_]

FINGERPRINT_FACTOR = 0x9E3779B1
_LOW_32 = np.uint64(0xFFFFFFFF)


def build_entries(positions: IntArray, x: FloatArray, tolerance: Tolerance, scale_exp: int, grid: Grid) -> SiteEntries:
    """Return the log entries for the flagged elements ``x`` at ``positions``.

    An entry is one parity bit where ``[x - 2 tau, x + 2 tau]`` (and a hair) rounds to two neighbouring grid
    values: any honest auditor's window lies inside. Otherwise it is the full value.
    """
    tau = _tau(x, tolerance, scale_exp)
    low, high = _window(x, _twice(tau), grid)
    y = round_array(x, grid)
    full = lattice_index(high, grid) - lattice_index(low, grid) != 1
    parity = (lattice_index(y, grid) & 1).astype(np.uint8)
    parity[full] = 0
    return SiteEntries(scale_exp, positions, parity, np.flatnonzero(full).astype(np.int64), y[full].astype(np.float32))


def agree_on_scale(entries: SiteEntries | None, own_scale: int, acceptable: range, result: AuditorResult) -> int:
    """Return the exponent to use: the logged one if an honest trainer may have seen it, else the own one."""
    if entries is None or entries.scale_exp is None or entries.scale_exp == own_scale:
        return own_scale
    if entries.scale_exp in acceptable:
        return entries.scale_exp
    result.add(RoundingFinding("scale", -1, float(entries.scale_exp), float(own_scale), math.inf))
    return own_scale


def valid_positions(entries: SiteEntries, numel: int, result: AuditorResult) -> BoolArray:
    """Return which entries (bool) have a position inside the tensor and after all valid ones before it.

    The others become findings. Raises EvidenceError if the arrays of ``entries`` do not fit together.
    """
    count = entries.positions.size
    full = entries.full_index
    fits = entries.parity.size == count and full.size == entries.full_values.size
    if not fits or (full.size and (full.min() < 0 or full.max() >= count)):
        raise EvidenceError("evidence_malformed", "the arrays of a site's log entries do not fit together")
    inside = (entries.positions >= 0) & (entries.positions < numel)
    running = np.maximum.accumulate(np.where(inside, entries.positions, -1))
    before = np.concatenate([np.full(min(count, 1), -1, np.int64), running[:-1]])
    valid: BoolArray = inside & (entries.positions > before)
    values = _claimed(entries)
    misplaced = np.flatnonzero(~valid)
    described = max(0, MAX_FINDINGS - len(result.findings))
    result.finding_count += max(0, misplaced.size - described)
    for j in misplaced[:described]:
        claimed = None if math.isnan(values[j]) else float(values[j])
        result.add(RoundingFinding("position", int(entries.positions[j]), claimed, math.nan, math.inf))
    return valid


def judge(
    x: FloatArray,
    entries: SiteEntries,
    valid: BoolArray,
    tolerance: Tolerance,
    scale_exp: int,
    grid: Grid,
    result: AuditorResult,
) -> tuple[BoolArray, DoubleArray]:
    """Decide over the valid entries; ``x`` holds the auditor's values there.

    Returns, for the valid entries, which are accepted (bool) and the values to use (float64). An accepted
    value is a grid value in the auditor's window ``[rnd(x - tau), rnd(x + tau)]``, and the window of twice
    the width (and a hair) reaches a rounding boundary, so that the entry had a reason to be there.
    """
    positions = entries.positions[valid]
    values = _claimed(entries)[valid]
    is_full = np.zeros(entries.positions.size, np.bool_)
    is_full[entries.full_index] = True
    is_full = is_full[valid]

    tau = _tau(x, tolerance, scale_exp)
    own = round_array(x, grid)
    low, high = _window(x, tau, grid)
    first, last = _index(low, grid), _index(high, grid)

    # A parity entry names the one value of its parity among one or two candidates.
    parity = entries.parity[valid].astype(np.int64)
    matches_first = (first & 1) == parity
    narrow = (last - first <= 1) & np.isfinite(x)
    decodes = narrow & (matches_first | (last > first))
    named = np.where(matches_first, low, high)
    values = np.where(is_full, values, np.where(decodes, named, np.nan))

    # A full value must lie on the grid: between two grid values a liar could otherwise choose at will.
    on_grid = (round_array(values, grid) == values) & ~((values == 0) & np.signbit(values))
    wide_low, wide_high = _window(x, _twice(tau), grid)
    accepted: BoolArray = np.isfinite(x) & on_grid & (low <= values) & (values <= high) & (wide_low != wide_high)

    _account(x, tau, own, values, accepted, grid, result)
    refused = np.flatnonzero(~accepted)
    described = max(0, MAX_FINDINGS - len(result.findings))
    result.finding_count += max(0, refused.size - described)  # a hostile log may hold millions: only counted
    for j in refused[:described]:
        distance = math.inf
        if np.isfinite(x[j]) and on_grid[j]:
            distance = _distance_to_entry(x[j : j + 1], tau[j : j + 1], values[j : j + 1], grid)
        elif narrow[j] and not is_full[j]:
            # The window holds one value, of the other parity: one of its two neighbours was meant.
            neighbours = lattice_value(first[j] + np.array([-1, 1]), grid)
            pair = np.repeat(x[j], 2), np.repeat(tau[j], 2)
            distance = float(_distance_to_value(*pair, neighbours, grid).min())
        claimed = None if np.isnan(values[j]) and not is_full[j] else float(values[j])
        result.add(RoundingFinding("implausible", int(positions[j]), claimed, float(own[j]), distance))
    return accepted, values


def selected(entries: SiteEntries, at: IntArray) -> SiteEntries:
    """Return the entries with the indexes ``at`` (ascending) alone; the arrays of ``entries`` fit together."""
    full = np.isin(entries.full_index, at)
    return SiteEntries(
        entries.scale_exp,
        entries.positions[at],
        entries.parity[at],
        np.searchsorted(at, entries.full_index[full]),
        entries.full_values[full],
    )


def fingerprint_change(positions: IntArray, before: DoubleArray, after: DoubleArray) -> int:
    """Return what to add (mod 2**64) to a fingerprint when the grid values at ``positions`` change."""
    factor = ((2 * positions.astype(np.uint64) + np.uint64(1)) * np.uint64(FINGERPRINT_FACTOR)) & _LOW_32
    old = before.astype(np.float32).view(np.uint32).astype(np.uint64)
    new = after.astype(np.float32).view(np.uint32).astype(np.uint64)
    return int(np.sum((new - old) * factor, dtype=np.uint64))


def _account(
    x: FloatArray,
    tau: FloatArray,
    own: DoubleArray,
    values: DoubleArray,
    accepted: BoolArray,
    grid: Grid,
    result: AuditorResult,
) -> None:
    result.entries += int(accepted.sum())
    moved = accepted & (values != own)
    if moved.any():
        result.disagreements += int(moved.sum())
        distances = _distance_to_value(x[moved], tau[moved], values[moved], grid)
        result.max_distance = max(result.max_distance, float(distances.max()))


def _claimed(entries: SiteEntries) -> DoubleArray:
    values = np.full(entries.positions.size, np.nan)
    values[entries.full_index] = entries.full_values
    return values


def _tau(x: FloatArray, tolerance: Tolerance, scale_exp: int) -> FloatArray:
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        tau: FloatArray = np.abs(x) * kind(tolerance.rtol) + kind(absolute_part(scale_exp, tolerance))
    return tau


def _twice(tau: FloatArray) -> FloatArray:
    kind = tau.dtype.type
    with np.errstate(over="ignore"):
        wide: FloatArray = (tau * kind(2)) * kind(HAIR)
    return wide


def _window(x: FloatArray, radius: FloatArray, grid: Grid) -> tuple[DoubleArray, DoubleArray]:
    with np.errstate(all="ignore"):
        return round_array(x - radius, grid), round_array(x + radius, grid)


def _index(y: DoubleArray, grid: Grid) -> IntArray:
    return lattice_index(np.where(np.isnan(y), 0.0, y), grid)


def _distance_to_value(x: FloatArray, tau: FloatArray, y: DoubleArray, grid: Grid) -> DoubleArray:
    """How far, in tau, ``x`` must move for ``y`` (a grid value or infinity) to be its rounding.

    0 if it is.
    """
    place = lattice_index(y, grid)
    centre = lattice_value(place, grid)
    # Beyond infinity there is nothing; the boundary before it is the middle of max_value and 2**(emax + 1).
    lower = np.where(y == -np.inf, -np.inf, (lattice_value(place - 1, grid) + centre) * 0.5)
    upper = np.where(y == np.inf, np.inf, (lattice_value(place + 1, grid) + centre) * 0.5)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        gap = np.maximum(np.maximum(lower - wide, wide - upper), 0.0)
        distance: DoubleArray = gap / tau.astype(np.float64)
    return distance


def _distance_to_entry(x: FloatArray, tau: FloatArray, y: DoubleArray, grid: Grid) -> float:
    """How far, in tau, the trainer's value must be from ``x`` for an entry ``y`` to follow the rule."""
    to_value = float(_distance_to_value(x, tau, y, grid)[0])
    if to_value > 0.0:
        return to_value
    # y is the auditor's own rounding as well: the trainer's value must lie within tau of a rounding boundary.
    place = lattice_index(y, grid)
    neighbours = lattice_value(np.concatenate([place - 1, place + 1]), grid)
    neighbours = np.where(np.abs(neighbours) > grid.max_value, np.copysign(np.inf, neighbours), neighbours)
    neighbours = neighbours[neighbours != y[0]]
    repeat = neighbours.size
    to_boundary = _distance_to_value(np.repeat(x, repeat), np.repeat(tau, repeat), neighbours, grid)
    return max(0.0, float(to_boundary.min()) - 1.0)
