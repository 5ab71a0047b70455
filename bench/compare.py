"""Verified training and replay against ordinary PyTorch, in turns on one machine, and the rows that come of it."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from bench.turns import WARM_UP, Child

# Processes that run side by side; each group has the baseline it is compared with.
GROUPS: tuple[tuple[str, ...], ...] = (
    ("plain64", "plain32", "logged", "exact"),
    ("plain64", "logged-audit", "exact-audit"),
)
LOW: tuple[tuple[str, ...], ...] = (("plain32", "low"), ("plain32", "low-audit"))
BY_NAME = {"all": (*GROUPS, *LOW), "float64": GROUPS, "float32": LOW}
LABELS = {
    "plain32": "plain float32 training",
    "plain64": "plain float64 training",
    "logged": "verified training, logged",
    "exact": "verified training, exact",
    "logged-audit": "audit replay, logged",
    "exact-audit": "audit replay, exact",
    "low": "verified float32, bfloat16 grid",
    "low-audit": "audit replay, float32, bfloat16 grid",
}

Row = dict[str, Any]


def compare(
    workload: str, rounds: int, per_turn: int, peaks: dict[str, float], compute: str = "all"
) -> Iterator[list[Row]]:
    """Run the modes of a workload and yield its rows, group by group; every turn is ``per_turn`` steps.

    ``compute`` is one of BY_NAME.
    """
    with tempfile.TemporaryDirectory(prefix="vt-bench-") as folder:
        for group in BY_NAME[compute]:
            yield _group(workload, group, rounds, per_turn, folder, peaks)


def _group(
    workload: str, group: Sequence[str], rounds: int, per_turn: int, folder: str, peaks: dict[str, float]
) -> list[Row]:
    steps = WARM_UP + rounds * per_turn + 1  # in the last one is looked for shares
    children: dict[str, Child] = {}
    try:
        for mode in group:
            children[mode] = Child(mode, workload, steps, folder)
            children[mode].ready()
        for number in range(rounds):
            for mode, child in children.items():
                seconds = child.turn(per_turn, counted=True)
                _tell(f"{workload}, round {number + 1} of {rounds}, {LABELS[mode]}: {statistics.mean(seconds):.3f} s")
        for child in children.values():
            child.turn(1, counted=False)
        results = {mode: child.result() for mode, child in children.items()}
    finally:
        for child in children.values():
            child.stop()
    times = {mode: child.seconds for mode, child in children.items()}
    return [row for mode in group for row in _rows(workload, mode, group[0], times, results, peaks)]


def _rows(
    workload: str, mode: str, base: str, times: dict[str, list[float]], results: dict[str, Any], peaks: dict[str, float]
) -> list[Row]:
    def row(figure: str, value: Any, baseline: str | None = None, ratio: float | None = None) -> Row:
        return {"workload": workload, "figure": figure, "value": value, "baseline": baseline, "ratio": ratio}

    label, found = LABELS[mode], results[mode]
    seconds = statistics.median(times[mode])
    rows: list[Row] = []
    for other in dict.fromkeys((base, "plain32")):
        if other in times and other != mode:
            # The median of the ratios of each round: a slow minute counts on both sides.
            ratio = statistics.median(a / b for a, b in zip(times[mode], times[other], strict=True))
            rows.append(row(f"{label}, s a step", seconds, LABELS[other], ratio))
    if not rows:
        rows.append(row(f"{label}, s a step", seconds))
    rows.append(
        row(f"{label}, peak memory, MB", found["peak_mb"], LABELS[base], found["peak_mb"] / results[base]["peak_mb"])
    )
    if "flops" in found:
        peak = peaks["mm32" if mode == "plain32" else "mm64"]
        rows.append(row(f"{label}, least s a step for its products", found["flops"] / peak, "measured",
                        found["flops"] / peak / seconds))  # fmt: skip
    if "log_bytes" in found:
        rows += _evidence(row, label, found, peaks, seconds)
    for op_class, count in found.get("disagreements", {}).items():
        rows.append(row(f"{label}, {op_class}: roundings taken from the log", count))
        rows.append(row(f"{label}, {op_class}: divergence / tolerance", found["headroom"][op_class]))
    if "findings" in found:
        rows.append(row(f"{label}, findings", found["findings"]))
    return rows


def _evidence(row: Any, label: str, found: dict[str, Any], peaks: dict[str, float], seconds: float) -> list[Row]:
    rows = [
        row(f"{label}, log, bytes a step", found["log_bytes"]),
        row(f"{label}, fingerprints, bytes a step", found["fingerprint_bytes"]),
    ]
    if found["log_over_entropy"]:
        rows.append(row(f"{label}, log size / entropy of its entries", found["log_over_entropy"]))
    for op_class, share in found["logged"].items():
        rows.append(row(f"{label}, share of elements logged, {op_class}", share))
    for part, share in found["shares"].items():
        rows.append(row(f"{label}, share of time, {part}", share))
    # In place: read once for the scale (logged sites), read and written once for the rounding.
    width = 4 if "float32" in label else 8
    least = width * (3 * found["rounded"] + 2 * found["rounded_plain"]) / peaks["copy"]
    rounding = found["shares"].get("rounding", 0.0) * seconds
    rows.append(row(f"{label}, least s a step for rounding", least, "rounding", least / max(rounding, 1e-9)))
    return rows


def _tell(text: str) -> None:
    print(f"# {text} a step", file=sys.stderr, flush=True)
