"""The trainer publishes, and keeps to, a spec that the client never signed."""

from __future__ import annotations

from attacks.signed import resign, sign_run
from attacks.zoo import Attack, Lab, Mounted, Place
from support.runs import SMALL_DIGITS, Case

from vt_core.evidence.records import Commitments

FEWER = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "steps": 4})


def mount(lab: Lab) -> Mounted:
    def shorten(honest: Commitments) -> Commitments:
        found = sign_run(lab.honest(FEWER).folder)
        return type(found)(**{**found.__dict__, "agreement": honest.agreement})

    return resign(lab, shorten)


ATTACK = Attack(
    name="agreement-over-another-spec",
    kind="signatures",
    does="trains 4 steps under a spec of its own; the client signed one of 6",
    gain="honest evidence for less than was ordered",
    caught_by="signatures: the agreement is over the spec's bytes",
    reason="spec_mismatch",
    place=Place(part="agreement.json"),
    mount=mount,
)
