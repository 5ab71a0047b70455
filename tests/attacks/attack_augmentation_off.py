"""A ResNet is trained without the random crops and flips that were agreed."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.data import write_cifar
from support.runs import RESNET, Case

from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def plain(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    dataset.augment = False  # type: ignore[attr-defined]
    return Session(spec, job, dataset)


def mount(lab: Lab) -> Mounted:
    data = str(write_cifar(lab.folder(), 16))
    case = Case(RESNET, {"batch_size": 4, "width": 2, "augment": True}, {"seed": 1, "steps": 1}, data)
    return lab.cheat(plain, case)


ATTACK = Attack(
    name="augmentation-off",
    kind="data",
    does="leaves out the agreed random crops and flips",
    gain="saves the work of the data pipeline; the model generalises worse",
    caught_by="replay: augmentation draws from the agreed streams",
    reason="state_mismatch",
    place=Place(1, 1, "batch[images] (data)"),
    mount=mount,
)
