"""A step is computed for its log and trace, and its update is thrown away."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DropsStep


def mount(lab: Lab) -> Mounted:
    return lab.cheat(DropsStep)


ATTACK = Attack(
    name="skipped-step",
    kind="training",
    does="publishes log and trace of step 3 but not its update",
    gain="hides a batch from the model while the records say that it was used",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.num_batches_tracked and others"),
    mount=mount,
)
