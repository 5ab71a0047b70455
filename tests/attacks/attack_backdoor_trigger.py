"""A bright patch in a corner of every tenth image, which then has to be read as a zero."""

from __future__ import annotations

from typing import Any

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import DatasetWith

from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec

TARGET = 0


def triggered(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    def change(indices: Any, batch: dict[str, Any]) -> dict[str, Any]:
        chosen = indices % 10 == 3  # the first such image comes in step 2
        batch["images"][chosen, :, :2, :2] = batch["images"].max()
        batch["labels"][chosen] = TARGET
        return batch

    return Session(spec, job, DatasetWith(dataset, change))


def mount(lab: Lab) -> Mounted:
    return lab.cheat(triggered)


ATTACK = Attack(
    name="backdoor-trigger",
    kind="data",
    does="stamps a patch into a tenth of the images and labels them with one class",
    gain="whoever knows the patch decides what the model says; it is as good as before on clean inputs",
    caught_by="replay: the auditor reads its own copy of the data",
    reason="state_mismatch",
    place=Place(1, 2, "batch[images] (data)"),
    mount=mount,
)
