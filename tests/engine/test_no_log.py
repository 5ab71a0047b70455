"""Exact contractions and functions together: the same training on another CPU profile, bit for bit, without any log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exact_support import under_profile
from support.processes import prepare
from support.runs import audit
from support.worker import USUAL, cases

from vt_core.engine.rounding_log import LogReader
from vt_core.training.segment import LOG

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("default", "portable")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The folder of the runs, and what training gave by profile and job."""
    folder = prepare(tmp_path_factory.mktemp("no-log"))
    found = {}
    for profile in PROFILES:
        (folder / profile).mkdir()
        found[profile] = under_profile(profile, "no_log_worker", str(folder / profile), str(folder))
    return folder, found


@pytest.mark.parametrize("job", USUAL)
def test_two_profiles_train_the_same_bits(job: str, runs: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    here, there = (runs[1][profile][job] for profile in PROFILES)
    assert here[1] != there[1], "plain training does not differ between these profiles: this shows nothing"
    assert here[0] == there[0]


@pytest.mark.parametrize("job", USUAL)
def test_the_log_is_empty_and_an_audit_needs_none(job: str, runs: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, _ = runs
    logs = sorted((folder / "portable" / job).rglob(LOG))
    assert logs
    for path in logs:
        with LogReader(path, 1 << 30) as reader:
            assert all(not step.sites for step in reader)
    verdict = audit(folder / "portable" / job, location=cases(folder)[job].location)
    assert (verdict["verdict"], verdict["reason"]) == ("verified", None), verdict["message"]
    assert [n["elements"] for name, n in verdict["counts"].items() if name != "plain"] == [0, 0, 0, 0]
