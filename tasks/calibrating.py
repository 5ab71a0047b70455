"""Calibration of a job's tolerances: processes under several CPU profiles or devices, and what they measured."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.reporter import reporter
from vt_core.engine.profiles import PROFILES, environment_for
from vt_core.errors import SpecError
from vt_core.numerics import OpClass, TolerancePolicy
from vt_core.verify.calibration import Calibration
from vt_core.verify.divergence import Measured, Place
from vt_core.verify.log_cost import LogCost
from vt_core.verify.proposal import (
    ClassProposal,
    check_safety,
    propose,
    proposed_policy,
    wider_than_default,
)

AGAINST = ("portable", "mkl-avx", "aten-avx2", "nhwc")
"""Profiles that are compared with the default one unless others are named."""

PERMUTED = "permuted"
_WORST = 10


@dataclass(frozen=True)
class Side:
    """One comparison: its name, what was measured, and where it differs where nothing may."""

    name: str
    measured: Measured
    parted: tuple[int, int, str, str] | None


@dataclass(frozen=True)
class Result:
    """What a calibration found."""

    head: Mapping[str, Any]
    plan: Calibration
    safety: int
    sides: Sequence[Side]
    measured: Measured
    proposals: Sequence[ClassProposal]

    @property
    def sufficient(self) -> bool:
        """Whether the job's own policy covers everything that was observed, on paths that never parted."""
        return all(p.state != "insufficient" for p in self.proposals) and all(s.parted is None for s in self.sides)

    def policy(self) -> TolerancePolicy:
        """Return the proposed policy. Raises SpecError if no tolerance covers what was observed."""
        parted = [s for s in self.sides if s.parted is not None]
        if parted:
            step, _, op, module = parted[0].parted or (0, 0, "", "")
            raise SpecError(
                f"{parted[0].name} has other bits in step {step} at {op}{f' in {module}' if module else ''}, where "
                f"they must be the same everywhere: no tolerance mends that ('vt doctor' checks operations one by one)"
            )
        return proposed_policy(self.proposals)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON."""
        try:
            policy: TolerancePolicy | None = self.policy()
            problem = None
        except SpecError as error:
            policy, problem = None, str(error)
        return {
            **self.head,
            "steps": self.plan.steps,
            "samples": self.plan.samples,
            "permutations": self.plan.permutations,
            "safety": self.safety,
            "sufficient": self.sufficient,
            "classes": {str(p.op_class): p.to_json() for p in self.proposals},
            "sides": [_side_json(side) for side in self.sides],
            "worst": [_place_json(place) for place in self.measured.worst(_WORST)],
            "bytes_per_step": {"current": self._bytes(False), "proposed": self._bytes(True)},
            "policy": None if policy is None else policy.to_json(),
            "wider_than_default": [] if policy is None else wider_than_default(policy, self.head["compute_dtype"]),
            "problem": problem,
        }

    def _bytes(self, proposed: bool) -> float:
        return sum(
            choice.size
            for p in self.proposals
            for choice in p.choices
            if choice.tolerance == (p.proposed if proposed else p.current)
        )


def calibrate(
    params: Path, against: Sequence[str] = (), plan: Calibration | None = None, safety: int = 8,
    device: str | None = None, location: str | None = None,
) -> Result:  # fmt: skip
    """Calibrate the job of ``params``: record under profile ``default``, compare with each of ``against``.

    ``against`` names CPU profiles and devices (``cuda``); empty: the usual profiles. ``device`` is where the recording
    runs (None: as the parameters say), ``location`` where the data lies. Raises SpecError.
    """
    plan = plan or Calibration()
    check_plan(plan)
    check_safety(safety)
    names = list(dict.fromkeys(against or AGAINST))
    for name in names:
        _environment(name)
    with tempfile.TemporaryDirectory(prefix="vt-calibrate-") as folder:
        run = _Run(params.resolve(), Path(folder), plan, location)
        recorded = run.process("record", "default", device)
        sides = [run.compare(name) for name in names]
    permuted = Measured.from_json(recorded["permuted"])
    if plan.permutations:
        sides.append(Side(PERMUTED, permuted, None))
    measured = Measured()
    for side in sides:
        measured.merge(side.measured)
    policy = TolerancePolicy.from_json(recorded["policy"])
    costs = [(OpClass(c), LogCost.from_json(cost)) for c, cost in recorded["costs"]]
    proposals = propose(measured, costs, policy, recorded["compute_dtype"], safety, plan.steps)
    head = {name: recorded[name] for name in ("reference", "compute_dtype", "grid", "contractions")}
    return Result(head, plan, safety, sides, measured, proposals)


def check_plan(plan: Calibration) -> None:
    """Raise SpecError for counts out of range."""
    for name, value, least, most in (
        ("steps", plan.steps, 1, 10_000), ("samples", plan.samples, 16, 1 << 24),
        ("permutations", plan.permutations, 0, 64),
    ):  # fmt: skip
        if not least <= value <= most:
            raise SpecError(f"{name} must be from {least} to {most}, not {value}")


@dataclass(frozen=True)
class _Run:
    """The processes of one recording; they hand over files in ``folder``."""

    params: Path
    folder: Path
    plan: Calibration
    location: str | None

    def compare(self, name: str) -> Side:
        device = "cpu" if name in PROFILES else name
        plain = self.process("compare", name, device)
        parted = plain["parted"]
        return Side(name, Measured.from_json(plain["measured"]), None if parted is None else tuple(parted))

    def process(self, part: str, name: str, device: str | None) -> dict[str, Any]:
        """Run one process to its end, telling its progress. Raises SpecError with what it says went wrong."""
        order, result = self.folder / "order.json", self.folder / "result.json"
        errors = self.folder / "errors.txt"
        result.unlink(missing_ok=True)
        plain = {
            "part": part, "params": str(self.params), "location": self.location, "device": device,
            "plan": dataclasses.asdict(self.plan), "folder": str(self.folder), "result": str(result),
        }  # fmt: skip
        order.write_text(json.dumps(plain), encoding="utf-8")
        report = reporter.get()
        report.start("record" if part == "record" else f"against {name}", self.plan.steps + 1, 0)
        command = [sys.executable, "-m", "tasks.calibration_worker", str(order)]
        with errors.open("wb") as target, subprocess.Popen(
            command, env=_environment(name), stdout=subprocess.PIPE, stderr=target, text=True
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith("step "):
                        report.advance()
            except BaseException:
                process.kill()
                raise
        if not result.exists():
            said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise SpecError(f"the process that should {part} under {name} failed: {' '.join(said) or 'it was killed'}")
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if "error" in found:
            raise SpecError(f"{part} under {name}: {found['error']}")
        return found


def _environment(name: str) -> dict[str, str]:
    """Return the environment for a profile, or the default one for a device. Raises SpecError for anything else."""
    is_device = name == "cpu" or name.partition(":")[0] == "cuda"
    environment = environment_for("default" if is_device else name)
    # Tasks and flows are found where this process found them, wherever the user stands.
    paths = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def _side_json(side: Side) -> dict[str, Any]:
    worst = side.measured.worst(1)
    parted = None
    if side.parted is not None:
        parted = dict(zip(("step", "site", "op", "module"), side.parted, strict=True))
    return {
        "name": side.name,
        "compared": sum(p.compared for p in side.measured.places.values()),
        "headroom": worst[0].tolerances.largest if worst else 0.0,
        "op": worst[0].op if worst else "",
        "module": worst[0].module if worst else "",
        "classes": {str(c): side.measured.total(c).tolerances.largest for c in OpClass},
        "parted": parted,
    }


def _place_json(place: Place) -> dict[str, Any]:
    return {
        "op": place.op, "module": place.module, "op_class": str(place.op_class), "compared": place.compared,
        "largest": place.scaled.largest, "headroom": place.tolerances.largest,
    }  # fmt: skip
