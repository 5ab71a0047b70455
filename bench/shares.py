"""Where a verified step spends its time: kernels, optimizer, rounding, log, state commitment, and the rest.

Measured on the last step, which no median counts, for looking costs time. Kernels are timed by a dispatch mode below
the engine's own, so it sees what the engine runs; the rest is dispatch, autograd and reading the batch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode

from vt_core.engine import optimizers
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.rounding_log import LogWriter
from vt_core.numerics import OpClass
from vt_core.training.session import Session


class _Kernels(TorchDispatchMode):
    """Times every operation that the engine hands on."""

    def __init__(self, shares: Shares) -> None:
        super().__init__()
        self._shares = shares

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._shares.timed("kernels", func)(*args, **(kwargs or {}))


class Shares:
    """Patches a session's parts for one step; use as a context around the segment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside: list[str] = []
        self._stack = ExitStack()
        self._began = 0.0

    def __enter__(self) -> Shares:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def between_steps(self, step: int, last: int) -> None:
        """Call after each step: the one before the last starts the measurement, the last ends it."""
        if step == last - 1:
            self._patch()
            self._began = time.perf_counter()
        elif step == last:
            self._seconds["step"] = time.perf_counter() - self._began

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, its seconds added to ``name`` and taken from whatever part called it."""

        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            self._inside.append(name)
            try:
                return call(*args, **kwargs)
            finally:
                self._inside.pop()
                spent = time.perf_counter() - began
                self._seconds[name] += spent
                if self._inside:
                    self._seconds[self._inside[-1]] -= spent

        return run

    def found(self) -> dict[str, float]:
        """Return the share of each part in the step's time."""
        whole = self._seconds.pop("step")
        self._seconds["dispatch, autograd, batch"] = self._seconds.pop("steps")
        self._seconds["state commitment"] = whole - sum(self._seconds.values())
        return {name: seconds / whole for name, seconds in sorted(self._seconds.items())}

    def _patch(self) -> None:
        session, mode = self._session, self._session.mode

        def run_step(step: int, rounding: Any) -> Any:
            with _Kernels(self):
                return original(step, rounding)

        original = session.run_step
        replaced = [
            (session, "run_step", self.timed("steps", run_step)),
            (TrainerRounding, "inexact", self._method("rounding", TrainerRounding.inexact)),
            (TrainerRounding, "plain", self._method("rounding", TrainerRounding.plain)),
            (TrainerRounding, "end_step", self._method("log", TrainerRounding.end_step)),
            (LogWriter, "append", self._method("log", LogWriter.append)),
            (optimizers, "step", self.timed("optimizer", optimizers.step)),
        ]
        for where, name, value in replaced:
            self._stack.enter_context(mock.patch.object(where, name, value))
        if OpClass.CONTRACTION in mode.treatments:  # exact contractions: quantisation is part of them
            exact = mode.treatments[OpClass.CONTRACTION]
            table = {**mode.treatments, OpClass.CONTRACTION: self.timed("kernels", exact)}
            self._stack.enter_context(mock.patch.object(mode, "treatments", table))

    def _method(self, name: str, method: Any) -> Any:
        return lambda self_, *args: self.timed(name, method)(self_, *args)
