"""The records of two steps change places."""

from __future__ import annotations

import dataclasses

from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import rewrite_log

from vt_core.engine.rounding_log import StepLog


def change(logs: dict[int, StepLog]) -> None:
    logs[3], logs[4] = dataclasses.replace(logs[4], step=3), dataclasses.replace(logs[3], step=4)


def mount(lab: Lab) -> Mounted:
    return lab.forge(lambda folder: rewrite_log(folder, change))


ATTACK = Attack(
    name="log-reordered",
    kind="log",
    does="exchanges the log records of steps 3 and 4",
    gain="excuses the decisions of one step by those of another",
    caught_by="replay: interval rule for log entries",
    reason="log_implausible",
    place=Place(2, 3, "aten.native_batch_norm.default (norm1)"),
    mount=mount,
    needs_log=True,
)
