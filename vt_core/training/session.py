"""A training session: one model on one device, run step by step inside the engine.

Trainer and auditor run the same session with another rounding strategy. A step is a pure function of
(spec, state, step number, data): the batch, the randomness and the learning rate are all derived from the step
number, and :meth:`Session.restore` brings back everything else.
"""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from vt_core.engine import optimizers
from vt_core.engine.functions import CommonForms
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.profiles import CHANNELS_LAST
from vt_core.engine.rounding import DryRounding, Rounding
from vt_core.engine.settings import (
    common_settings,
    force_single_tensor,
    refuse_autocast,
    refuse_unsupported,
    resolve_device,
)
from vt_core.engine.streams import Streams
from vt_core.errors import SpecError
from vt_core.numerics import Grid
from vt_core.training.job import Dataset, Job
from vt_core.training.live_digest import GuardedMode, LiveDigest
from vt_core.training.sampler import Sampler
from vt_core.training.spec import RunSpec
from vt_core.training.state import (
    State,
    StateDigest,
    capture,
    check_on_grid,
    digest_live,
    put_new_on_grid,
    restore,
    storages,
)


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves besides the state: its loss and the digest of its trace."""

    loss: float
    trace: bytes
    operations: int


class Session:
    """Model, optimizer and data of one run under the engine; use :meth:`open` around the steps."""

    def __init__(self, spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu") -> None:
        """Prepare a session; nothing is built yet. Raises SpecError for a device that is not there."""
        self.spec, self.job, self.dataset = spec, job, dataset
        self.device = resolve_device(device)
        self.grid = Grid.parse(spec.grid)
        self.streams = Streams(spec.seed)
        self.sampler = Sampler(self.streams, spec.dataset_size, spec.batch_size)
        self.tracker = ModuleTracker()
        # Memory layout is a matter of the machine, not of the spec: the same numbers, other kernels.
        self._channels_last = os.environ.get(CHANNELS_LAST) == "1"
        self._dry = DryRounding(self.grid, spec.policy, False)
        self._guard = GuardedMode(
            spec.compute, self._dry, self.streams, self.tracker, spec.promote, spec.contractions, spec.functions
        )
        self.mode: VerifiedMode = self._guard  # a recorder puts its own in this place
        self.model: nn.Module = nn.Identity()
        self.optimizer: torch.optim.Optimizer | None = None

    @contextmanager
    def open(self) -> Iterator[Session]:
        """Hold the global settings of PyTorch that all steps need; restores them at the end."""
        with common_settings(self.spec.compute):
            yield self

    def initialise(self, rounding: Rounding) -> StepOutcome:
        """Run step 0: build the model, its weights drawn from the run's streams, rounded and logged like a step."""
        outcome = self._build(rounding, skip_random=False)
        self._end_step(rounding, {})
        return outcome

    def restore(self, state: State) -> None:
        """Build the model without drawing its weights and load ``state`` into it.

        Raises EvidenceError("state_mismatch") if the state does not fit the job.
        """
        self._guard.settle()
        self._build(self._dry, skip_random=True)
        restore(state, self.model, self._optimizer, self.spec.compute)

    def capture(self, step: int) -> State:
        """Return a snapshot of the state after ``step``."""
        return capture(step, self.model, self._optimizer, self.grid)

    def digest(self, step: int) -> StateDigest:
        """Return the digest of the state after ``step``, without making a snapshot."""
        return digest_live(step, self.model, self._optimizer, self.grid)

    def start_digest(self, step: int) -> LiveDigest:
        """Start hashing the state after ``step``; the next step may run meanwhile (see ``live_digest.py``)."""
        self._guard.settle()
        self._guard.pending = started = LiveDigest(step, self.model, self._optimizer, self.grid)
        return started

    def settle(self) -> None:
        """Wait for a digest that is still in the making; the next write to the state would."""
        self._guard.settle()

    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        """Run training step ``step`` (from 1): batch, forward, backward, update.

        The caller has begun the step on ``rounding``. Raises UnsupportedOperation, PrecisionError or OffGridError,
        which name the operation and module.
        """
        epoch = self.sampler.epoch(step)
        self.mode.begin_step(epoch, step)
        batch = self._batch(step, epoch, rounding)
        optimizer = self._optimizer
        rate = self.job.learning_rate(step)
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = float(np.float32(rate))
        # Of all parameters: a gradient left on one that the optimizer does not have would be hidden state.
        self.model.zero_grad(set_to_none=True)
        before = storages(self.model, optimizer)
        with self._engine(rounding):
            self.tracker.phase = "forward"
            refuse_autocast(self.device, type(self.model).__name__)
            loss = self.job.loss(self.model, batch)
            if loss.dim() != 0:
                raise SpecError(f"the job's loss has shape {tuple(loss.shape)}; it must be a scalar")
            self.tracker.phase = "backward"
            loss.backward()  # type: ignore[no-untyped-call]
            self._guard.settle()
            self.tracker.phase = "optimizer"
            self.job.before_update(self.model)
            optimizers.step(optimizer, self.spec.compute)
        self._end_step(rounding, before)
        return StepOutcome(float(loss.detach()), self.mode.trace.digest(), len(self.mode.trace))

    # Parts

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise SpecError("the session has no model yet: call initialise() or restore() first")
        return self.optimizer

    @contextmanager
    def _engine(self, rounding: Rounding) -> Iterator[None]:
        self.mode.rounding = rounding
        with ExitStack() as stack:
            stack.enter_context(self.tracker)
            stack.enter_context(torch.enable_grad())
            stack.enter_context(CommonForms())
            stack.enter_context(self.mode)
            yield

    def _build(self, rounding: Rounding, skip_random: bool) -> StepOutcome:
        self.mode.begin_step(0, 0)
        self.mode.skip_random = skip_random
        self.mode.drawn.clear()
        self.tracker.phase = "init"
        try:
            with self._engine(rounding):
                model = self.job.build_model()
        finally:
            self.mode.skip_random = False
        refuse_unsupported(model)
        _refuse_hidden_random_tensors(model, self.mode.drawn)
        self.model = model.to(self.device).train()
        if self._channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = self.job.build_optimizer(self.model)
        force_single_tensor(self.optimizer)
        self.tracker.watch(self.model)
        return StepOutcome(float("nan"), self.mode.trace.digest(), len(self.mode.trace))

    def _end_step(self, rounding: Rounding, before: Container[int]) -> None:
        put_new_on_grid(self.model, self._optimizer, self.grid, before, rounding)
        check_on_grid(self.model, self._optimizer, self.grid, self.mode.last_writer)

    def _batch(self, step: int, epoch: int, rounding: Rounding) -> dict[str, Tensor]:
        """Read the batch and put it on the grid: rationals like k/255 would meet exact ties in the first layer."""
        stream = self.streams.stream("augment", epoch=epoch, step=step)
        arrays = self.dataset.batch(self.sampler.indices(step), stream)
        batch = {}
        for name in sorted(arrays):
            tensor = torch.from_numpy(np.ascontiguousarray(arrays[name]))

            def place(name: str = name) -> tuple[str, str]:
                return f"batch[{name}]", "data"

            if tensor.is_floating_point():
                tensor = tensor.to(self.spec.compute, copy=True)
                rounding.plain(tensor, place)
            else:
                rounding.note(zlib.crc32(np.ascontiguousarray(arrays[name]).tobytes()), place)
            tensor = tensor.to(self.device)
            if self._channels_last and tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            batch[name] = tensor
        return batch


def _refuse_hidden_random_tensors(model: nn.Module, drawn: list[weakref.ref[Tensor]]) -> None:
    """A random tensor kept as a plain attribute is not part of the state: a resumed run would not have it."""
    kept = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    for module_name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not isinstance(value, Tensor) or value.untyped_storage().data_ptr() in kept:
                continue
            if any(ref() is value for ref in drawn):
                raise SpecError(
                    f"module {module_name or type(model).__name__!r} keeps the random tensor {attribute!r} as a plain "
                    f"attribute, outside the state. Register it: self.register_buffer({attribute!r}, tensor)."
                )
