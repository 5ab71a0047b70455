"""Small models as jobs, trained and replayed in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vt_core.engine.rounding import SiteFinding, TrainerRounding
from vt_core.engine.rounding_log import decode_step, encode_step
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import build_spec
from vt_core.training.state import State, StateDigest, digest
from vt_core.verify.strict import StrictRounding

Arrays = Mapping[str, np.ndarray[Any, Any]]
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


class ArrayDataset:
    """Named arrays with the samples along the first axis."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def batch(self, indices: Any, stream: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {name: array[indices] for name, array in self.arrays.items()}

    def manifest(self) -> dict[str, str]:
        return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in self.arrays.items()}


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def whole(high: int, *shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, high, shape)


def mean_square(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Give each output its own pull, so that no gradient is zero by symmetry."""
    output = model(batch["x"])
    target = torch.linspace(-1.0, 1.0, output[0].numel()).reshape(output[0].shape)
    return ((output - target) ** 2).mean()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@dataclass
class TinyJob(Job):
    """A job made of functions; ``batch_size`` samples of ``arrays`` a step."""

    build: Callable[[], nn.Module]
    arrays: Arrays = field(default_factory=lambda: {"x": floats(16, 6)})
    objective: Loss = mean_square
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    batch_size: int = 4
    clip: float | None = None
    rate: Callable[[int], float] | None = None
    train: dict[str, Any] = field(default_factory=dict)

    def build_model(self) -> nn.Module:
        return self.build()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return self.optimizer(model)

    def dataset(self, location: str | None = None) -> Dataset:
        return ArrayDataset(self.arrays)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return self.objective(model, batch)

    def learning_rate(self, step: int) -> float | None:
        return None if self.rate is None else self.rate(step)

    def before_update(self, model: nn.Module) -> None:
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)

    def session(self) -> Session:
        dataset = self.dataset()
        settings = {"seed": 11, "steps": 8, "contractions": "logged", "functions": "logged", **self.train}
        return Session(build_spec(self, dataset, "tests:TinyJob", {}, settings), self, dataset)


@dataclass
class Run:
    """What training left: encoded logs, traces, state and state digests, each by step (0 is the initialisation)."""

    session: Session
    rounding: TrainerRounding
    logs: dict[int, bytes] = field(default_factory=dict)
    traces: dict[int, bytes] = field(default_factory=dict)
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)
    digests: dict[int, StateDigest] = field(default_factory=dict)

    @property
    def roots(self) -> list[str]:
        return [self.digests[s].root.hex() for s in sorted(self.digests)]

    def ran(self, operation: str) -> bool:
        """Whether some step ran an operation whose name starts so."""
        return any(line.startswith(operation) for lines in self.lines.values() for line in lines)


def train(job: TinyJob, steps: int = 3, start: State | None = None) -> Run:
    """Train from the initialisation, or go on after ``start``."""
    session = job.session()
    run = Run(session, TrainerRounding(session.grid, session.spec.policy, True))
    with session.open():
        first = 0
        if start is not None:
            session.restore(start)
            first = start.step + 1
        for step in range(first, steps + 1):
            run.rounding.begin_step(step)
            outcome = session.initialise(run.rounding) if step == 0 else session.run_step(step, run.rounding)
            run.logs[step] = encode_step(run.rounding.end_step())
            run.traces[step] = outcome.trace
            run.lines[step] = session.mode.trace.lines
            run.states[step] = session.capture(step)
            run.digests[step] = digest(run.states[step])
    return run


@dataclass
class Replay:
    """What a replay found; ``disagreements`` counts the entries that the replay needed."""

    roots: list[str]
    traces: dict[int, bytes]
    findings: list[SiteFinding]
    disagreements: int


def replay(job: TinyJob, logs: Mapping[int, bytes]) -> Replay:
    """Run the same steps as the auditor, with the trainer's logs."""
    session = job.session()
    rounding = StrictRounding(session.grid, session.spec.policy, True)
    result = Replay([], {}, [], 0)
    with session.open():
        for step in sorted(logs):
            rounding.begin_replay(decode_step(logs[step]))
            outcome = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
            rounding.end_replay()
            result.findings += rounding.findings
            result.traces[step] = outcome.trace
            result.roots.append(digest(session.capture(step)).root.hex())
    result.disagreements = sum(c.disagreements for c in rounding.counters.by_class.values())
    return result


def assert_replays(job: TinyJob, run: Run) -> None:
    """Assert that a replay in this process finds nothing and ends in the same states."""
    again = replay(job, run.logs)
    assert again.findings == []
    assert again.traces == run.traces
    assert again.roots == run.roots


def assert_on_grid(state: State) -> None:
    """Assert that every floating tensor of a state is stored at the width of the float32 grid."""
    for name, tensor in state.tensors.items():
        if tensor.is_floating_point() and tensor.dim() > 0:
            assert tensor.dtype is torch.float32, name
            assert bool(torch.isfinite(tensor).all()), name
