"""The stages of ``dvc.yaml``: ``python -m flows.stage train|audit``; results as small JSON and CSV files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from flows import settings

RESULTS = Path("results")


def main() -> int:
    """Run one stage; a run that is not verified makes the audit stage fail."""
    settings.apply()
    RESULTS.mkdir(exist_ok=True)
    if sys.argv[1:] == ["train"]:
        return _train()
    if sys.argv[1:] == ["audit"]:
        return _audit()
    print("usage: python -m flows.stage train|audit", file=sys.stderr)
    return 3


def _vt(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command line in a fresh process, as a user would, and return its code and JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    plain: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    return done.returncode, plain


def _train() -> int:
    from tasks.params import load_params
    from tasks.runs import RunStore
    from tasks.store import open_store
    from tasks.training import read_losses

    params = load_params(Path("params.yaml"))
    # The name comes from the spec: a pipeline that was interrupted goes on with the run it had started.
    run_id = f"pipeline-{params.spec(*params.open_job()).digest()[:12]}"
    code, summary = _vt("train", "--params", "params.yaml", "--run-id", run_id)
    if code:
        return code
    (RESULTS / "run.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    run = RunStore(open_store(str(params.store)), run_id)
    with (RESULTS / "loss.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows(read_losses(run, Path(".vt") / "train"))
    return 0


def _audit() -> int:
    run_id = json.loads((RESULTS / "run.json").read_text(encoding="utf-8"))["run_id"]
    code, verdict = _vt("audit", run_id, "--params", "params.yaml")
    if code == 3:
        return code
    (RESULTS / "verdict.json").write_text(json.dumps(verdict, indent=1) + "\n", encoding="utf-8")
    flat = {
        "verified": int(verdict["verdict"] == "verified"),
        "segments_replayed": verdict["coverage"]["replayed"],
        "segments": verdict["coverage"]["total"],
        "entries": sum(c["entries"] for c in verdict.get("counts", {}).values()),
        "disagreements": sum(c["disagreements"] for c in verdict.get("counts", {}).values()),
    }
    (RESULTS / "audit.json").write_text(json.dumps(flat, indent=1) + "\n", encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
