"""The tolerance policy: how far two honest machines may differ, by class of operation.

``tau(x) = rtol * |x| + atol * 2**e`` with ``2**e`` the smallest power of two at or above the largest finite
magnitude of the tensor (DESIGN section 2). Both tolerances are powers of two, so that ``tau`` is computed
with one rounding only, and a policy is a handful of small integers.

Near zero a grid is finer than the tolerance: there honest machines disagree about many grid values at once. So a
tolerance also has a *least step*: results are rounded to multiples of ``2**step_exp * atol * 2**e`` where the grid is
finer than that (``scale.stepped``), which is far below what float32 training could resolve. Then an element near zero
is logged as rarely as any other, and by one bit (``docs/adr/0012-least-step.md``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from vt_core.errors import SpecError

# The completeness proof (see ``reference``) needs tau to change by less than 1/1000 - 2**-11 when x moves by
# tau.
LARGEST_EXPONENT = -12
SMALLEST_EXPONENT = -60
# With a step of 8 tolerances no honest auditor's window (4 tolerances and a hair) holds more than two grid values.
SMALLEST_STEP, LARGEST_STEP = 3, 12


class OpClass(StrEnum):
    """Classes of inexact operations that share a tolerance."""

    CONTRACTION = "contraction"
    REDUCTION = "reduction"
    TRANSCENDENTAL = "transcendental"
    OTHER = "other"


@dataclass(frozen=True)
class Tolerance:
    """``rtol = 2**rtol_exp`` (0 if ``rtol_exp`` is None), ``atol = 2**atol_exp``, and the least step.

    The step is ``2**step_exp`` times the absolute part of tau; with None the grid is used as it is.
    SpecError out of range.
    """

    rtol_exp: int | None
    atol_exp: int
    step_exp: int | None = None

    def __post_init__(self) -> None:
        for name, exponent in (("rtol_exp", self.rtol_exp), ("atol_exp", self.atol_exp)):
            if exponent is None and name == "rtol_exp":
                continue
            if type(exponent) is not int or not SMALLEST_EXPONENT <= exponent <= LARGEST_EXPONENT:
                raise SpecError(
                    f"{name} is {exponent!r}; it must be an integer from {SMALLEST_EXPONENT} to {LARGEST_EXPONENT}"
                )

        step = self.step_exp
        if step is not None and (type(step) is not int or not SMALLEST_STEP <= step <= LARGEST_STEP):
            raise SpecError(
                f"step_exp is {step!r}; it must be an integer from {SMALLEST_STEP} to {LARGEST_STEP}, or null"
            )

    def to_json(self) -> dict[str, int | None]:
        """Return a plain dictionary of integers; ``step_exp`` is absent if there is none."""
        plain = {"rtol_exp": self.rtol_exp, "atol_exp": self.atol_exp}
        return plain if self.step_exp is None else {**plain, "step_exp": self.step_exp}

    @property
    def rtol(self) -> float:
        """Relative part of tau."""
        return 0.0 if self.rtol_exp is None else 2.0**self.rtol_exp

    @property
    def atol(self) -> float:
        """Absolute part of tau, in units of ``2**e``."""
        return float(2.0**self.atol_exp)


@functools.lru_cache(maxsize=1024)
def _grown(tolerance: Tolerance, growth: int) -> Tolerance:
    def moved(exponent: int) -> int:
        return min(max(exponent + growth, SMALLEST_EXPONENT), LARGEST_EXPONENT)

    relative = None if tolerance.rtol_exp is None else moved(tolerance.rtol_exp)
    return Tolerance(relative, moved(tolerance.atol_exp), tolerance.step_exp)


@dataclass(frozen=True)
class TolerancePolicy:
    """One tolerance for each :class:`OpClass`; SpecError if one is missing."""

    tolerances: Mapping[OpClass, Tolerance]

    def __post_init__(self) -> None:
        missing = [c.value for c in OpClass if c not in self.tolerances]
        if missing:
            raise SpecError(f"the tolerance policy lacks {', '.join(missing)}")

    def __getitem__(self, op_class: OpClass) -> Tolerance:
        return self.tolerances[op_class]

    def at(self, op_class: OpClass, growth: int) -> Tolerance:
        """Return the tolerance of a class for sums whose length asks for ``2**growth`` times the policy's."""
        tolerance = self.tolerances[op_class]
        return _grown(tolerance, growth) if growth else tolerance

    def to_json(self) -> dict[str, dict[str, int | None]]:
        """Return plain dictionaries of integers, ready for canonical JSON."""
        return {c.value: self.tolerances[c].to_json() for c in OpClass}

    @staticmethod
    def from_json(data: object) -> TolerancePolicy:
        """Build a policy from what :meth:`to_json` returned; SpecError for anything else."""
        if not isinstance(data, dict) or set(data) != {c.value for c in OpClass}:
            raise SpecError(f"a tolerance policy needs exactly the keys {', '.join(c.value for c in OpClass)}")
        tolerances: dict[OpClass, Tolerance] = {}
        for name, entry in data.items():
            if not isinstance(entry, dict) or set(entry) | {"step_exp"} != {"rtol_exp", "atol_exp", "step_exp"}:
                raise SpecError(f"tolerance of {name}: the keys rtol_exp, atol_exp and, at will, step_exp are needed")
            tolerances[OpClass(name)] = Tolerance(entry["rtol_exp"], entry["atol_exp"], entry.get("step_exp"))
        return TolerancePolicy(tolerances)

    def changed(self, classes: Mapping[str, object]) -> TolerancePolicy:
        """Return this policy with other tolerances for some classes, given as :meth:`to_json` returns them.

        A class keeps its least step if none is named (null: no step). Raises as :meth:`from_json`.
        """
        plain: dict[str, object] = dict(self.to_json())
        for name, entry in classes.items():
            known = plain.get(name)
            step = known.get("step_exp") if isinstance(known, dict) else None
            plain[name] = {"step_exp": step, **entry} if isinstance(entry, dict) else entry
        return TolerancePolicy.from_json(plain)

    def wider_than(self, limit: TolerancePolicy) -> list[str]:
        """Return the names of the classes whose relative or absolute tolerance, or step, exceeds that of ``limit``."""
        return [
            c.value
            for c in OpClass
            if self.tolerances[c].rtol > limit.tolerances[c].rtol
            or self.tolerances[c].atol_exp > limit.tolerances[c].atol_exp
            or (self.tolerances[c].step_exp or 0) > (limit.tolerances[c].step_exp or 0)
        ]


def _policy(
    contraction: int, reduction: int, transcendental: tuple[int, int], other: int, step: int
) -> TolerancePolicy:
    return TolerancePolicy(
        {
            OpClass.CONTRACTION: Tolerance(None, contraction, step),
            OpClass.REDUCTION: Tolerance(None, reduction, step),
            OpClass.TRANSCENDENTAL: Tolerance(*transcendental, step),
            OpClass.OTHER: Tolerance(None, other, step),
        }
    )


# By compute dtype. The float64 figures are about eight times the largest difference measured between CPUs; long sums
# (the weight gradient of a convolution over 32,768 places) leave less. ``vt calibrate`` measures a job.
DEFAULT: dict[str, TolerancePolicy] = {
    "float64": _policy(-44, -45, (-48, -50), -44, 5),
    "float32": _policy(-16, -16, (-19, -20), -16, 3),
}
