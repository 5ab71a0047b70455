"""An auditor accuses and then does not show what it replayed."""

from __future__ import annotations

from attacks.disputes import WrongSum, control, dispute, finding, transcript_digest
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.dispute.messages import Role
from vt_core.dispute.party import Reply
from vt_core.training.session import Session


def silent(role: Role, kind: str, reply: Reply) -> Reply | None:
    return None if (role, kind) == (Role.AUDITOR, "leaf") else reply


def mount(lab: Lab) -> Mounted:
    folder = lab.honest().folder
    answering, gone = dispute(folder, Session, WrongSum), dispute(folder, Session, WrongSum, meddle=silent)
    return Mounted(transcript_digest(answering), transcript_digest(gone), control(lab), finding(gone.ruling))


ATTACK = Attack(
    name="silent-auditor",
    kind="dispute",
    does="accuses an honest trainer and goes silent when it has to open a leaf",
    gain="an accusation that is never examined",
    caught_by="referee: signed deadline",
    reason="silent",
    place=Place(2),
    mount=mount,
    result="the auditor loses",
)
