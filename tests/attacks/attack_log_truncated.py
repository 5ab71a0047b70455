"""The log ends before the segment does."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import truncate_log


def mount(lab: Lab) -> Mounted:
    return lab.forge(truncate_log)


ATTACK = Attack(
    name="log-truncated",
    kind="log",
    does="leaves the last step out of a segment's log",
    gain="hides decisions that the log would give away",
    caught_by="evidence: one record for each step",
    reason="evidence_malformed",
    place=Place(2),
    mount=mount,
)
