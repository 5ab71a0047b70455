"""A false fingerprint that looks like an honest near miss, one step before a step is trained twice."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DoublesStep, Excuses
from support.runs import SMALL_DIGITS, Case

from vt_core.engine.rounding import Rounding, TrainerRounding
from vt_core.numerics import OpClass
from vt_core.training.session import StepOutcome

# One leaf for both steps: where the state is committed after each, an excuse excuses nothing.
CASE = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "commit_interval": 2})


class Excused(DoublesStep):
    step = 4

    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        assert isinstance(rounding, TrainerRounding)
        return super().run_step(step, Excuses(rounding, frozenset(OpClass), 1.0) if step == 3 else rounding)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(Excused, CASE)


ATTACK = Attack(
    name="false-excuse",
    kind="log",
    does="forges the fingerprint of a near miss in step 3 and trains step 4 twice",
    gain="hopes for `tolerance_exceeded`, which accuses nobody, in place of a rejection",
    caught_by="replay: the near miss is granted and the replay goes on",
    reason="state_mismatch",
    place=Place(2, 4, "aten.convolution.default (conv1)"),
    mount=mount,
)
