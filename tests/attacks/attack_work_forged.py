"""A trainer commits to work that nobody can find by replaying, so that no auditor can prove a replay."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import commit, leaves_of


def forge(folder: Path) -> None:
    first, last = leaves_of(folder)
    commit(folder, [first, dataclasses.replace(last, work=hashlib.sha256(b"nothing").digest())])


def mount(lab: Lab) -> Mounted:
    return lab.forge(forge)


ATTACK = Attack(
    name="work-forged",
    kind="evidence",
    does="commits to other intermediate values than those of its training",
    gain="every honest audit of the segment looks like a lazy one",
    caught_by="replay: work commitment of the leaf",
    reason="work_mismatch",
    place=Place(2, 4),
    mount=mount,
)
