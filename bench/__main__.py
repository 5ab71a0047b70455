"""``python -m bench [WORKLOAD ...] [--steps N] [--rounds N]``: training and replay against plain PyTorch.

Each mode runs in its own process; rounds are interleaved (plain32, plain64, train, audit, plain32, ...), medians are
compared. The audit runs under the profile 'portable', and once under the trainer's own profile for its speed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.workloads import WORKLOADS
from vt_core.engine.profiles import environment_for

MODES = ("plain32", "plain64", "train", "audit")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["digits", "gpt2_nano", "resnet18"], help=", ".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.workloads:
        results = measure(name, given.steps, given.rounds)
        rows += table(name, results)
    given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} x {row['baseline']}"
        value = f"{row['value']:.6g}" if isinstance(row["value"], float) else row["value"]
        print(f"{row['workload']:<10} {row['figure']:<34} {value!s:>14}  {ratio}")


def measure(name: str, steps: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {m: [] for m in (*MODES, "portable")}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="vt-bench-") as folder:
            for mode in MODES:
                results[mode].append(run(mode, name, steps, folder, "default"))
            results["portable"].append(run("audit", name, steps, folder, "portable"))
    return results


def run(mode: str, name: str, steps: int, folder: str, profile: str) -> dict[str, Any]:
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **environment_for(profile)}
    done = subprocess.run(
        [sys.executable, "-m", "bench.child", mode, name, str(steps), folder],
        env=environment, cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    plain: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"# {name} {mode} {profile}: {plain['seconds']:.3f} s a step", file=sys.stderr)
    return plain


def table(name: str, results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    def median(mode: str, key: str) -> float:
        return statistics.median(r[key] for r in results[mode])

    def row(figure: str, value: Any, baseline: str | None = None, ratio: float | None = None) -> dict[str, Any]:
        return {"workload": name, "figure": figure, "value": value, "baseline": baseline, "ratio": ratio}

    seconds = {mode: median(mode, "seconds") for mode in results}
    rows = [row("plain float32, s a step", seconds["plain32"])]
    rows.append(
        row("plain float64, s a step", seconds["plain64"], "plain float32", seconds["plain64"] / seconds["plain32"])
    )
    for mode, label in (
        ("train", "verified training"),
        ("audit", "audit replay"),
        ("portable", "audit replay, portable"),
    ):
        for base, what in (("plain64", "plain float64"), ("plain32", "plain float32")):
            rows.append(row(f"{label}, s a step", seconds[mode], what, seconds[mode] / seconds[base]))
    last, replayed = results["train"][-1], results["portable"][-1]
    rows.append(row("log, bytes a step", last["log_bytes_per_step"]))
    rows.append(row("fingerprints, bytes a step", last["fingerprint_bytes_per_step"]))
    rows.append(row("log size / entropy over classes", last["log_over_entropy"]))
    for op_class, share in last["share_logged"].items():
        seen = replayed["counts"][op_class]
        rows.append(row(f"share logged, {op_class}", share))
        rows.append(row(f"entries where portable differs, {op_class}", f"{seen['disagreements']} of {seen['entries']}"))
    for mode in ("plain32", "plain64", "train", "audit"):
        rows.append(
            row(
                f"peak memory, {mode}, MB",
                median(mode, "peak_mb"),
                "plain32",
                median(mode, "peak_mb") / median("plain32", "peak_mb"),
            )
        )
    rows.append(
        row("final states equal to the bit", all(r["state"] == last["state"] for r in (results["audit"][-1], replayed)))
    )
    return rows


if __name__ == "__main__":
    main()
