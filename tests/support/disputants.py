"""Sessions that end in other states than the agreed one, for disputes: each differs at another kind of record."""

from __future__ import annotations

from collections.abc import Callable

import torch
from support.cheats import AtStep, DatasetWith, DriftsOneUlp, ReplacesWeights, TampersStatistics

from vt_core.engine.rounding import Rounding
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session, StepOutcome
from vt_core.training.spec import RunSpec

Maker = Callable[[RunSpec, Job, Dataset, str], Session]


class AddsToAGradient(AtStep):
    """Scales a gradient before the update of one step, by an operation that was not agreed."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        class Scaling:
            def __init__(self, job: Job) -> None:
                self.job = job

            def __getattr__(self, name: str) -> object:
                return getattr(self.job, name)

            def before_update(self, model: torch.nn.Module) -> None:
                self.job.before_update(model)
                gradient = model.get_parameter("linear.bias").grad
                assert gradient is not None
                gradient.mul_(1.5)

        job, self.job = self.job, Scaling(self.job)  # type: ignore[assignment]
        try:
            return self.honest(step, rounding)
        finally:
            self.job = job


class WrongSum(AtStep):
    """Doubles what one contraction of the backward pass gave, in its result: nothing but numbers differs."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        inexact, count = type(rounding).inexact, 0

        def wrong(x, op_class, floor, place):  # type: ignore[no-untyped-def]
            nonlocal count
            inexact(rounding, x, op_class, floor, place)
            count += 1
            if count == 20:
                with torch.no_grad():
                    x.mul_(2.0)

        rounding.inexact = wrong  # type: ignore[method-assign]
        try:
            return self.honest(step, rounding)
        finally:
            del rounding.inexact  # type: ignore[method-assign]


def poisoned(spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu") -> Session:
    """One sample of step 4 has another label."""
    target = Session(spec, job, dataset).sampler.indices(4)[0]

    def change(indices, batch):  # type: ignore[no-untyped-def]
        batch["labels"][indices == target] = (batch["labels"][indices == target] + 1) % 10
        return batch

    return Session(spec, job, DatasetWith(dataset, change), device)


# cheat -> (session, segment, step, reasons)
CHEATS: dict[str, tuple[Maker, int, int, set[str]]] = {
    "wrong-contraction": (WrongSum, 2, 3, {"result_mismatch"}),
    "wrong-statistics": (TampersStatistics, 2, 3, {"state_mismatch", "result_mismatch", "program_disputed"}),
    "one-ulp": (DriftsOneUlp, 2, 3, {"state_mismatch", "result_mismatch", "program_disputed"}),
    "other-weights": (ReplacesWeights, 2, 4, {"state_mismatch"}),
    "other-program": (AddsToAGradient, 2, 3, {"program_disputed"}),
    "other-label": (poisoned, 2, 4, {"data_disputed"}),
}
