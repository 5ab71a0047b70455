"""The trainer's genuine signature over another run's seal."""

from __future__ import annotations

import dataclasses

from attacks.signed import resign, sign_run
from attacks.zoo import Attack, Lab, Mounted, Place
from support.runs import SMALL_DIGITS


def mount(lab: Lab) -> Mounted:
    twin = sign_run(lab.honest(SMALL_DIGITS, "twin").folder, "twin")
    return resign(lab, lambda honest: dataclasses.replace(honest, note=twin.note))


ATTACK = Attack(
    name="signed-seal-replayed",
    kind="signatures",
    does="publishes the signed checkpoint of another run of the same spec",
    gain="a valid signature for a run that was never signed",
    caught_by="signatures: the checkpoint's origin is the run",
    reason="chain_broken",
    place=Place(part="seal.note"),
    mount=mount,
)
