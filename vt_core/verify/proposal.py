"""From measured divergence to a tolerance policy: the narrowest that covers it with a safety factor, and its price.

A policy's exponents are moved together: relative and absolute part of a class by the same power of two, the *shift*.
A tolerance covers what was observed if ``|dx| <= tau * (1 - 1/1000)`` (assumption A) everywhere, and is proposed if it
does so ``safety`` times over. Nothing is proposed below ``safety`` units in the last place of the compute precision:
where no divergence was seen at all, another library may still round one result differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from vt_core.engine.scale import LEAST_GROWTH
from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, OpClass, Tolerance, TolerancePolicy
from vt_core.numerics.policy import LARGEST_EXPONENT, SMALLEST_EXPONENT
from vt_core.numerics.scale import SMALLEST_NORMAL, SMALLEST_SCALE
from vt_core.training.spec import COMPUTE
from vt_core.verify.divergence import Measured, Place
from vt_core.verify.log_cost import MOST_SHIFT, LogCost

QUANTILE = 0.9999
_SLACK = 1.0 - 1.0 / 1000.0  # assumption A is taken a hair inside tau
_HALF_UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}

State = Literal["unused", "sufficient", "thin", "insufficient"]


@dataclass(frozen=True)
class Choice:
    """One tolerance of a class: expected entries and bytes of log a step, and whether it covers what was observed."""

    shift: int
    tolerance: Tolerance
    share: float
    entries: float
    size: float
    covers: bool
    safe: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "shift": self.shift, **self.tolerance.to_json(), "share_logged": self.share,
            "entries_per_step": self.entries, "bytes_per_step": self.size, "covers": self.covers, "safe": self.safe,
        }  # fmt: skip


@dataclass(frozen=True)
class ClassProposal:
    """What was observed of an op class, and what to do.

    ``state`` is about the current tolerance: ``insufficient`` if it is exceeded, ``thin`` if it covers what was seen
    but not with the safety factor. ``proposed`` is None if no tolerance covers what was observed.
    """

    op_class: OpClass
    state: State
    observed: Place
    current: Tolerance
    proposed: Tolerance | None
    choices: Sequence[Choice]

    @property
    def headroom(self) -> float:
        """Largest observed divergence over the current tolerance."""
        return self.observed.tolerances.largest

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; with n elements compared, fewer than 3 / n diverge further (95 % confidence)."""
        seen = self.observed
        return {
            "state": self.state,
            "compared": seen.compared,
            "unseen_share": 3.0 / seen.compared if seen.compared else 1.0,
            "largest": seen.scaled.largest,
            "quantile": seen.scaled.quantile(QUANTILE),
            "headroom": self.headroom,
            "headroom_quantile": seen.tolerances.quantile(QUANTILE),
            "op": seen.op,
            "module": seen.module,
            "current": self.current.to_json(),
            "proposed": None if self.proposed is None else self.proposed.to_json(),
            "choices": [c.to_json() for c in self.choices],
        }


def check_safety(safety: int) -> None:
    """Raise SpecError unless the safety factor is a power of two from 1 to 4096."""
    if type(safety) is not int or not 1 <= safety <= 4096 or safety & (safety - 1):
        raise SpecError(f"the safety factor must be a power of two from 1 to 4096, not {safety!r}")


def propose(
    measured: Measured, costs: Iterable[tuple[OpClass, LogCost]], policy: TolerancePolicy, compute_dtype: str,
    safety: int, steps: int,
) -> list[ClassProposal]:  # fmt: skip
    """Return a proposal for each op class. ``costs`` were counted over ``steps`` steps, against ``policy``.

    Raises SpecError for a safety factor that is no power of two.
    """
    check_safety(safety)
    by_class: dict[OpClass, list[LogCost]] = {c: [] for c in OpClass}
    for op_class, cost in costs:
        by_class[op_class].append(cost)
    dtype = COMPUTE[compute_dtype]
    return [
        _proposal(measured.total(c), by_class[c], policy.tolerances[c], dtype, safety, steps) for c in OpClass
    ]  # fmt: skip


