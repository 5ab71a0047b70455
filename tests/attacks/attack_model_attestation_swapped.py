"""The attestation of another model, signed by the same trainer, lies beside the run."""

from __future__ import annotations

import dataclasses

from attacks.signed import resign, sign_run
from attacks.zoo import OTHER, Attack, Lab, Mounted, Place


def mount(lab: Lab) -> Mounted:
    other = sign_run(lab.honest(OTHER).folder)
    return resign(lab, lambda honest: dataclasses.replace(honest, model=other.model))


ATTACK = Attack(
    name="model-attestation-swapped",
    kind="signatures",
    does="puts the signed attestation of another model beside an audited run",
    gain="ships that other model with a paper that refers to the audited run",
    caught_by="signatures: the attestation must be the one that the sealed records give",
    reason="chain_broken",
    place=Place(part="model.dsse.json"),
    mount=mount,
)
