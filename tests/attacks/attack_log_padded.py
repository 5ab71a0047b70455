"""An entry is added where nothing is open: no honest machine could round that element differently."""

from __future__ import annotations

import dataclasses

import numpy as np
from attacks.zoo import Attack, Lab, Mounted, Place
from support.forging import parity_site, rewrite_log

from vt_core.engine.rounding_log import StepLog


def change(logs: dict[int, StepLog]) -> None:
    number, site = parity_site(logs[4])
    position = next(int(p) + 1 for p in site.positions if p + 1 not in site.positions)
    at = np.searchsorted(site.positions, position)
    logs[4].sites[number] = dataclasses.replace(
        site, positions=np.insert(site.positions, at, position), parity=np.insert(site.parity, at, 0)
    )


def mount(lab: Lab) -> Mounted:
    return lab.forge(lambda folder: rewrite_log(folder, change))


ATTACK = Attack(
    name="log-padded",
    kind="log",
    does="adds an entry for an element that is not near a rounding boundary",
    gain="pads the log, so that the share of steered entries looks small",
    caught_by="replay: interval rule for log entries",
    reason="log_implausible",
    place=Place(2, 4, "aten.native_batch_norm.default (norm1)"),
    mount=mount,
    needs_log=True,
)
