"""Unedited models of many kinds train on one CPU profile and replay bit for bit on another."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_models import JOBS, NO_FLOORS, NO_LOG, make, no_floors
from engine_support import Run, train

from vt_core.engine.profiles import environment_for

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 3
PRECISIONS = {"float64": False, "float32": True}
CANCELLING = "cancelling bias"


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, bool, str], Run]:
    """(model, low, option) -> run."""
    found = {(name, low, ""): train(make(name, low), STEPS) for low in PRECISIONS.values() for name in JOBS}
    with no_floors():
        found[CANCELLING, True, NO_FLOORS] = train(make(CANCELLING, True), 8)
    return found


@pytest.fixture(scope="module")
def replays(
    runs: dict[tuple[str, bool, str], Run], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, bool, str], Any]:
    """The same under the profile *portable*, in one process; and low ones once more with their logs emptied."""
    todo = list(runs.items())
    todo += [((name, low, NO_LOG), run) for (name, low, option), run in runs.items() if low and not option]
    requests = [(*key, {s: record.hex() for s, record in run.logs.items()}) for key, run in todo]
    file = tmp_path_factory.mktemp("models") / "logs.json"
    file.write_text(json.dumps(requests), encoding="utf-8")
    environment = environment_for("portable") | {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'engine'}",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, "-m", "engine_models", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {key: found for (key, _), found in zip(todo, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", JOBS)
def test_a_model_replays_on_another_profile(
    name: str, precision: str, runs: dict[tuple[str, bool, str], Run], replays: dict[tuple[str, bool, str], Any]
) -> None:
    key = (name, PRECISIONS[precision], "")
    run, found = runs[key], replays[key]
    assert found["findings"] == []
    assert found["traces"] == [run.traces[s].hex() for s in sorted(run.traces)]
    assert found["roots"] == run.roots
    assert len(set(run.roots)) == STEPS + 1, "training moved nothing"


def test_without_the_log_these_runs_do_not_replay(
    runs: dict[tuple[str, bool, str], Run], replays: dict[tuple[str, bool, str], Any]
) -> None:
    """The profiles do differ here: equal states are the log's doing."""
    needed = [n for n in JOBS if replays[n, True, ""]["disagreements"]]
    assert len(needed) >= 5, needed
    for name in needed:
        found = replays[name, True, NO_LOG]
        assert found["findings"], name
        assert found["traces"] == [runs[name, True, ""].traces[s].hex() for s in range(STEPS + 1)]
    parted = [n for n in needed if replays[n, True, NO_LOG]["roots"] != runs[n, True, ""].roots]
    assert len(parted) >= 5, parted


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the profiles choose x86 kernels")
def test_a_sum_that_cancels_needs_the_floor_of_its_scale(
    replays: dict[tuple[str, bool, str], Any],
) -> None:
    """The gradient of a bias before a batch norm is nothing but rounding errors, which are relative to its terms."""
    found = replays[CANCELLING, True, NO_FLOORS]["findings"]
    if not found:  # test_cancellation shows it on any CPU, for the operation alone
        pytest.skip("on this CPU both profiles add up the gradient of that bias alike")
    assert "convolution_backward" in found[0]
    assert replays[CANCELLING, True, ""]["findings"] == []
