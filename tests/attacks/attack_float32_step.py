"""One step in plain float32, as everybody trains, without the engine."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import TrainsInFloat32


def mount(lab: Lab) -> Mounted:
    return lab.cheat(TrainsInFloat32)


ATTACK = Attack(
    name="float32-step",
    kind="compute",
    does="computes step 3 in plain float32 and publishes log and trace of an honest step",
    gain="saves the cost of float64 and of rounding",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.running_mean and others"),
    mount=mount,
)
