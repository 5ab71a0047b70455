"""A running variance of a batch norm is doubled: training does not see it, inference does."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import TampersStatistics


def mount(lab: Lab) -> Mounted:
    return lab.cheat(TampersStatistics)


ATTACK = Attack(
    name="running-statistics-tampered",
    kind="training",
    does="doubles a running variance after step 3",
    gain="spoils or backdoors inference through values that no gradient touches",
    caught_by="replay: buffers are part of the state root",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.running_var"),
    mount=mount,
)
