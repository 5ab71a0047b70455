"""The whole run is trained with a weight decay that differs by one part in a million."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


def tuned(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    return Session(spec, DigitsJob(**{**spec.args, "weight_decay": 1e-4 * (1 + 1e-6)}), dataset)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(tuned)


ATTACK = Attack(
    name="other-hyperparameter",
    kind="training",
    does="trains the whole run with a weight decay that differs by one part in 10^6",
    gain="another model than agreed, too close to be seen in any metric",
    caught_by="replay: the optimizer's settings are part of the state root",
    reason="state_mismatch",
    place=Place(0, 0),
    mount=mount,
)
