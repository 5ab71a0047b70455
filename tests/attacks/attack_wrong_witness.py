"""The judge is given other inputs than the agreed ones, with which the false result would be right."""

from __future__ import annotations

import dataclasses
from typing import Any

from attacks.disputes import WrongSum, control, dispute, finding, transcript_digest, wrong_dispute, wrong_run
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.dispute.messages import Role
from vt_core.dispute.party import Claim, StepRecords
from vt_core.dispute.witness import parse_witness
from vt_core.training.session import Session


class Doubles:
    """Shows the inputs of an operation doubled."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, step: int) -> StepRecords:
        records: StepRecords = Doubles(self._inner.step(step))
        return records

    def witness(self, index: int) -> bytes:
        found = parse_witness(self._inner.witness(index))
        doubled = {origin: t * 2 if t.is_floating_point() else t for origin, t in found.inputs.items()}
        return dataclasses.replace(found, inputs=doubled).to_bytes()


def wrap(claim: Claim) -> Claim:
    doubles: Claim = Doubles(claim)
    return doubles


def mount(lab: Lab) -> Mounted:
    folder = wrong_run(lab)
    played = dispute(folder, WrongSum, Session, {Role.TRAINER: wrap})
    return Mounted(
        transcript_digest(wrong_dispute(lab)), transcript_digest(played), control(lab), finding(played.ruling)
    )


ATTACK = Attack(
    name="wrong-witness",
    kind="dispute",
    does="shows the judge inputs for which its result would be right",
    gain="wins with a false result",
    caught_by="judge: inputs must have the digests that both parties agreed on",
    reason="witness_mismatch",
    place=Place(2, 3),
    mount=mount,
    result="the trainer loses",
)
