"""From divergence to a policy: the narrowest power of two with the safety factor, never below what a unit is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, Grid, OpClass, Tolerance, TolerancePolicy
from vt_core.verify.divergence import Measured
from vt_core.verify.log_cost import LogCost
from vt_core.verify.proposal import ClassProposal, propose, proposed_policy, wider_than_default

C = OpClass.CONTRACTION
POLICY = DEFAULT["float64"]


def measured(tolerances: float, op_class: OpClass = C) -> Measured:
    """One place that diverges so far, in tolerances."""
    found = Measured()
    place = found.at("aten.mm.default", "linear", op_class)
    place.elements = place.compared = 1000
    place.add(np.array([tolerances * POLICY.tolerances[op_class].atol]), np.array([tolerances]), 1.0)
    return found


def proposal(tolerances: float, safety: int = 8, op_class: OpClass = C, policy: TolerancePolicy = POLICY,
             dtype: str = "float64") -> ClassProposal:  # fmt: skip
    cost = LogCost()
    x = np.random.Generator(np.random.PCG64(1)).normal(size=1000)
    cost.add(x, 1000, policy.tolerances[op_class], 2, Grid.parse("float32"))
    found = propose(measured(tolerances, op_class), [(op_class, cost)], policy, dtype, safety, 2)
    return next(p for p in found if p.op_class == op_class)


@pytest.mark.parametrize(
    ("tolerances", "safety", "shift", "state"),
    [
        (0.124, 8, 0, "sufficient"), (0.125, 8, 0, "sufficient"), (0.126, 8, 1, "thin"),
        (0.06, 8, -1, "sufficient"), (0.5, 8, 2, "thin"),
        (0.998, 1, 0, "sufficient"), (1.0, 1, 1, "insufficient"), (1024.0, 8, 13, "insufficient"),
        (0.01, 1, -5, "sufficient"), (0.01, 64, 0, "sufficient"), (0.0, 8, -3, "sufficient"),
    ],
)  # fmt: skip
def test_the_narrowest_power_of_two(tolerances: float, safety: int, shift: int, state: str) -> None:
    found = proposal(tolerances, safety)
    assert found.proposed == Tolerance(None, -44 + shift, 5)
    assert (found.state, found.headroom) == (state, tolerances)


def test_more_divergence_or_safety_never_gives_a_narrower_policy() -> None:
    exponents = [proposal(2.0**k * 1.1).proposed for k in range(-20, 20)]
    assert [t.atol_exp for t in exponents if t] == sorted(t.atol_exp for t in exponents if t)
    assert len(exponents) == 40 and None not in exponents
    by_safety = [proposal(0.01, 1 << k).proposed for k in range(10)]
    assert [t.atol_exp for t in by_safety if t] == [-49, *range(-49, -40)]


def test_every_choice_between_is_priced() -> None:
    found = proposal(0.001)
    assert [c.tolerance.atol_exp for c in found.choices] == list(range(found.proposed.atol_exp, -43))
    assert [c.size for c in found.choices] == sorted(c.size for c in found.choices)
    assert all(c.covers and c.safe for c in found.choices)
    wide = proposal(100.0)
    assert [(c.covers, c.safe) for c in wide.choices] == [(s >= 7, s >= 10) for s in range(11)]
    assert [c.shift for c in wide.choices] == list(range(11))


def test_relative_and_absolute_part_move_together() -> None:
    found = proposal(0.3, op_class=OpClass.TRANSCENDENTAL)
    assert found.proposed == Tolerance(-46, -48, 5)
    least = proposal(0.0, op_class=OpClass.TRANSCENDENTAL)
    assert least.proposed == Tolerance(-49, -51, 5), "eight units in the last place"


def test_least_for_float32() -> None:
    found = proposal(0.0, policy=DEFAULT["float32"], dtype="float32")
    assert found.proposed == Tolerance(None, -18, 3)
    narrow = TolerancePolicy({**POLICY.tolerances, C: Tolerance(None, -60)})
    assert proposal(0.0, policy=narrow).proposed == Tolerance(None, -47)


@pytest.mark.parametrize("tolerances", [math.inf, 2.0**40])
def test_nothing_covers_another_computation(tolerances: float) -> None:
    found = proposal(tolerances)
    assert found.proposed is None and found.state == "insufficient" and found.choices == []
    with pytest.raises(SpecError, match=r"no tolerance covers .* contraction \(in aten.mm.default\)"):
        proposed_policy([found])


def test_a_class_that_the_job_does_not_use_keeps_its_tolerance() -> None:
    found = propose(measured(0.3), [], POLICY, "float64", 8, 1)
    policy = proposed_policy(found)
    assert [p.state for p in found] == ["thin", "unused", "unused", "unused"]
    assert policy.tolerances == {**POLICY.tolerances, C: Tolerance(None, -42, 5)}
    assert wider_than_default(policy, "float64") == ["contraction"]


def test_json_says_what_the_sample_can_say() -> None:
    plain = proposal(0.3).to_json()
    assert plain["unseen_share"] == 0.003 and plain["headroom"] == 0.3 and plain["op"] == "aten.mm.default"
    assert plain["current"] == {"rtol_exp": None, "atol_exp": -44, "step_exp": 5}


@pytest.mark.parametrize("safety", [0, 3, -8, 8192, 2.0, True])
def test_the_safety_factor_is_a_power_of_two(safety: object) -> None:
    with pytest.raises(SpecError, match="power of two"):
        propose(measured(0.1), [], POLICY, "float64", safety, 1)  # type: ignore[arg-type]
