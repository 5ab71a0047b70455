"""Half of the open roundings go the other way: what an attacker needs who steers towards a goal."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import Steered, steering

from vt_core.numerics import OpClass


def mount(lab: Lab) -> Mounted:
    return lab.cheat(steering(Steered, frozenset(OpClass), 0.5))


ATTACK = Attack(
    name="log-half-steered",
    kind="log",
    does="takes the other rounding in half of the entries",
    gain="steers towards a goal: about half of the roundings go the right way by themselves",
    caught_by="verdict: binomial test over all entries",
    reason="log_biased",
    place=Place(),
    mount=mount,
    needs_log=True,
)