def proposed_policy(proposals: Sequence[ClassProposal]) -> TolerancePolicy:
    """Return the proposals as a policy. Raises SpecError where no tolerance covers what was observed."""
    lost = [p for p in proposals if p.proposed is None]
    if lost:
        names = ", ".join(f"{p.op_class} (in {p.observed.op})" for p in lost)
        raise SpecError(f"no tolerance covers the divergence of {names}: these machines do not compute the same thing")
    return TolerancePolicy({p.op_class: p.proposed for p in proposals if p.proposed is not None})


def wider_than_default(policy: TolerancePolicy, compute_dtype: str) -> list[str]:
    """Return the classes for which an auditor with the default limits refuses ``policy``."""
    return policy.wider_than(DEFAULT[compute_dtype])


def _proposal(
    seen: Place, costs: Sequence[LogCost], current: Tolerance, dtype: torch.dtype, safety: int, steps: int
) -> ClassProposal:
    largest = seen.tolerances.largest
    state: State = "sufficient"
    if not seen.compared and not any(cost.elements for cost in costs):
        state = "unused"
    elif largest > _SLACK:
        state = "insufficient"
    elif largest * safety > 1.0:
        state = "thin"
    wanted = max(largest, _least(seen.op_class, current, dtype)) * max(float(safety), 1.0 / _SLACK)
    shift = 0 if state == "unused" else _needed_shift(wanted)
    if shift is not None:
        shift = max(shift, -_room_below(current, dtype))
    if shift is None or shift > _room_above(current):
        return ClassProposal(seen.op_class, state, seen, current, None, [])
    ladder = range(min(0, shift), max(0, shift) + 1)
    choices = [_choice(s, current, costs, largest, safety, steps) for s in ladder]
    return ClassProposal(seen.op_class, state, seen, current, _shifted(current, shift), choices)


def _choice(
    shift: int, current: Tolerance, costs: Sequence[LogCost], largest: float, safety: int, steps: int
) -> Choice:
    elements = sum(cost.elements for cost in costs)
    entries = sum(cost.entries(shift) for cost in costs)
    bits = sum(cost.bits(shift) for cost in costs)
    allowed = math.ldexp(1.0, shift)
    return Choice(
        shift, _shifted(current, shift), entries / max(1, elements), entries / steps, bits / 8 / steps,
        largest <= allowed * _SLACK, largest * max(float(safety), 1.0 / _SLACK) <= allowed,
    )  # fmt: skip


def _needed_shift(divergence: float) -> int | None:
    """Return the smallest shift whose tolerance is at least ``divergence`` (in tolerances); None if there is none."""
    if not math.isfinite(divergence):
        return None
    fraction, exponent = math.frexp(divergence)
    return max(exponent - (fraction == 0.5), -MOST_SHIFT)


def _least(op_class: OpClass, tolerance: Tolerance, dtype: torch.dtype) -> float:
    """One unit in the last place just below the scale, in tolerances: honest machines may always differ by that.

    So they may where the sum is short, for which the tolerance of a contraction is narrower.
    """
    narrowest = 2.0**LEAST_GROWTH if op_class is OpClass.CONTRACTION else 1.0
    return _HALF_UNIT[dtype] / (tolerance.rtol / 2.0 + tolerance.atol) / narrowest


def _shifted(tolerance: Tolerance, shift: int) -> Tolerance:
    relative = None if tolerance.rtol_exp is None else tolerance.rtol_exp + shift
    return Tolerance(relative, tolerance.atol_exp + shift, tolerance.step_exp)


def _room_below(tolerance: Tolerance, dtype: torch.dtype) -> int:
    least = max(SMALLEST_EXPONENT, SMALLEST_NORMAL[dtype] - SMALLEST_SCALE[dtype])
    room = tolerance.atol_exp - least
    return room if tolerance.rtol_exp is None else min(room, tolerance.rtol_exp - SMALLEST_EXPONENT)


def _room_above(tolerance: Tolerance) -> int:
    return LARGEST_EXPONENT - max(tolerance.atol_exp, tolerance.rtol_exp or SMALLEST_EXPONENT)
