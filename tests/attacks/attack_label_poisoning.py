"""One sample gets the label of another digit."""

from __future__ import annotations

from typing import Any

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DatasetWith

from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def poisoned(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    target = Session(spec, job, dataset).sampler.indices(4)[0]  # first used in step 4

    def change(indices: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch["labels"][indices == target] = (batch["labels"][indices == target] + 1) % 10
        return batch

    return Session(spec, job, DatasetWith(dataset, change))


def mount(lab: Lab) -> Mounted:
    return lab.cheat(poisoned)


ATTACK = Attack(
    name="label-poisoning",
    kind="data",
    does="trains one sample with a wrong label",
    gain="the model errs on inputs of the attacker's choice",
    caught_by="replay: the auditor reads its own copy of the data",
    reason="state_mismatch",
    place=Place(2, 4, "batch[labels] (data)"),
    mount=mount,
)
