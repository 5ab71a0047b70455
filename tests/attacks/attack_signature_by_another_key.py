"""The seal is signed by a key of the trainer's name that is not the trainer's."""

from __future__ import annotations

from attacks.signed import resign, sign_run
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.evidence.keys import SignerKey
from vt_core.evidence.records import Commitments


def mount(lab: Lab) -> Mounted:
    def forge(honest: Commitments) -> Commitments:
        return sign_run(lab.honest().folder, key=SignerKey.generate("trainer"))

    return resign(lab, forge)


ATTACK = Attack(
    name="signature-by-another-key",
    kind="signatures",
    does="signs the seal with a key of its own that bears the trainer's name",
    gain="blames the trainer for a run, or takes credit for it",
    caught_by="signatures: the key id is a hash over name and key",
    reason="signature_invalid",
    place=Place(part="seal.note"),
    mount=mount,
)
