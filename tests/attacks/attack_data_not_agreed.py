"""The spec names the digest of poisoned data; training and evidence are honest for that data."""

from __future__ import annotations

import dataclasses
from typing import Any

from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsDataset


def mount(lab: Lab) -> Mounted:
    def change(job: Any, dataset: Any, spec: Any) -> Any:
        labels = dataset.labels.copy()
        labels[labels == 1] = 7
        poisoned = DigitsDataset(dataset.images, labels, 0)
        return job, poisoned, dataclasses.replace(spec, manifest=dict(sorted(poisoned.manifest().items())))

    return lab.disagree(change)


ATTACK = Attack(
    name="data-not-agreed",
    kind="code and spec",
    does="relabels every 1 as a 7 and puts the digest of that data into the spec",
    gain="poisoned data under evidence without a fault",
    caught_by="agreement: digests of the auditor's own copy of the data",
    reason="data_mismatch",
    place=Place(),
    mount=mount,
)
