"""``vt runs`` and ``vt watch``, on runs that are made of records alone."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.records import SPEC, judge, make_run
from support.services import clean_environment

from flows.cli.runs import follow
from tasks.store import Store, open_store
from vt_core.errors import SpecError
from vt_core.evidence.canonical import dumps


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def vt(cwd: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**clean_environment(), "COLUMNS": "150"}, timeout=100,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_runs_of_an_empty_store_say_what_to_do(store: Store, tmp_path: Path):
    assert "vt train --store" in vt(tmp_path, "runs", "--store", store.url).stdout
    assert json.loads(vt(tmp_path, "runs", "--store", store.url, "--json").stdout) == {"store": store.url, "runs": []}


def test_runs_for_people_and_machines(store: Store, tmp_path: Path):
    make_run(store, "fine", 4, verdict="verified")
    judge(make_run(store, "half", 4), "verified", [0, 3])
    make_run(store, "bad", 4, verdict="rejected")
    make_run(store, "going", 3, sealed=False)
    rows = {r["run_id"]: r for r in json.loads(vt(tmp_path, "runs", "--store", store.url, "--json").stdout)["runs"]}
    assert list(rows) == ["bad", "fine", "going", "half"]
    assert rows["half"] == {
        "run_id": "half", "job": "my.jobs:Job", "published": 4, "sealed": True, "audited": [0, 3],
        "audited_share": 0.5, "verdict": "verified", "reason": None, "unproven": 0,
    }  # fmt: skip
    assert rows["bad"]["verdict"] == "rejected" and rows["bad"]["reason"] == "made_for_a_test"
    assert not rows["going"]["sealed"] and rows["going"]["verdict"] is None
    text = vt(tmp_path, "runs", "--store", store.url).stdout
    lines = {name: next(line for line in text.splitlines() if f" {name} " in line) for name in rows}
    assert "50%" in lines["half"] and "rejected (made_for_a_test)" in lines["bad"] and " no " in lines["going"]


def test_a_verdict_that_looks_like_markup_is_shown_as_it_is(store: Store, tmp_path: Path):
    run = make_run(store, "r", 2)
    run.publish_verdict({"verdict": "rejected", "reason": "[red]x[/oops]", "segments": []}, "20260101T000000Z")
    assert "[red]x[/oops]" in vt(tmp_path, "runs", "--store", store.url).stdout
    store.commitments.create("runs/s/spec.json", dumps({**SPEC, "reference": "a:[/job]", "steps": 2, "seed": "[/b]"}))
    assert "[/job]" in vt(tmp_path, "runs", "--store", store.url).stdout
    vt(tmp_path, "show", "s", "--store", store.url)


def test_errors_leave_with_3(store: Store, tmp_path: Path):
    vt(tmp_path, "runs", code=3)
    assert "no store at" in vt(tmp_path, "runs", "--store", str(tmp_path / "nowhere"), code=3).stderr
    assert (
        "sealed, verdict or never" in vt(tmp_path, "watch", "r", "--store", store.url, "--until", "noon", code=3).stderr
    )
    assert "run id" in vt(tmp_path, "watch", "../x", "--store", store.url, code=3).stderr


@pytest.mark.parametrize(("verdict", "code"), [("verified", 0), ("rejected", 1), ("inconclusive", 2)])
def test_watch_leaves_with_the_verdicts_code(store: Store, tmp_path: Path, verdict: str, code: int):
    make_run(store, "r", 3, verdict=verdict)
    done = vt(tmp_path, "watch", "r", "--store", store.url, "--json", code=code)
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == verdict


def test_watch_follows_a_run_from_before_its_start_to_its_verdict(store: Store, capsys: pytest.CaptureFixture[str]):
    codes: list[int] = []
    watcher = threading.Thread(target=lambda: codes.append(follow(store, "r", 0.05, "verdict", True)), daemon=True)
    watcher.start()
    time.sleep(0.3)
    run = make_run(store, "r", 5)
    time.sleep(0.3)
    assert watcher.is_alive(), "a sealed run without verdict is not the end"
    judge(run, "rejected", [2])
    watcher.join(10)
    assert codes == [1]
    seen: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert seen[0]["published"] == 0 and seen[0]["segments"] is None and not seen[0]["sealed"]
    assert seen[-1]["published"] == 5 and seen[-1]["segments"] == 5 and seen[-1]["audited"] == [2]
    assert all(a != b for a, b in itertools.pairwise(seen)), "a line only when something has changed"


def test_watch_until_sealed_needs_no_verdict(store: Store):
    make_run(store, "r", 2)
    assert follow(store, "r", 0.05, "sealed", True) == 0
    with pytest.raises(SpecError):
        follow(store, "r", 0.05, "dawn", True)
