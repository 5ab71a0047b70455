"""``dvc repro`` runs the same pipeline; a second call runs nothing; an audit parameter re-runs audit and report."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STAGES = ["data", "train", "audit", "report"]


@pytest.mark.slow
def test_repro_twice_then_another_audit(tmp_path, vt_environment):
    project = tmp_path / "a clone"
    for name in ("flows", "tasks", "vt_core", ".dvc"):  # with what is compiled: that is not what is tested
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("dvc.yaml", ".dvcignore"):
        shutil.copy(ROOT / name, project / name)
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["train"] |= {"epochs": None, "steps": 4, "segment_steps": 2}
    params["audit"]["profile"] = None
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    environment = {
        **vt_environment,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(tmp_path / "site"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["dvc", *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
        )

    def dvc(*arguments: str) -> str:
        done = run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    first = dvc("repro")
    assert [s for s in STAGES if f"Running stage '{s}'" in first] == STAGES
    assert json.loads((project / "results/verdict.json").read_text())["verdict"] == "verified"
    metrics = json.loads(dvc("metrics", "show", "--json"))
    assert metrics[""]["data"]["results/audit.json"]["data"]["verified"] == 1
    assert json.loads((project / "results/data.json").read_text())["size"] > 0
    page = (project / "results/report.html").read_text(encoding="utf-8")
    assert "Verified: all 3 segments" in page and page.count("<svg") == 2
    with (project / "results/log_bytes.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == [0, 1, 2, 3, 4] and int(table[1]["log_bytes"]) > 0
    dvc("plots", "show")
    plots = (project / "dvc_plots/index.html").read_text(encoding="utf-8")
    assert "loss.csv" in plots and "log_bytes.csv" in plots
    for command in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=project, check=True)

    assert "Running stage" not in dvc("repro")

    params["audit"]["segments"] = "sample:1"
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    changes = json.loads(dvc("params", "diff", "--json"))["params.yaml"]
    assert changes == {"audit.segments": {"old": "all", "new": "sample:1"}}
    second = dvc("repro")
    assert [s for s in STAGES if f"Running stage '{s}'" in second] == ["audit", "report"]
    assert json.loads((project / "results/verdict.json").read_text())["coverage"]["replayed"] == 1
    assert "Verified: 1 of 3 segments" in (project / "results/report.html").read_text(encoding="utf-8")

    # A run that is not verified stops the pipeline, and its report is there all the same.
    record = json.loads(next((project / "store").rglob("segments/00001.json")).read_bytes())
    sizes = {entry["size"] for entry in record["files"].values()}
    for path in (project / "store/artifacts").rglob("*"):
        if path.is_file() and path.stat().st_size in sizes:
            path.unlink()
    params["audit"]["segments"] = "1"
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    failed = run("repro")
    assert failed.returncode != 0 and "failed to reproduce 'audit'" in failed.stderr
    assert "Rejected: a committed file is missing" in (project / "results/report.html").read_text(encoding="utf-8")
