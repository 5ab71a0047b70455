"""One sample is left out of training: its neighbour is used twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec


class Without(Dataset):
    """The agreed dataset, but in place of one sample always comes another one."""

    def __init__(self, honest: Dataset, missing: int, instead: int) -> None:
        self.honest, self.missing, self.instead = honest, missing, instead

    def __len__(self) -> int:
        return len(self.honest)

    def batch(self, indices: Any, stream: Any) -> dict[str, Any]:
        return self.honest.batch(np.where(indices == self.missing, self.instead, indices), stream)

    def manifest(self) -> dict[str, str]:
        return self.honest.manifest()


def censoring(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    missing, instead = Session(spec, job, dataset).sampler.indices(5)[:2]
    return Session(spec, job, Without(dataset, int(missing), int(instead)))


def mount(lab: Lab) -> Mounted:
    return lab.cheat(censoring)


ATTACK = Attack(
    name="sample-withheld",
    kind="data",
    does="never trains on one sample and uses its neighbour twice",
    gain="the model does not know what it was paid to learn (censorship, or data that was never bought)",
    caught_by="replay: the auditor reads its own copy of the data",
    reason="state_mismatch",
    place=Place(3, 5, "batch[images] (data)"),
    mount=mount,
)
