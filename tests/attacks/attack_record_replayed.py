"""A record of another run of the same spec takes the place of this run's own."""

from __future__ import annotations

import dataclasses

from attacks.zoo import Attack, Lab, Mounted, Place
from support.runs import SMALL_DIGITS, read_commitments


def mount(lab: Lab) -> Mounted:
    folder, twin = lab.honest().folder, lab.honest(SMALL_DIGITS, "twin").folder
    found, other = read_commitments(folder), read_commitments(twin, "twin")
    segments = [*found.segments[:1], other.segments[1], *found.segments[2:]]
    return lab.compare(folder, dataclasses.replace(found, segments=segments))


ATTACK = Attack(
    name="record-replayed",
    kind="evidence",
    does="uses a record of another run of the same spec",
    gain="sells one training twice",
    caught_by="chain: every record names its run",
    reason="chain_broken",
    place=Place(1),
    mount=mount,
)
