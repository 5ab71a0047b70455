"""A trainer that is asked for the values of an operation's inputs stops answering."""

from __future__ import annotations

from attacks.disputes import WrongSum, control, dispute, finding, transcript_digest, wrong_dispute, wrong_run
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.dispute.messages import Role
from vt_core.dispute.party import Reply
from vt_core.training.session import Session


def silent(role: Role, kind: str, reply: Reply) -> Reply | None:
    return None if (role, kind) == (Role.TRAINER, "witness") else reply


def mount(lab: Lab) -> Mounted:
    folder = wrong_run(lab)
    gone = dispute(folder, WrongSum, Session, meddle=silent)
    return Mounted(transcript_digest(wrong_dispute(lab)), transcript_digest(gone), control(lab), finding(gone.ruling))


ATTACK = Attack(
    name="silent-trainer",
    kind="dispute",
    does="goes silent in the last round of a dispute that it would lose",
    gain="hopes for a dispute without an end",
    caught_by="referee: signed deadline",
    reason="silent",
    place=Place(2, 3),
    mount=mount,
    result="the trainer loses",
)
