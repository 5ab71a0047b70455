"""The stages of ``dvc.yaml``: ``python -m flows.stage data|train|audit|report``; results as small files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flows import settings

RESULTS = Path("results")


def main() -> int:
    """Run one stage; a run that is not verified makes the audit stage fail."""
    settings.apply()
    RESULTS.mkdir(exist_ok=True)
    stages = {"data": _data, "train": _train, "audit": _audit, "report": _report}
    if len(sys.argv) != 2 or sys.argv[1] not in stages:
        print(f"usage: python -m flows.stage {'|'.join(stages)}", file=sys.stderr)
        return 3
    return stages[sys.argv[1]]()


def _vt(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command line in a fresh process, as a user would, and return its code and JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    plain: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    return done.returncode, plain


def _data() -> int:
    """Say which data this machine holds: the training stage depends on it."""
    from tasks.params import load_params

    _, dataset = load_params(Path("params.yaml")).open_job()
    plain = {"manifest": dataset.manifest(), "size": len(dataset)}
    (RESULTS / "data.json").write_text(json.dumps(plain, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


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
    _write_csv("loss.csv", ["step", "loss"], read_losses(run, Path(".vt") / "train"))
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
    if code:
        _report()  # DVC stops the pipeline here, and just such a verdict is one to read
    return code


def _report() -> int:
    from tasks.params import load_params
    from tasks.report_inputs import fetch_inputs
    from tasks.reporting import write_report
    from tasks.runs import RunStore
    from tasks.store import open_store

    verdict = json.loads((RESULTS / "verdict.json").read_text(encoding="utf-8"))
    run = RunStore(open_store(str(load_params(Path("params.yaml")).store)), verdict["run_id"])
    inputs = fetch_inputs(run, [s["index"] for s in verdict["segments"]], Path(".vt") / "report")
    write_report(RESULTS / "report.html", verdict, inputs)
    rows = [(r.step, r.log_bytes, r.fingerprint_bytes) for r in inputs.rows]
    _write_csv("log_bytes.csv", ["step", "log_bytes", "fingerprint_bytes"], rows)
    return 0


def _write_csv(name: str, head: list[str], rows: Iterable[Sequence[Any]]) -> None:
    with (RESULTS / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
