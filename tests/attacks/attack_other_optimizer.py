"""Adam in place of the agreed SGD."""

from __future__ import annotations

import torch
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


class AdamJob(DigitsJob):
    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.lr, foreach=False)


def adam(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    return Session(spec, AdamJob(**spec.args), dataset)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(adam)


ATTACK = Attack(
    name="other-optimizer",
    kind="training",
    does="trains with Adam in place of the agreed SGD",
    gain="reaches the promised loss in fewer steps; the result is another one than was studied",
    caught_by="replay: the optimizer's settings are part of the state root",
    reason="state_mismatch",
    place=Place(0, 0),
    mount=mount,
)
