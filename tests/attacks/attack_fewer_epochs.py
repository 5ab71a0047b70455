"""Three epochs are agreed; the weights stop moving after the first, while all records go on."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DropsStep
from support.runs import DIGITS, Case

from vt_core.engine.rounding import Rounding
from vt_core.training.session import StepOutcome

EPOCHS = Case(DIGITS, {"width": 4, "batch_size": 16, "hold_out": 1765}, {"seed": 7, "epochs": 3})
"""32 samples: an epoch, and a segment, is two steps."""


class OneEpoch(DropsStep):
    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        return self.honest(step, rounding) if self.sampler.epoch(step) == 0 else self.cheat(step, rounding)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(OneEpoch, EPOCHS)


ATTACK = Attack(
    name="fewer-epochs",
    kind="training",
    does="trains one epoch of three and publishes the same weights for the others",
    gain="is paid for epochs that left nothing in the model",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.num_batches_tracked and others"),
    mount=mount,
)
