"""The checkpoint of the segment before is published again, and committed to."""

from __future__ import annotations

from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Lab, Mounted, Place
from support.runs import artifacts, recommit

from vt_core.training.checkpoint import load_checkpoint, save_checkpoint


def stale(folder: Path) -> None:
    save_checkpoint(load_checkpoint(artifacts(folder, SEGMENT - 1)), artifacts(folder, SEGMENT))
    recommit(folder)


def mount(lab: Lab) -> Mounted:
    return lab.forge(stale)


ATTACK = Attack(
    name="stale-checkpoint",
    kind="training",
    does="publishes the checkpoint of step 2 as that of step 4",
    gain="delivers an old model, or hides that a checkpoint was lost",
    caught_by="evidence: the checkpoint's digest must be the last leaf's state root",
    reason="state_mismatch",
    place=Place(2, 4, "buffer.norm1.num_batches_tracked and others"),
    mount=mount,
)
