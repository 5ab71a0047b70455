"""Dropout is left out."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def overfitting(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    return Session(spec, DigitsJob(**{**spec.args, "dropout": 0.0}), dataset)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(overfitting)


ATTACK = Attack(
    name="no-dropout",
    kind="training",
    does="switches dropout off",
    gain="a lower training loss in the report; the model remembers its training data",
    caught_by="replay: trace of operations",
    reason="trace_mismatch",
    place=Place(1, 1, "aten.native_dropout.default (dropout)"),
    mount=mount,
)
