"""The least step of a tolerance: near zero a log entry is rare and one bit, and both sides still agree."""

from __future__ import annotations

import dataclasses
import math
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, Grid, OpClass, SiteEntries, Tolerance, TolerancePolicy, kernels, reference
from vt_core.numerics.scale import absolute_part, scale_exponent, stepped

FLOAT32 = Grid.parse("float32")
STEPPED = Tolerance(None, -44, 5)
PLAIN = Tolerance(None, -44)
BOTH = pytest.mark.parametrize("module", [kernels, reference])


def noise(n: int = 20_000, size: float = 2.0**-42, seed: int = 3) -> Tensor:
    """Return values near zero beside one of magnitude 1, as in gradients of which most are tiny."""
    x = torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).normal(0.0, size, n))
    x[0] = 0.75
    return x


def moved(x: Tensor, share: float, seed: int = 4) -> Tensor:
    tau = absolute_part(0, STEPPED)
    return x + torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).uniform(-share, share, x.numel())) * tau


@BOTH
def test_without_a_step_all_of_the_noise_is_logged_in_full_and_with_it_a_sixteenth_by_a_bit(module: ModuleType) -> None:
    plain = module.trainer_round_(noise(), PLAIN, FLOAT32, False).entries
    entries = module.trainer_round_(noise(size=2.0**-38), STEPPED, FLOAT32, False).entries
    assert plain.positions.size > 19_900 and plain.full_index.size > 19_000
    assert entries.full_index.size == 0
    assert 0.04 < entries.positions.size / 20_000 < 0.08  # two tolerances of a step of 32


@BOTH
@pytest.mark.parametrize("share", [0.05, 0.99])
def test_two_machines_hold_the_same_bits(module: ModuleType, share: float) -> None:
    x, other = noise(size=2.0**-38), moved(noise(size=2.0**-38), share)
    alone = other.clone()
    trainer = module.trainer_round_(x, STEPPED, FLOAT32, True)
    audit = module.auditor_round_(other, STEPPED, FLOAT32, trainer.entries, True)
    assert torch.equal(x, other) and audit.findings == [] and audit.fingerprint == trainer.fingerprint
    assert audit.scale_exp == 0
    module.auditor_round_(alone, STEPPED, FLOAT32, None, True)
    assert not torch.equal(x, alone)


@BOTH
def test_what_a_step_costs_in_accuracy(module: ModuleType) -> None:
    x = noise(size=2.0**-30)
    y = x.clone()
    module.trainer_round_(y, STEPPED, FLOAT32, False)
    step = math.ldexp(1.0, -44 + 5)
    assert torch.equal(y, torch.where(x.abs() < step * 2**23, torch.round(x / step) * step, x.float().double()))
    assert float((y - x).abs()[1:].max()) <= step / 2


@BOTH
def test_an_ambiguous_scale_is_written_because_the_step_depends_on_it(module: ModuleType) -> None:
    """The largest element is just above 1 here and just below it there: another exponent, another step."""
    x = noise(size=2.0**-38)
    x[0] = 1.0 + 2.0**-52
    other = x.clone()
    other[0] = 1.0 - 2.0**-52
    assert scale_exponent(float(x[0]), x.dtype) == scale_exponent(float(other[0]), x.dtype) + 1
    alone = other.clone()
    trainer = module.trainer_round_(x, STEPPED, FLOAT32, True)
    assert trainer.entries.scale_exp == 1
    audit = module.auditor_round_(other, STEPPED, FLOAT32, trainer.entries, True)
    assert torch.equal(x, other) and audit.findings == [] and audit.scale_exp == 1
    bare = dataclasses.replace(trainer.entries, scale_exp=0)
    module.auditor_round_(alone, STEPPED, FLOAT32, bare, True)
    assert not torch.equal(x, alone)

    few = torch.tensor([1.0 + 2.0**-52, 0.25], dtype=torch.float64)  # nothing to log but the exponent
    assert module.trainer_round_(few, STEPPED, FLOAT32, False).entries == SiteEntries.empty(1)


@BOTH
def test_a_value_between_two_steps_is_no_value_an_entry_may_name(module: ModuleType) -> None:
    step = 2.0**-39
    x = torch.tensor([1.0, 10.5 * step], dtype=torch.float64)  # on a boundary: either neighbour may be named
    for claimed, findings in ((10.0 * step, 0), (11.0 * step, 0), (10.5 * step, 1)):
        y = x.clone()
        named = np.array([claimed], np.float32)
        entries = SiteEntries(0, np.array([1]), np.zeros(1, np.uint8), np.array([0]), named)
        audit = module.auditor_round_(y, STEPPED, FLOAT32, entries, False)
        assert audit.finding_count == findings
        if not findings:
            assert float(y[1]) == claimed


def test_the_grid_is_itself_where_it_is_no_finer_than_the_step() -> None:
    assert stepped(FLOAT32, PLAIN, 0) is FLOAT32
    assert stepped(FLOAT32, STEPPED, -120) is FLOAT32
    near = stepped(FLOAT32, STEPPED, 0)
    assert near.quantum_exponent == -39 and (near.precision, near.emax) == (FLOAT32.precision, FLOAT32.emax)
    beyond = stepped(Grid.parse("float16"), Tolerance(None, -16, 3), 100)
    assert beyond.emin == beyond.emax == 15


@pytest.mark.parametrize("step", [2, 13, -1, 5.0, True])
def test_steps_out_of_range_are_refused(step: object) -> None:
    with pytest.raises(SpecError, match="step_exp"):
        Tolerance(None, -44, step)  # type: ignore[arg-type]


def test_a_policy_may_leave_the_step_out_and_then_has_none() -> None:
    plain = DEFAULT["float64"].to_json()
    assert plain["contraction"] == {"rtol_exp": None, "atol_exp": -44, "step_exp": 5}
    del plain["contraction"]["step_exp"]
    policy = TolerancePolicy.from_json(plain)
    assert policy[OpClass.CONTRACTION] == PLAIN and policy[OpClass.REDUCTION].step_exp == 5
    assert policy.to_json() == plain
    assert policy.wider_than(DEFAULT["float64"]) == [] and DEFAULT["float64"].wider_than(policy) == ["contraction"]


def test_changed_tolerances_keep_their_step_unless_another_is_named() -> None:
    policy, wide = DEFAULT["float64"], {"rtol_exp": None, "atol_exp": -40}
    assert policy.changed({"contraction": wide})[OpClass.CONTRACTION] == Tolerance(None, -40, 5)
    assert policy.changed({"contraction": {**wide, "step_exp": None}})[OpClass.CONTRACTION] == Tolerance(None, -40)
    assert policy.changed({"contraction": {**wide, "step_exp": 7}})[OpClass.CONTRACTION] == Tolerance(None, -40, 7)
    assert policy.changed({}) == policy
    for wrong in ({"contraction": 3}, {"nothing": wide}, {"contraction": {"atol_exp": -40}}):
        with pytest.raises(SpecError):
            policy.changed(wrong)
