"""One step in bfloat16, which is many times cheaper, behind the log and the trace of an honest one."""

from __future__ import annotations

import torch
from attacks.cheaper import Substitutes
from attacks.zoo import Attack, Lab, Mounted, Place


class Bfloat16(Substitutes):
    dtype = torch.bfloat16


def mount(lab: Lab) -> Mounted:
    return lab.cheat(Bfloat16)


ATTACK = Attack(
    name="low-precision",
    kind="compute",
    does="computes step 3 in bfloat16 and publishes log and trace of an honest step",
    gain="a step at a fraction of the cost",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.running_mean and others"),
    mount=mount,
)
