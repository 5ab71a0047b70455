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
    caught_by="replay: values, and so the log entries, of the first forward pass differ",
    reason="log_implausible",
    place=Place(2, 3, "aten.convolution.default (conv1)"),
    mount=mount,
)
