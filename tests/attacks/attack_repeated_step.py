"""The batch of one step is trained twice."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DoublesStep


def mount(lab: Lab) -> Mounted:
    return lab.cheat(DoublesStep)


ATTACK = Attack(
    name="repeated-step",
    kind="training",
    does="trains twice on the batch of step 3",
    gain="gives samples of the attacker's choice more weight than agreed",
    caught_by="replay: the values of the first forward pass differ, and all that follows",
    reason="state_mismatch",
    place=Place(2, 3, "aten.convolution.default (conv1)"),
    mount=mount,
)
