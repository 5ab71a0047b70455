"""The seal of another run of the same spec."""

from __future__ import annotations

import dataclasses

from attacks.zoo import Attack, Lab, Mounted, Place
from support.runs import SMALL_DIGITS, read_commitments


def mount(lab: Lab) -> Mounted:
    folder, twin = lab.honest().folder, lab.honest(SMALL_DIGITS, "twin").folder
    found = read_commitments(folder)
    return lab.compare(folder, dataclasses.replace(found, seal=read_commitments(twin, "twin").seal))


ATTACK = Attack(
    name="seal-replayed",
    kind="evidence",
    does="closes a run with the seal of another one",
    gain="lends a run the good name of an audited one",
    caught_by="chain: the seal names its run",
    reason="spec_mismatch",
    place=Place(part="seal.json"),
    mount=mount,
)
