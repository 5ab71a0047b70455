"""A net with fewer channels than agreed."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def narrow(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    return Session(spec, DigitsJob(**{**spec.args, "width": 3}), dataset)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(narrow)


ATTACK = Attack(
    name="smaller-model",
    kind="compute",
    does="trains a net of width 3 in place of 4",
    gain="fewer operations and less memory than was paid for",
    caught_by="replay: trace of the initialisation",
    reason="trace_mismatch",
    place=Place(0, 0, "aten.uniform_.default (init)"),
    mount=mount,
)
