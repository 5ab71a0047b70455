"""Rounding onto the target grid, with the interval log that makes the auditor's replay bit-identical.

See docs/architecture.md; the rule and its proof are in ``reference``, the grids in ``grid``, tolerances in
``policy``.
"""

from vt_core.numerics.decisions import are_places, count_decisions, values_at
from vt_core.numerics.dispatch import (
    auditor_round_,
    correctly_rounded_sqrt,
    fingerprint,
    is_on_grid,
    max_magnitude,
    round_plain_,
    round_to_grid_,
    trainer_round_,
)
from vt_core.numerics.grid import Grid
from vt_core.numerics.policy import DEFAULT, OpClass, Tolerance, TolerancePolicy
from vt_core.numerics.result import AuditorResult, RoundingFinding, SiteEntries, TrainerResult

__all__ = [
    "DEFAULT",
    "AuditorResult",
    "Grid",
    "OpClass",
    "RoundingFinding",
    "SiteEntries",
    "Tolerance",
    "TolerancePolicy",
    "TrainerResult",
    "are_places",
    "auditor_round_",
    "correctly_rounded_sqrt",
    "count_decisions",
    "fingerprint",
    "is_on_grid",
    "max_magnitude",
    "round_plain_",
    "round_to_grid_",
    "trainer_round_",
    "values_at",
]
