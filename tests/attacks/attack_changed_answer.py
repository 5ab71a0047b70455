"""A trainer stands by its seal in the first round, and shows other leaves in the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attacks.disputes import WrongSum, control, dispute, finding, transcript_digest, wrong_dispute, wrong_run
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.dispute.messages import Role
from vt_core.dispute.party import Claim
from vt_core.training.session import Session


class ChangesItsMind:
    """The leaves of the seal when the roots are asked for; after that, with those of an honest replay among them."""

    def __init__(self, claim: Claim, honest: Sequence[bytes]) -> None:
        self._claim, self._honest, self._asked = claim, honest, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claim, name)

    def leaf_hashes(self) -> Sequence[bytes]:
        self._asked += 1
        sealed = list(self._claim.leaf_hashes())
        return sealed if self._asked == 1 else [*self._honest[:4], *sealed[4:]]


def mount(lab: Lab) -> Mounted:
    folder = wrong_run(lab)
    honest = [leaf for record in lab.honest().records for leaf in record.leaf_hashes()]
    played = dispute(folder, WrongSum, Session, wrap={Role.TRAINER: lambda claim: ChangesItsMind(claim, honest)})
    return Mounted(
        transcript_digest(wrong_dispute(lab)), transcript_digest(played), control(lab), finding(played.ruling)
    )


ATTACK = Attack(
    name="changed-answer",
    kind="dispute",
    does="answers for its seal in one round and for other leaves in the next",
    gain="leads the search away from the false step",
    caught_by="game: every answer must hash to the one before",
    reason="contradiction",
    place=Place(),
    mount=mount,
    result="the trainer loses",
)
