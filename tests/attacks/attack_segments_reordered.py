"""Two segment records change places."""

from __future__ import annotations

import dataclasses

from attacks.zoo import Attack, Lab, Mounted, Place
from support.runs import read_commitments


def mount(lab: Lab) -> Mounted:
    folder = lab.honest().folder
    found = read_commitments(folder)
    a, b, c, d = found.segments
    return lab.compare(folder, dataclasses.replace(found, segments=[a, c, b, d]))


ATTACK = Attack(
    name="segments-reordered",
    kind="evidence",
    does="publishes the records of segments 1 and 2 in each other's place",
    gain="a history that was never computed",
    caught_by="chain: every record has its number and its steps",
    reason="chain_broken",
    place=Place(1),
    mount=mount,
)
