"""Honest runs, however they were agreed, are verified: no rejection and no inconclusive verdict.

The large part of the honest zoo, every shipped job on every ordered pair of CPU profiles (540 segments), is
``tests/verify/test_profiles.py``; here is what may differ besides the hardware, in one process.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from attacks.zoo import VERIFIED, Finding, Lab
from support.runs import SMALL_DIGITS, Case, Trainer, audit
from support.worker import LOW, USUAL, cases

import vt_core.jobs
from vt_core.training.job import Job

AGREED: dict[str, dict[str, Any]] = {
    "usual": {},
    "no-fingerprints": {"fingerprints": False},
    "one-segment": {"segment_steps": 6},
    "segments-of-one-step": {"segment_steps": 1},
    "last-segment-shorter": {"segment_steps": 4},
    "leaves-every-second-step": {"commit_interval": 2},
    "leaves-rarer-than-segments": {"commit_interval": 5},
    "coarse-grid": {"grid": "bfloat16"},
    "float32-onto-bfloat16": {"grid": "bfloat16", "compute_dtype": "float32"},
    "other-seed": {"seed": 2**64 - 1},
}


@pytest.mark.parametrize("how", AGREED)
def test_honest_run_is_verified(how: str, tmp_path: Path) -> None:
    case = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, **AGREED[how]})
    verdict = audit(Trainer(case, tmp_path / "run").run().folder)
    assert Finding.of_verdict(verdict) == VERIFIED, verdict["message"]
    assert verdict["state_checked"] and verdict["coverage"]["of_share"] == "1.0000"
    assert {s["result"] for s in verdict["segments"]} == {"verified"}


@pytest.mark.parametrize("choice", ["0", "3", "1-2", "sample:1", "sample:3"])
def test_honest_part_is_verified(choice: str, lab: Lab) -> None:
    verdict = audit(lab.honest().folder, choice=choice)
    assert Finding.of_verdict(verdict) == VERIFIED, verdict["message"]


def test_every_shipped_job_is_among_the_profile_matrix(tmp_path: Path) -> None:
    shipped = set()
    for module in pkgutil.iter_modules(vt_core.jobs.__path__, "vt_core.jobs."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(kind, Job) and not inspect.isabstract(kind) and kind.__module__ == module.name:
                shipped.add(f"{module.name}:{name}")
    matrix = cases(tmp_path)
    assert {matrix[name].reference for name in USUAL} == {matrix[name].reference for name in LOW} == shipped
