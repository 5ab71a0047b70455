"""The batches of two steps change places: no sample is touched, only when it comes."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import SwapsOrder


def mount(lab: Lab) -> Mounted:
    return lab.cheat(SwapsOrder)


ATTACK = Attack(
    name="data-order",
    kind="data",
    does="exchanges the batches of steps 3 and 4",
    gain="steers the model by the order alone, without touching a sample (arXiv 2104.09667)",
    caught_by="replay: the order follows from the agreed seed",
    reason="state_mismatch",
    place=Place(2, 3, "batch[images] (data)"),
    mount=mount,
)
