from __future__ import annotations

import json

import pytest
import torch

from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, Grid, OpClass, Tolerance, TolerancePolicy, kernels, reference


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_json_round_trip(name: str) -> None:
    policy = DEFAULT[name]
    assert TolerancePolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {**DEFAULT["float64"].to_json(), "extra": {"rtol_exp": None, "atol_exp": -44}},
        {**DEFAULT["float64"].to_json(), "other": {"atol_exp": -44}},
        {**DEFAULT["float64"].to_json(), "other": {"rtol_exp": None, "atol_exp": -44.0}},
        {**DEFAULT["float64"].to_json(), "other": {"rtol_exp": None, "atol_exp": True}},
        {**DEFAULT["float64"].to_json(), "other": {"rtol_exp": None, "atol_exp": None}},
        {**DEFAULT["float64"].to_json(), "other": {"rtol_exp": None, "atol_exp": -2}},
        {**DEFAULT["float64"].to_json(), "other": {"rtol_exp": -200, "atol_exp": -44}},
    ],
)
def test_malformed_policies_are_refused(data: object) -> None:
    with pytest.raises(SpecError):
        TolerancePolicy.from_json(data)


def test_wider_than_names_the_classes() -> None:
    limit = DEFAULT["float64"]
    assert limit.wider_than(limit) == []
    changed = dict(limit.tolerances)
    changed[OpClass.CONTRACTION] = Tolerance(None, -43)
    changed[OpClass.REDUCTION] = Tolerance(-60, -45)  # a relative part where the limit has none
    changed[OpClass.TRANSCENDENTAL] = Tolerance(None, -51)  # narrower
    assert TolerancePolicy(changed).wider_than(limit) == ["contraction", "reduction"]


@pytest.mark.parametrize("module", [kernels, reference])
def test_a_tolerance_too_small_for_the_dtype_is_refused(module: object) -> None:
    with pytest.raises(SpecError, match="2\\*\\*-26"):
        module.trainer_round_(torch.ones(2), Tolerance(None, -27), Grid.parse("bfloat16"), False)  # type: ignore[attr-defined]
