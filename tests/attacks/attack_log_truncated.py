"""The log ends before the segment does."""

from __future__ import annotations

from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Lab, Mounted, Place
from support.runs import artifacts, recommit

from vt_core.engine.rounding_log import LogReader, LogWriter
from vt_core.training.segment import LOG


def cut(folder: Path) -> None:
    path = artifacts(folder, SEGMENT) / LOG
    with LogReader(path, 1 << 30) as reader:
        header, first = reader.header, reader.read_step(3)
    path.unlink()
    with LogWriter(path, header) as writer:
        writer.append(first)
    recommit(folder)


def mount(lab: Lab) -> Mounted:
    return lab.forge(cut)


ATTACK = Attack(
    name="log-truncated",
    kind="log",
    does="leaves the last step out of a segment's log",
    gain="hides decisions that the log would give away",
    caught_by="evidence: one record for each step",
    reason="evidence_malformed",
    place=Place(2),
    mount=mount,
)
