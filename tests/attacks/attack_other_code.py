"""The trainer runs other code than the one whose digest it claims: the loss has a further term."""

from __future__ import annotations

import torch
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, source_digests


class Biased(DigitsJob):
    """The scores of class 0 are pulled up a little, in every step."""

    def loss(self, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        scores: torch.Tensor = model(batch["images"])
        return torch.nn.functional.cross_entropy(scores, batch["labels"]) - 1e-3 * scores[:, 0].mean()


def other(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    assert dict(spec.sources) == source_digests(job), "the claim is the agreed digest"
    return Session(spec, Biased(**spec.args), dataset)


def mount(lab: Lab) -> Mounted:
    return lab.cheat(other)


ATTACK = Attack(
    name="other-code",
    kind="code and spec",
    does="adds a term to the loss and claims the digest of the agreed code",
    gain="any training it likes, under the name of the agreed one",
    caught_by="replay: the auditor runs its own copy of the code",
    reason="trace_mismatch",
    place=Place(1, 1, "aten.nll_loss_backward.default (loss (backward))"),
    mount=mount,
)
