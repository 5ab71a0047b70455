"""Recording and comparing: injected errors are found at their size and place, and both sides keep the same bits."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.scale import Bound
from vt_core.numerics import DEFAULT, Grid, OpClass, Tolerance, max_magnitude, round_plain_, trainer_round_
from vt_core.numerics.scale import scale_exponent, stepped
from vt_core.training.job import load_job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, build_spec
from vt_core.verify.calibration import Calibration, ComparingRounding, RecordingRounding, compare, record
from vt_core.verify.log_cost import LogCost
from vt_core.verify.proposal import propose, proposed_policy

C = OpClass.CONTRACTION
PAIRS = [
    ("float64", "float32"), ("float64", "bfloat16"), ("float64", "float16"), ("float64", "float32-d8"),
    ("float32", "bfloat16"), ("float32", "float16"), ("float32", "float32-d8"),
]  # fmt: skip
COMPUTE = {"float64": torch.float64, "float32": torch.float32}


def place() -> tuple[str, str]:
    return "aten.mm.default", "linear"


def bits(x: Tensor) -> list[int]:
    return x.contiguous().view(torch.int64 if x.dtype == torch.float64 else torch.int32).flatten().tolist()


def tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, 65520.0, 1.5]
    return {
        "large": some(70, 71), "one": some(1), "scalar": some(), "transposed": some(9, 5).t(), "strided": some(40)[::3],
        "nhwc": some(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "special": torch.tensor(special, dtype=torch.float64).to(dtype), "zeros": torch.zeros(7, dtype=dtype),
    }  # fmt: skip


def recorded(folder: Path, values: dict[str, Tensor], compute: str, grid: str, samples: int = 64) -> list[Tensor]:
    """Record ``values`` as the sites of step 1 and return what they were rounded to."""
    rounding = RecordingRounding(Grid.parse(grid), DEFAULT[compute], Calibration(samples=samples), folder)
    rounding.begin_step(1)
    results = []
    for value in values.values():
        x = value.clone(memory_format=torch.preserve_format)
        rounding.inexact(x, C, Bound(), place)
        results.append(x)
    rounding.end_step()
    return results


@pytest.mark.parametrize(("compute", "grid"), PAIRS)
def test_the_other_side_goes_on_with_the_recorded_bits(tmp_path: Path, compute: str, grid: str) -> None:
    values = tensors(COMPUTE[compute])
    results = recorded(tmp_path, values, compute, grid)
    rounding = ComparingRounding(Grid.parse(grid), DEFAULT[compute], tmp_path)
    rounding.begin_step(1)
    for value, wanted in zip(values.values(), results, strict=True):
        own = value.clone(memory_format=torch.preserve_format)
        rounded, tolerance = own.clone(), DEFAULT[compute][C]
        scale = scale_exponent(max_magnitude(own), own.dtype)
        round_plain_(rounded, stepped(Grid.parse(grid), tolerance, scale), False)
        assert bits(rounded) == bits(wanted)
        own.mul_(1.01)  # far beyond any tolerance
        rounding.inexact(own, C, Bound(), place)
        assert bits(own) == bits(wanted)
    rounding.end_step()
    assert rounding.parted is None
    small = sum(v.numel() for name, v in values.items() if name != "large")
    assert small + 64 < rounding.measured.total(C).compared <= small + 64 + 64, "a sample, and the largest 64"


@pytest.mark.parametrize("compute", COMPUTE)
def test_an_injected_error_is_measured_exactly(tmp_path: Path, compute: str) -> None:
    unit = {"float64": 2.0**-50, "float32": 2.0**-21}[compute]
    x = torch.linspace(-3.9, 3.9, 3000, dtype=COMPUTE[compute]).reshape(50, 60)
    x[7, 7] = 3.5
    recorded(tmp_path, {"x": x}, compute, "bfloat16", samples=4000)
    rounding = ComparingRounding(Grid.parse("bfloat16"), DEFAULT[compute], tmp_path)
    rounding.begin_step(1)
    own = x.clone()
    own[7, 7] += 4.0 * unit
    rounding.inexact(own, C, Bound(), place)
    found = rounding.measured.total(C)
    atol = DEFAULT[compute].tolerances[C].atol
    assert (found.scaled.largest, found.tolerances.largest) == (unit, unit / atol)  # the scale is 4
    assert (found.op, found.module) == place() and found.scaled.quantile(0.999) == 0.0


def test_the_largest_elements_are_always_compared(tmp_path: Path) -> None:
    x = torch.ones(1 << 20, dtype=torch.float64)
    x[777_777] = 2.0
    recorded(tmp_path, {"x": x}, "float64", "float32")
    rounding = ComparingRounding(Grid.parse("float32"), DEFAULT["float64"], tmp_path)
    rounding.begin_step(1)
    x[777_777] += 2.0**-40
    rounding.inexact(x, C, Bound(), place)
    assert rounding.measured.total(C).scaled.largest == 2.0**-41


def test_other_bits_where_no_tolerance_applies_part_the_paths(tmp_path: Path) -> None:
    grid, policy = Grid.parse("float32"), DEFAULT["float64"]
    first = RecordingRounding(grid, policy, Calibration(), tmp_path)
    second = ComparingRounding(grid, policy, tmp_path)
    x = torch.ones(5, dtype=torch.float64)
    first.begin_step(1)
    first.plain(x.clone(), lambda: ("aten.mul.Tensor", "a"))
    first.plain(x.clone(), lambda: ("aten.mul.Tensor", "b"))
    first.inexact(x.clone(), C, Bound(), place)
    first.end_step()
    second.begin_step(1)
    second.plain(x.clone(), lambda: ("aten.mul.Tensor", "a"))
    second.plain(x * 1.5, lambda: ("aten.mul.Tensor", "b"))
    second.inexact(x * 3, C, Bound(), place)
    assert second.parted == (1, 1, "aten.mul.Tensor", "b")
    assert second.measured.total(C).compared == 0, "what follows from another input says nothing"


# Against a real job, in one process: no divergence but that of reordered reductions.


def digits(**train: Any) -> tuple[Session, RunSpec]:
    args = {"batch_size": 16, "width": 4}
    job = load_job("vt_core.jobs.digits:DigitsJob", args)
    dataset = job.dataset(None)
    train = {"seed": 3, "steps": 6, "contractions": "logged", "functions": "logged", **train}
    spec = build_spec(job, dataset, "vt_core.jobs.digits:DigitsJob", args, train)
    return Session(spec, job, dataset), spec


@pytest.mark.parametrize(
    "train", [{}, {"compute_dtype": "float32", "grid": "bfloat16"}, {"contractions": "exact"}], ids=str
)
def test_recording_trains_as_a_trainer_does(tmp_path: Path, train: dict[str, Any]) -> None:
    session, spec = digits(**train)
    plan = Calibration(steps=2, permutations=1)
    with session.open():
        found = record(session, plan, tmp_path)
        recorded_state = [p.detach().clone() for p in session.model.parameters()]
    trainer, _ = digits(**train)
    with trainer.open():
        rounding = TrainerRounding(trainer.grid, spec.policy, True)
        for step in range(3):
            rounding.begin_step(step)
            trainer.initialise(rounding) if step == 0 else trainer.run_step(step, rounding)
            rounding.end_step()
        assert [bits(p.detach()) for p in trainer.model.parameters()] == [bits(p) for p in recorded_state]
    classes = {p.op_class for p in found.permuted.places.values() if p.tolerances.largest > 0}
    exact = train.get("contractions") == "exact"
    assert OpClass.REDUCTION in classes and (C in classes) != exact
    again, _ = digits(**train)
    with again.open():
        compared = compare(again, plan, tmp_path)
    assert compared.parted is None
    assert all(p.tolerances.largest == 0.0 for p in compared.measured.places.values()), "one machine, one order"
    assert sum(p.compared for p in compared.measured.places.values()) > 10_000


def test_expected_entries_are_those_that_a_trainer_writes(tmp_path: Path) -> None:
    """Of the same two steps, for the policy itself and for narrower ones."""
    session, spec = digits(compute_dtype="float32", grid="bfloat16")
    plan = Calibration(steps=2, permutations=0)
    with session.open():
        costs = record(session, plan, tmp_path).costs
    for shift in (0, -2, -5):
        policy = {
            c.value: dataclasses.replace(
                t, rtol_exp=None if t.rtol_exp is None else t.rtol_exp + shift, atol_exp=t.atol_exp + shift
            ).to_json()
            for c, t in spec.policy.tolerances.items()
        }
        trainer, narrow = digits(compute_dtype="float32", grid="bfloat16", policy=policy)
        rounding = TrainerRounding(trainer.grid, narrow.policy, True)
        with trainer.open():
            rounding.begin_step(0)
            trainer.initialise(rounding)
            before = {c: n.entries for c, n in rounding.counters.by_class.items()}
            for step in (1, 2):
                rounding.begin_step(step)
                trainer.run_step(step, rounding)
        for op_class in (C, OpClass.REDUCTION):
            real = rounding.counters.by_class[op_class].entries - before[op_class]
            expected = sum(cost.entries(shift) for c, cost in costs.values() if c == op_class)
            assert expected == pytest.approx(real, rel=0.1, abs=3 * real**0.5), (shift, op_class)


@pytest.mark.parametrize("grid", ["float32", "bfloat16"])
def test_cost_of_zeros_and_ties(grid: str) -> None:
    target, tolerance = Grid.parse(grid), DEFAULT["float64"].tolerances[C]
    tie = 1.0 + 2.0**-target.precision  # half way between two grid values
    zeros, ties = LogCost(), LogCost()
    zeros.add(np.zeros(100), 1000, tolerance, 0, target)
    ties.add(np.full(50, tie), 1000, tolerance, 0, target)
    assert [zeros.entries(s) for s in (-20, 0, 20)] == [0.0, 0.0, 0.0]
    assert ties.entries(-20) == pytest.approx(1000.0, rel=0.01) and ties.entries(0) == 1000.0
    empty = LogCost.from_json(json.loads(json.dumps(LogCost().to_json())))
    assert empty.entries(0) == 0.0 and empty.bits(0) == 0.0
    infinite = LogCost()
    infinite.add(np.array([math.inf, math.nan]), 2, tolerance, 0, target)
    assert infinite.entries(0) == 0.0


def test_cost_of_what_rounds_to_zero_is_that_of_a_trainer() -> None:
    """Logged where tau reaches the first grid value, and no longer where tau dwarfs the value (the zero rule)."""
    grid, tolerance = Grid.parse("float16"), Tolerance(None, -44)
    x = torch.full((10,), 2.0**-30, dtype=torch.float64)
    cost = LogCost()
    cost.add(x.numpy(), 10, tolerance, 0, grid)
    for shift, logged in ((10, 0), (22, 10), (26, 0)):
        entries = trainer_round_(x.clone(), Tolerance(None, -44 + shift), grid, False, 1.0).entries
        assert (0 if entries is None else entries.positions.size) == logged == cost.entries(shift)


def test_cost_grows_with_the_tolerance_and_survives_a_file() -> None:
    cost = LogCost()
    x = np.random.Generator(np.random.PCG64(1)).normal(size=5000)
    cost.add(x, 1_000_000, Tolerance(None, -44), 3, Grid.parse("float32"))
    same = LogCost.from_json(json.loads(json.dumps(cost.to_json())))
    entries = [cost.entries(s) for s in range(-64, 65)]
    assert entries == sorted(entries) and entries[-1] == 1_000_000
    assert entries == [same.entries(s) for s in range(-64, 65)] and cost.bits(0) == same.bits(0) > 0


def test_with_a_least_step_the_share_is_bounded_by_it() -> None:
    cost, tolerance = LogCost(), DEFAULT["float64"].tolerances[C]
    x = np.random.Generator(np.random.PCG64(1)).normal(size=5000)
    cost.add(x, 1_000_000, tolerance, 3, Grid.parse("float32"))
    same = LogCost.from_json(json.loads(json.dumps(cost.to_json())))
    entries = [cost.entries(s) for s in range(-64, 65)]
    assert entries == [same.entries(s) for s in range(-64, 65)]
    assert tolerance.step_exp == 5 and 0.9 / 16 < max(entries) / 1_000_000 <= 1 / 16
    assert entries[-1] == pytest.approx(0.0, abs=1e-6), "all values are below half a step"


def test_a_proposal_covers_what_was_compared(tmp_path: Path) -> None:
    session, spec = digits()
    plan = Calibration(steps=1, permutations=2)
    with session.open():
        found = record(session, plan, tmp_path)
    proposals = propose(found.permuted, found.costs.values(), spec.policy, spec.compute_dtype, 8, plan.steps)
    policy = proposed_policy(proposals)
    for place in found.permuted.places.values():
        assert place.scaled.largest * 8 <= policy.tolerances[place.op_class].atol
