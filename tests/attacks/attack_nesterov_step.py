"""One step with Nesterov momentum, which was not agreed."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import LooksAhead


def mount(lab: Lab) -> Mounted:
    return lab.cheat(LooksAhead)


ATTACK = Attack(
    name="nesterov-step",
    kind="training",
    does="takes step 3 with Nesterov momentum and puts the setting back",
    gain="a faster optimizer than was agreed, for single steps",
    caught_by="replay: state of each step",
    reason="state_mismatch",
    place=Place(2, 3, "vt.sgd_.default (optimizer)"),
    mount=mount,
)
