"""One step with Nesterov momentum: one operation more than agreed."""

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
    caught_by="replay: trace of operations",
    reason="trace_mismatch",
    place=Place(2, 3, "aten.add_.Tensor (optimizer)"),
    mount=mount,
)
