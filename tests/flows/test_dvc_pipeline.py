"""``dvc repro`` runs the same pipeline; a second call runs nothing; an audit parameter re-runs only the audit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_repro_twice_then_another_audit(tmp_path, vt_environment):
    project = tmp_path / "a clone"
    for name in ("flows", "tasks", "vt_core", ".dvc"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp"))
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

    def dvc(*arguments: str) -> str:
        done = subprocess.run(
            ["dvc", *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    first = dvc("repro")
    assert "Running stage 'train'" in first and "Running stage 'audit'" in first
    assert json.loads((project / "results/verdict.json").read_text())["verdict"] == "verified"
    metrics = json.loads(dvc("metrics", "show", "--json"))
    assert metrics[""]["data"]["results/audit.json"]["data"]["verified"] == 1

    assert "Running stage" not in dvc("repro")

    params["audit"]["segments"] = "sample:1"
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    second = dvc("repro")
    assert "Running stage 'train'" not in second and "Running stage 'audit'" in second
    assert json.loads((project / "results/verdict.json").read_text())["coverage"]["replayed"] == 1
