"""The leaves of two steps change places, and everything is committed to anew."""

from __future__ import annotations

from pathlib import Path

from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import commit, leaves_of


def swap(folder: Path) -> None:
    first, last = leaves_of(folder)
    commit(folder, [last, first])


def mount(lab: Lab) -> Mounted:
    return lab.forge(swap)


ATTACK = Attack(
    name="leaf-swapped",
    kind="evidence",
    does="exchanges the leaves of steps 3 and 4",
    gain="commits to states in an order that was never computed",
    caught_by="evidence: leaves belong to the commit steps, in order",
    reason="evidence_malformed",
    place=Place(2),
    mount=mount,
)
