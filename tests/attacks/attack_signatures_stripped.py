"""The signatures of a replaced run are left out, as if it had been made before there were any."""

from __future__ import annotations

import dataclasses

from attacks.signed import resign
from attacks.zoo import Attack, Lab, Mounted, Place


def mount(lab: Lab) -> Mounted:
    return resign(lab, lambda honest: dataclasses.replace(honest, note=None, model=None))


ATTACK = Attack(
    name="signatures-stripped",
    kind="signatures",
    does="deletes the signed checkpoint and the model's attestation",
    gain="a run that nobody answers for",
    caught_by="signatures: who knows the trainer's key insists on them",
    reason="signature_invalid",
    place=Place(part="seal.note"),
    mount=mount,
)
