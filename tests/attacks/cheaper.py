"""Trainers that save money: the published log and trace are those of an honest step, the state is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.cheats import AtStep

from vt_core.engine.rounding import Rounding
from vt_core.training.session import StepOutcome


class Substitutes(AtStep):
    """Takes one step outside the engine, in ``dtype``, and publishes log and trace of the honest one."""

    dtype = torch.float32

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        before = self.capture(step - 1)
        outcome = self.honest(step, rounding)
        trace = self.mode.trace.digest()
        self.restore(before)
        self._convert(self.dtype)
        stream = self.streams.stream("augment", epoch=self.sampler.epoch(step), step=step)
        arrays = self.part(self.dataset.batch(self.sampler.indices(step), stream))
        batch = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
        batch = {n: t.to(self.dtype) if t.is_floating_point() else t for n, t in batch.items()}
        optimizer = self._optimizer
        optimizer.zero_grad(set_to_none=True)
        self.job.loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
        self.spoil()
        optimizer.step()
        self._convert(torch.float32)  # onto the agreed grid
        self._convert(self.spec.compute)
        return StepOutcome(outcome.loss, trace, outcome.operations)

    def part(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Return the part of the batch that is used."""
        return arrays

    def spoil(self) -> None:
        """Change the gradients before they are used."""

    def _convert(self, dtype: torch.dtype) -> None:
        self.model.to(dtype)
        for values in self._optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    values[name] = value.to(dtype)
