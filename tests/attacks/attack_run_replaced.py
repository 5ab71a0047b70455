"""Somebody who may write to the store replaces the whole run by one with other weights; all digests fit."""

from __future__ import annotations

import dataclasses

from attacks.signed import resign
from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import ReplacesWeights
from support.runs import SMALL_DIGITS, Trainer, read_commitments

from vt_core.evidence.records import Commitments


def mount(lab: Lab) -> Mounted:
    other = Trainer(SMALL_DIGITS, lab.folder(), make=ReplacesWeights).run().folder

    def replace(honest: Commitments) -> Commitments:
        found = read_commitments(other)
        return dataclasses.replace(found, agreement=honest.agreement, note=honest.note, model=honest.model)

    return resign(lab, replace)


ATTACK = Attack(
    name="run-replaced",
    kind="signatures",
    does="replaces every record and the seal of a finished run in the store",
    gain="delivers another model with a complete history; needs write access, no key",
    caught_by="signatures: the signed checkpoint names root and seal",
    reason="chain_broken",
    place=Place(part="seal.note"),
    mount=mount,
)
