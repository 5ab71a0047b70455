"""The artifacts of one segment are not published."""

from __future__ import annotations

import shutil
from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Lab, Mounted, Place
from support.runs import artifacts


def withhold(folder: Path) -> None:
    shutil.rmtree(artifacts(folder, SEGMENT))


def mount(lab: Lab) -> Mounted:
    return lab.forge(withhold)


ATTACK = Attack(
    name="segment-withheld",
    kind="evidence",
    does="deletes the artifacts of one segment",
    gain="makes the one segment that would show the fraud impossible to replay",
    caught_by="evidence: every committed file must be there",
    reason="artifact_missing",
    place=Place(2, None, "checkpoint.safetensors"),
    mount=mount,
)
