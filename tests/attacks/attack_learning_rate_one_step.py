"""One step is taken with a learning rate that is one part in a million higher; the setting is put back."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import ChangesRate


def mount(lab: Lab) -> Mounted:
    return lab.cheat(ChangesRate)


ATTACK = Attack(
    name="learning-rate-one-step",
    kind="training",
    does="takes step 3 with a learning rate that is higher by one part in 10^6",
    gain="the smallest steering by a hyper-parameter; tests how fine the audit is",
    caught_by="replay: first update of the optimizer",
    reason="state_mismatch",
    place=Place(2, 3, "vt.sgd_.default (optimizer)"),
    mount=mount,
)
