"""The spec allows the log a tolerance of 2^-20 of the scale, and the log makes use of it."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import Steered, steering
from support.runs import SMALL_DIGITS, Case, Trainer

from vt_core.numerics import OpClass

WIDE = {str(c): {"rtol_exp": None, "atol_exp": -30} for c in OpClass}
CASE = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "policy": WIDE})


def mount(lab: Lab) -> Mounted:
    """Every logged rounding goes the other way: with this tolerance, thousands of them."""
    run = Trainer(CASE, lab.folder(), make=steering(Steered, frozenset(OpClass), 1.0)).run()
    return lab.compare(run.folder)


ATTACK = Attack(
    name="tolerance-widened",
    kind="code and spec",
    does="writes a tolerance of 2^-30 of the scale into the spec and steers with the log",
    gain="freedom to choose the rounding of far more values than honest hardware needs",
    caught_by="agreement: the auditor's own limits",
    reason="policy_too_wide",
    place=Place(),
    mount=mount,
)
