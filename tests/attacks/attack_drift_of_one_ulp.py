"""One weight moves by one unit in its last place: the smallest change there is."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DriftsOneUlp


def mount(lab: Lab) -> Mounted:
    return lab.cheat(DriftsOneUlp)


ATTACK = Attack(
    name="drift-of-one-ulp",
    kind="training",
    does="moves one weight by one unit in the last place after step 3",
    gain="hides a drift in what looks like floating-point noise; many small ones make a backdoor",
    caught_by="replay: the state is compared bit for bit",
    reason="state_mismatch",
    place=Place(2, 3, "param.linear.weight"),
    mount=mount,
)
