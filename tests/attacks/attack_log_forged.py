"""An entry claims a value far away from anything that rounding could give."""

from __future__ import annotations

import dataclasses

import numpy as np
from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import parity_site, rewrite_log

from vt_core.engine.rounding_log import StepLog


def change(logs: dict[int, StepLog]) -> None:
    number, site = parity_site(logs[4])
    parity = site.parity.copy()
    parity[0] = 0
    logs[4].sites[number] = dataclasses.replace(
        site, parity=parity, full_index=np.array([0], np.int64), full_values=np.array([0.125], np.float32)
    )


def mount(lab: Lab) -> Mounted:
    return lab.forge(lambda folder: rewrite_log(folder, change))


ATTACK = Attack(
    name="log-forged",
    kind="log",
    does="gives one logged value as 0.125",
    gain="dictates an intermediate value of the computation",
    caught_by="replay: interval rule for log entries",
    reason="log_implausible",
    place=Place(2, 4, "aten.native_batch_norm.default (norm1)"),
    mount=mount,
    needs_log=True,
)
