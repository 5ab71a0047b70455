"""Every open rounding goes the other way: each entry is plausible, all together are not."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import Steered, steering

from vt_core.numerics import OpClass


def mount(lab: Lab) -> Mounted:
    return lab.cheat(steering(Steered, frozenset(OpClass), 1.0))


ATTACK = Attack(
    name="log-steered",
    kind="log",
    does="takes the other rounding wherever the log allows it",
    gain="moves the model without a single implausible entry",
    caught_by="verdict: binomial test over all entries",
    reason="log_biased",
    place=Place(),
    mount=mount,
    needs_log=True,
)
