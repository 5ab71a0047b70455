"""Sessions that end in other states than the agreed one, for disputes: each differs at another kind of record."""

from __future__ import annotations

from collections.abc import Callable

import torch
from support.cheats import AtStep, DatasetWith, DriftsOneUlp, ReplacesWeights, TampersStatistics
from torch import Tensor

from vt_core.engine.plans import Plan
from vt_core.engine.rounding import Rounding
from vt_core.numerics import OpClass
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
    """Doubles what one contraction of the backward pass gave, in its result: nothing but numbers differs.

    In a run with a log that is the 20th logged result, in one without the seventh result of a contraction.
    """

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        inexact, put_on_grid, count = type(rounding).inexact, self.mode.put_on_grid, 0

        def double(x: Tensor) -> None:
            with torch.no_grad():
                x.mul_(2.0)

        def wrong_inexact(x, op_class, bound, place):  # type: ignore[no-untyped-def]
            nonlocal count
            inexact(rounding, x, op_class, bound, place)
            count += 1
            if count == 20:
                double(x)

        def wrong_exact(plan: Plan, tensor: Tensor) -> None:
            nonlocal count
            put_on_grid(plan, tensor)
            if plan.op_class is OpClass.CONTRACTION:
                count += 1
                if count == 7:
                    double(tensor)

        rounding.inexact = wrong_inexact  # type: ignore[method-assign]
        if self.spec.contractions != "logged":
            self.mode.put_on_grid = wrong_exact  # type: ignore[method-assign]
        try:
            return self.honest(step, rounding)
        finally:
            del rounding.inexact  # type: ignore[method-assign]
            self.mode.__dict__.pop("put_on_grid", None)


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
