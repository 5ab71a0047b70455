"""Calibration over processes: real code paths, a policy that holds in an audit, and what is told when one does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.calibrating import PERMUTED, Result, calibrate
from tasks.reporter import reporter
from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, OpClass
from vt_core.verify.calibration import Calibration

DIGITS = "vt_core.jobs.digits:DigitsJob"
PLAN = Calibration(steps=2, samples=1 << 20, permutations=1)


def write(folder: Path, reference: str = DIGITS, **train: Any) -> Path:
    path = folder / "params.yaml"
    args = {"batch_size": 32, "width": 8} if reference == DIGITS else {}
    plain = {
        "job": {"reference": reference, "args": args},
        "train": {"seed": 3, "steps": 4, "contractions": "logged", **train},
    }
    path.write_text(yaml.safe_dump(plain))
    return path


TWO_FACED = """
import os
from vt_core.jobs.digits import DigitsJob
FACTOR = 2.0 if os.environ.get("VT_PROFILE") == "portable" else 1.0
class InUpdate(DigitsJob):
    def before_update(self, model):
        for parameter in model.parameters():
            parameter.grad.mul_(FACTOR)
class InLoss(DigitsJob):
    def loss(self, model, batch):
        return super().loss(model, {**batch, "images": batch["images"] * FACTOR})
"""


class Told:
    """Remembers what was reported."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, int]] = []
        self.steps = 0

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        self.parts.append((label, total))

    def advance(self, note: str = "") -> None:
        self.steps += 1

    def message(self, text: str) -> None:
        raise AssertionError(text)


@pytest.mark.slow
def test_profiles_differ_and_the_proposal_covers_them(tmp_path: Path) -> None:
    told = Told()
    token = reporter.set(told)
    try:
        result = calibrate(write(tmp_path), ("portable",), PLAN)
    finally:
        reporter.reset(token)
    assert told.parts == [("record", 3), ("against portable", 3)] and told.steps == 6
    sides = {side.name: side for side in result.sides}
    assert set(sides) == {"portable", PERMUTED}
    for side in sides.values():
        assert side.parted is None
        assert side.measured.total(OpClass.CONTRACTION).tolerances.largest > 0.0, side.name
    assert result.sufficient
    policy = result.policy()
    assert not policy.wider_than(DEFAULT["float64"])
    for place in result.measured.places.values():
        assert place.scaled.largest * 8 <= policy.tolerances[place.op_class].atol
    plain = json.loads(json.dumps(result.to_json()))
    assert plain["policy"] == policy.to_json() and plain["problem"] is None
    assert plain["bytes_per_step"]["proposed"] <= plain["bytes_per_step"]["current"]
    assert plain["worst"][0]["headroom"] == max(c["headroom"] for c in plain["classes"].values())


@pytest.mark.slow
def test_a_policy_narrower_than_the_divergence_is_insufficient(tmp_path: Path) -> None:
    """Two powers of ten below: the measurement is the same, whatever the policy under test."""
    wide = calibrate(write(tmp_path), ("portable",), PLAN)
    narrow_exp = exponent(wide) - 13  # safety 8, and 2^10 below what was seen
    policy = {"contraction": {"rtol_exp": None, "atol_exp": narrow_exp}}
    narrow = calibrate(write(tmp_path, policy=policy), ("portable",), PLAN)
    assert wide.sufficient and not narrow.sufficient
    found = next(p for p in narrow.proposals if p.op_class == OpClass.CONTRACTION)
    assert found.state == "insufficient" and found.headroom > 2.0**9
    assert narrow.policy() == wide.policy()
    assert not any(c.covers for c in found.choices if c.tolerance.atol_exp < narrow_exp + 9)


def exponent(result: Result) -> int:
    return result.policy().tolerances[OpClass.CONTRACTION].atol_exp


def test_mistakes_are_named_before_anything_runs(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(SpecError, match="warp"):
        calibrate(path, ("portable", "warp"))
    with pytest.raises(SpecError, match="power of two"):
        calibrate(path, safety=3)
    with pytest.raises(SpecError, match="steps must be"):
        calibrate(path, plan=Calibration(steps=0))
    with pytest.raises(SpecError, match="samples must be"):
        calibrate(path, plan=Calibration(samples=3))


def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"record under default: .*no_such_module"):
        calibrate(write(tmp_path, "no_such_module:Job"))
    broken = tmp_path / "broken_job.py"
    broken.write_text("import os\nos._exit(7)\n")
    with pytest.raises(SpecError, match="should record under default failed: it was killed"):
        calibrate(write(tmp_path, "broken_job:Job"))
    broken.write_text("raise RuntimeError('out of luck')\n")
    with pytest.raises(SpecError, match="out of luck"):
        calibrate(write(tmp_path, "broken_job:Job"))


@pytest.mark.slow
def test_an_operation_that_must_not_differ_is_told(tmp_path: Path) -> None:
    """A job that does something else under one profile: no tolerance may mend that."""
    (tmp_path / "two_faced.py").write_text(TWO_FACED)
    result = calibrate(write(tmp_path, "two_faced:InUpdate"), ("portable",), PLAN)
    side = result.sides[0]
    assert side.parted is not None and side.parted[0] == 1 and not result.sufficient
    with pytest.raises(SpecError, match="portable has other bits in step 1"):
        result.policy()
    plain = result.to_json()
    assert plain["policy"] is None and "no tolerance mends that" in plain["problem"]
    assert plain["sides"][0]["parted"]["step"] == 1
    other = calibrate(write(tmp_path, "two_faced:InLoss"), ("portable",), PLAN)
    assert other.sides[0].parted is None and not other.sufficient, "far apart, but where tolerances apply"
    with pytest.raises(SpecError, match="no tolerance covers the divergence of contraction"):
        other.policy()
