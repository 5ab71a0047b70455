"""All attackers on one case, against the honest run and against honest noise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bench.lying_log import attackers
from bench.lying_log.attackers import Liar, OtherMachine
from bench.lying_log.cases import Case, objectives, success, with_steps
from bench.lying_log.compass import Objective
from bench.lying_log.runs import Counts, Outcome, audit, both_tests, distance, parameters, train
from vt_core.engine.profiles import environment_for
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec

PROFILE = "portable"


@dataclass
class Bench:
    """A case that is open: job, data, spec, objectives and the honest run."""

    name: str
    case: Case
    folder: Path
    job: Job = field(init=False)
    dataset: Dataset = field(init=False)
    spec: RunSpec = field(init=False)
    objectives: dict[str, Objective] = field(init=False)

    def __post_init__(self) -> None:
        self.job, self.dataset, self.spec = self.case.open(self.folder)
        self.objectives = objectives(self.case, self.dataset, self.spec)
        self.honest = train(self.spec, self.job, self.dataset, self.folder / self.name, None)

    def model(self, tensors: dict[str, Tensor]) -> nn.Module:
        """Return a plain model with the parameters and buffers of a checkpoint, in the compute dtype."""
        previous = torch.get_default_dtype()
        torch.set_default_dtype(self.spec.compute)
        try:
            model = self.job.build_model()
        finally:
            torch.set_default_dtype(previous)
        wanted = {n.split(".", 1)[1]: t for n, t in tensors.items() if n.startswith(("param.", "buffer."))}
        model.load_state_dict(wanted, strict=False)
        return model

    def run(self, label: str, liar: OtherMachine | None) -> Outcome:
        """Train with ``liar``, audit, and compare with the honest run."""
        run = self.honest
        if liar is not None:
            run = train(self.spec, self.job, self.dataset, self.folder / f"{self.name}-lying", liar)
        results, counts = audit(self.spec, self.job, self.dataset, run)
        by_entries, by_uses = both_tests(counts)
        mine, theirs = run.final(), self.honest.final()
        l2, largest = distance(parameters(mine), parameters(theirs))
        model, honest = self.model(mine), self.model(theirs)
        held, door = self.objectives["hurt"], self.objectives["backdoor"]
        with torch.no_grad():
            loss = -float(held.value(self.job, model)) + float(held.value(self.job, honest))
            gain = float(door.value(self.job, honest)) - float(door.value(self.job, model))
        plausible = all(r.reason is None for r in results)
        return Outcome(
            self.name, label, plausible, counts, by_entries, by_uses, l2, largest, loss, gain,
            success(model, door),
        )  # fmt: skip

    def liar(self, kind: type[OtherMachine], objective: Objective, only: str | None = None) -> OtherMachine:
        """Return an attacker of ``kind`` for this case."""
        grid, policy = Session(self.spec, self.job, self.dataset).grid, self.spec.policy
        if issubclass(kind, attackers.GradientSign):
            return kind(grid, policy, self.spec.fingerprints, objective, only)
        return kind(grid, policy, self.spec.fingerprints)


ATTACKERS: tuple[tuple[str, type[OtherMachine] | None, str, bool], ...] = (
    ("honest", None, "hurt", False),
    ("other_machine", OtherMachine, "hurt", False),
    ("coins", attackers.Coins, "hurt", False),
    ("one_direction", attackers.OneDirection, "hurt", False),
    ("gradient_sign", attackers.GradientSign, "hurt", False),
    ("backdoor", attackers.GradientSign, "backdoor", False),
    ("last_layer_only", attackers.GradientSign, "hurt", True),
    ("below_threshold", attackers.BelowEntries, "backdoor", False),
    ("padded", attackers.Padded, "backdoor", False),
    ("below_both", attackers.BelowBoth, "backdoor", False),
    ("fine_only", attackers.FineOnly, "backdoor", False),
)
"""Name, strategy, objective, and whether only the last module is touched; the first two are honest."""


def attack(bench: Bench, names: tuple[str, ...] | None = None) -> list[Outcome]:
    """Run the attackers called ``names`` (all by default)."""
    outcomes = []
    for label, kind, goal, last in ATTACKERS:
        if names is not None and label not in names:
            continue
        objective = bench.objectives[goal]
        liar = None if kind is None else bench.liar(kind, objective, bench.case.last if last else None)
        outcomes.append(bench.run(label, liar))
    return outcomes


@dataclass(frozen=True)
class Noise:
    """A difference between two honest trainings."""

    case: str
    what: str
    l2: float
    largest: float
    loss: float
    gain: float


def honest_noise(bench: Bench) -> list[Noise]:
    """Compare honest trainings from one start: other CPU profile, other precision, other seed, without the engine."""
    found: dict[str, dict[str, Tensor]] = {}
    for profile in ("default", PROFILE):
        for dtype in ("float32", "float64"):
            out = bench.folder / f"plain-{profile}-{dtype}.safetensors"
            _child(profile, "plain", bench, dtype, str(out))
            found[f"{profile} {dtype}"] = load_file(out)
    found["verified"] = {n: t for n, t in bench.honest.final().items() if n.startswith(("param.", "buffer."))}
    other = with_steps(bench.case, bench.spec.steps, seed=bench.spec.seed + 1)
    job, dataset, spec = other.open(bench.folder)
    found["other seed"] = train(spec, job, dataset, bench.folder / "other-seed", None).final()
    pairs = (
        ("plain float64, two profiles", "default float64", f"{PROFILE} float64"),
        ("plain float32, two profiles", "default float32", f"{PROFILE} float32"),
        ("plain, float32 and float64", "default float32", "default float64"),
        ("verified and plain float64", "verified", "default float64"),
        ("verified, two seeds", "verified", "other seed"),
    )
    held, goal = bench.objectives["hurt"], bench.objectives["backdoor"]
    rows = []
    for what, a, b in pairs:
        l2, largest = distance(parameters(found[a]), parameters(found[b]))
        first, second = bench.model(found[a]), bench.model(found[b])
        with torch.no_grad():
            loss = float(held.value(bench.job, first)) - float(held.value(bench.job, second))
            gain = float(goal.value(bench.job, first)) - float(goal.value(bench.job, second))
        rows.append(Noise(bench.name, what, l2, largest, abs(loss), abs(gain)))
    return rows


def honest_elsewhere(bench: Bench) -> Counts:
    """Audit the honest run under another CPU profile; returns the counts. Raises ValueError if it is not verified."""
    bench.honest.save_records()
    out = bench.folder / f"{bench.name}-elsewhere.json"
    _child(PROFILE, "audit", bench, str(out))
    plain: dict[str, Any] = json.loads(out.read_bytes())
    if any(plain["reasons"]):
        raise ValueError(f"{bench.name}: the honest run is not verified on {PROFILE}: {plain['reasons']}")
    counts: Counts = plain["counts"]
    return counts


def _child(profile: str, what: str, bench: Bench, *more: str) -> None:
    environment = environment_for(profile) | {"OMP_WAIT_POLICY": "PASSIVE"}
    here = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "bench.lying_log.child", what, bench.name, str(bench.spec.steps)]
    subprocess.run([*command, str(bench.folder), *more], env={**os.environ, **environment}, cwd=here, check=True)


@dataclass(frozen=True)
class OneStep:
    """What the log can do in the first step, to first order: -<v, change of the weights>, v the objective's gradient.

    ``step`` is what the agreed step itself does, ``chance`` the root mean square of coins, ``free`` and ``below`` half
    the difference between moving with and against the compass: without a limit, and as far as the tests let pass. In
    nats.
    """

    case: str
    step: float
    chance: float
    free: float
    below: float


def one_step(name: str, case: Case, folder: Path, objective: str = "backdoor") -> OneStep:
    """Measure :class:`OneStep` for a case."""
    bench = Bench(name, with_steps(case, 1), folder)
    goal = bench.objectives[objective]
    start, honest = load_checkpoint(bench.honest.segment(0)).tensors, parameters(bench.honest.final())
    model = bench.model(start)
    goal.value(bench.job, model).backward()  # type: ignore[no-untyped-call]
    v = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}

    def gain(after: dict[str, Tensor], before: dict[str, Tensor]) -> float:
        return -sum(float(((after[n] - before[n]) * v[n]).sum()) for n in v)

    def of(kind: type[Liar], sign: float, seed: int = 0) -> float:
        liar = bench.liar(kind, goal)
        assert isinstance(liar, Liar)
        liar.sign, liar.random = sign, np.random.Generator(np.random.PCG64(seed))
        run = train(bench.spec, bench.job, bench.dataset, bench.folder / "one-step", liar)
        return gain(parameters(run.final()), honest)

    chance = [of(attackers.Coins, 1.0, seed) for seed in range(4)]
    free, below = ((of(kind, 1.0) - of(kind, -1.0)) / 2 for kind in (attackers.GradientSign, attackers.BelowBoth))
    rms = float(np.sqrt(np.mean(np.square(chance))))
    return OneStep(name, gain(honest, parameters(start)), rms, free, below)
