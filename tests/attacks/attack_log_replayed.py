"""A log of another run stands in for the one that was never made."""

from __future__ import annotations

import shutil
from pathlib import Path

from attacks.zoo import OTHER, SEGMENT, Attack, Lab, Mounted, Place
from support.runs import artifacts, recommit

from vt_core.training.segment import LOG


def mount(lab: Lab) -> Mounted:
    foreign = artifacts(lab.honest(OTHER).folder, SEGMENT) / LOG

    def change(folder: Path) -> None:
        shutil.copyfile(foreign, artifacts(folder, SEGMENT) / LOG)
        recommit(folder)

    return lab.forge(change)


ATTACK = Attack(
    name="log-replayed",
    kind="log",
    does="publishes the log of another run",
    gain="evidence without the work of making it",
    caught_by="evidence: the log's header names spec and segment",
    reason="evidence_malformed",
    place=Place(2),
    mount=mount,
)
