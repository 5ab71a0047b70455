"""Other weights are published than were trained; the leaf is consistent with them."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import ReplacesWeights


def mount(lab: Lab) -> Mounted:
    return lab.cheat(ReplacesWeights)


ATTACK = Attack(
    name="weights-replaced",
    kind="training",
    does="publishes other weights at the end of segment 2, with a leaf that fits them",
    gain="delivers any model it likes under an honest history",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 4, "param.linear.weight"),
    mount=mount,
)
