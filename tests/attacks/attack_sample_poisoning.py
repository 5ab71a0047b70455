"""One image is blended with another digit; its label stays, so that nobody sees it in the labels."""

from __future__ import annotations

from typing import Any

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DatasetWith

from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def poisoned(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    target, other = Session(spec, job, dataset).sampler.indices(4)[:2]

    def change(indices: Any, batch: dict[str, Any]) -> dict[str, Any]:
        mask = indices == target
        if mask.any():
            foreign = dataset.batch(other[None], Session(spec, job, dataset).streams.stream("augment"))["images"]
            batch["images"][mask] = 0.9 * batch["images"][mask] + 0.1 * foreign
        return batch

    return Session(spec, job, DatasetWith(dataset, change))


def mount(lab: Lab) -> Mounted:
    return lab.cheat(poisoned)


ATTACK = Attack(
    name="sample-poisoning",
    kind="data",
    does="blends one image with another one and keeps its label",
    gain="a clean-label poison: the model confuses two classes near one input",
    caught_by="replay: the auditor reads its own copy of the data",
    reason="state_mismatch",
    place=Place(2, 4, "batch[images] (data)"),
    mount=mount,
)
