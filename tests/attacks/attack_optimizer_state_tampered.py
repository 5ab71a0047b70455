"""The momentum is forgotten before one step."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import ResetsMomentum


def mount(lab: Lab) -> Mounted:
    return lab.cheat(ResetsMomentum)


ATTACK = Attack(
    name="optimizer-state-tampered",
    kind="training",
    does="sets the momentum to zero before step 3",
    gain="forgets what earlier batches taught; resumes from a checkpoint without optimizer state",
    caught_by="replay: the optimizer's state is part of the state root",
    reason="state_mismatch",
    place=Place(2, 3, "vt.sgd_.default (optimizer)"),
    mount=mount,
)
