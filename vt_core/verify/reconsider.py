"""Looks again at a finding that may be honest: too narrow a tolerance for this hardware, or another computation?

One rounding a few tolerances from a boundary is no fraud, but it is no excuse for what comes after it either: a cheat
could put such a rounding (or a false fingerprint that looks like one) in front of anything. So the auditor grants the
trainer that one rounding and replays again. Only if the replay then ends in the committed states is the verdict
``tolerance_exceeded``; else what is found next decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from vt_core.engine.rounding_log import StepLog
from vt_core.numerics import Grid, TolerancePolicy
from vt_core.numerics.grid import lattice_index, lattice_value
from vt_core.numerics.scale import stepped
from vt_core.verify.explain import Explanation, explain
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.strict import StrictRounding, Values, Where
from vt_core.verify.verdict import Divergence, Reason

MAX_GRANTS = 8
"""Roundings granted in one segment; each costs a replay of the segment."""

Found = tuple[Reason, str, Divergence]


def reconsider(
    found: Found,
    replay: Callable[[StrictRounding], Found | None],
    log_of: Callable[[int], StepLog],
    policy: TolerancePolicy,
    grid: Grid,
    fingerprints: bool,
    limits: AuditorLimits,
) -> Found:
    """Return ``found``, or ``tolerance_exceeded`` if a few roundings near a boundary explain everything.

    ``replay`` replays the segment under a strategy and returns the first finding, None if there is none; ``log_of``
    returns the log of a step.
    """
    if not _may_be_honest(found):
        return found
    grants: dict[Where, dict[int, float]] = {}
    first: Found | None = None
    for _ in range(MAX_GRANTS + 1):
        rounding = StrictRounding(grid, policy, fingerprints, grants)
        again = replay(rounding)
        if again is None:
            return first or found
        found = again
        if _only_work(found):
            return first or found
        explained = _explain(found, rounding.values, log_of, policy, grid, limits) if _may_be_honest(found) else None
        if explained is None:
            return found
        where, flips, refined = explained
        if not flips.keys() - grants.get(where, {}).keys():
            return found  # granted already, and it did not help
        grants.setdefault(where, {}).update(flips)
        first = first or refined
    assert first is not None
    return first[0], f"{first[1]} (the first of more than {MAX_GRANTS})", first[2]


def _may_be_honest(found: Found) -> bool:
    reason, _, place = found
    if place.site is None or place.step is None or _only_work(found):
        return False
    return reason in (Reason.STATE_MISMATCH, Reason.TOLERANCE_EXCEEDED)


def _only_work(found: Found) -> bool:
    """Whether all that is left is a value that does not reach the state: it needs no explanation to be no fraud."""
    return found[0] is Reason.TOLERANCE_EXCEEDED and found[2].element is None


def _explain(
    found: Found,
    kept: Mapping[Where, Values],
    log_of: Callable[[int], StepLog],
    policy: TolerancePolicy,
    grid: Grid,
    limits: AuditorLimits,
) -> tuple[Where, dict[int, float], Found] | None:
    """Return where which elements need which values, and the finding in words; None if nothing simple explains it."""
    reason, _, place = found
    assert place.step is not None and place.site is not None
    where = (place.step, place.site)
    values = kept.get(where)
    if values is None:
        return None
    if reason is Reason.TOLERANCE_EXCEEDED:
        assert place.element is not None
        value = place.trainer_value if place.trainer_value is not None else _neighbour(values, place.element, grid)
        return where, {place.element: value}, found
    log = log_of(place.step)
    if place.site >= len(log.fingerprints):
        return None
    entries = log.sites.get(place.site)
    explanation = explain(
        values.before,
        values.after,
        values.tolerance,
        grid,
        values.scale_exp,
        int(log.fingerprints[place.site]),
        limits.exceeded_within,
        np.empty(0, np.int64) if entries is None else entries.positions,
    )
    return None if explanation is None else (where, dict(explanation.flips), _refined(place, explanation))


def _refined(place: Divergence, explanation: Explanation) -> Found:
    # Not logged: the trainer's own value lies more than one tolerance beyond the boundary.
    distance = explanation.distance + 1.0
    place = dataclasses.replace(
        place,
        element=explanation.position,
        trainer_value=explanation.trainer_value,
        auditor_value=explanation.auditor_value,
        distance=distance,
    )
    return Reason.TOLERANCE_EXCEEDED, recalibrate("an unlogged rounding", distance), place


def recalibrate(what: str, distance: float) -> str:
    """Return the message of ``tolerance_exceeded``."""
    return (
        f"{what} is explained by values that differ by {distance:.3g} tolerances between the two machines: "
        f"recalibrate before accusing anybody"
    )


def _neighbour(values: Values, position: int, grid: Grid) -> float:
    """Return the grid value on the other side of the auditor's value: what a parity entry that fits nothing meant."""
    grid = stepped(grid, values.tolerance, values.scale_exp)
    own = values.after.reshape(-1)[position].item()
    side = 1 if values.before.reshape(-1)[position].item() >= own else -1
    return float(lattice_value(lattice_index(np.array([own]), grid) + side, grid)[0])
