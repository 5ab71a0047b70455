"""``python -m bench.summary [RESULTS]``: the project's aims beside what ``python -m bench`` measured, as Markdown."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.compare import LABELS

Row = dict[str, Any]
_LARGE = (("gpt2_124M", "GPT-2 124M, 8 x 64"), ("resnet50", "ResNet-50, batch 32"), ("gpt2_nano", "GPT-2 nano"),
          ("resnet18", "ResNet-18, batch 32"), ("digits", "digits"))  # fmt: skip
_MODES = ("logged", "exact", "logged-audit", "exact-audit")


def main() -> None:
    """Print two tables."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "results.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))
    print("\n".join([*models(rows), "", *aims(rows)]))


def models(rows: list[Row]) -> list[str]:
    """Return the table of whole trainings: ratios to plain float64 (and float32), log, memory."""
    lines = [
        "| workload | mode | x plain float64 | x plain float32 | log a step | peak memory, x float64 |",
        "|---|---|---|---|---|---|",
    ]
    for workload, name in _LARGE:
        for mode in (*_MODES, "low", "low-audit"):
            label = LABELS[mode]
            cells = [
                _ratio(rows, workload, f"{label}, s a step", LABELS["plain64"]),
                _ratio(rows, workload, f"{label}, s a step", LABELS["plain32"]),
                _bytes(rows, workload, f"{label}, log, bytes a step"),
                _ratio(rows, workload, f"{label}, peak memory, MB", LABELS["plain64"]),
            ]
            if any(cells):
                lines.append(f"| {name} | {label} | {' | '.join(cells)} |")
    return lines


def aims(rows: list[Row]) -> list[str]:
    """Return the table of aims."""
    lines = ["| figure | aim | measured |", "|---|---|---|"]
    for figure, aim, find in AIMS:
        lines.append(f"| {figure} | {aim} | {find(rows) or '-'} |")
    return lines


def _find(rows: list[Row], workload: str, figure: str, baseline: str | None = None) -> Row | None:
    fitting = (r for r in rows if r["workload"] == workload and r["figure"] == figure)
    return next((r for r in fitting if baseline is None or r["baseline"] == baseline), None)


def _ratio(rows: list[Row], workload: str, figure: str, baseline: str) -> str:
    row = _find(rows, workload, figure, baseline)
    return "" if row is None else f"{row['ratio']:.2f}"


def _bytes(rows: list[Row], workload: str, figure: str) -> str:
    row = _find(rows, workload, figure)
    if row is None:
        return ""
    value = float(row["value"])
    if value < 1e3:
        return f"{value:.0f} B"
    return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"


def _times(workload: str, modes: tuple[str, ...], base: str) -> Callable[[list[Row]], str]:
    def find(rows: list[Row]) -> str:
        found = [(m, _ratio(rows, workload, f"{LABELS[m]}, s a step", LABELS[base])) for m in modes]
        return ", ".join(f"{m.removesuffix('-audit')} {value}" for m, value in found if value)

    return find


def _kernel(*names: str) -> Callable[[list[Row]], str]:
    def find(rows: list[Row]) -> str:
        kernels = [r for r in rows if r["workload"] == "kernels" and any(r["figure"].startswith(n) for n in names)]
        return ", ".join(f"{r['figure'].split(',')[0]} {r['ratio']:.2f}" for r in kernels)

    return find


def _range(name: str) -> Callable[[list[Row]], str]:
    def find(rows: list[Row]) -> str:
        found = [r["ratio"] for r in rows if r["workload"] == "kernels" and r["figure"].startswith(name)]
        return f"{min(found):.2f} to {max(found):.2f}, median {statistics.median(found):.2f}" if found else ""

    return find


def _log(workload: str) -> Callable[[list[Row]], str]:
    def find(rows: list[Row]) -> str:
        found = [(m, _bytes(rows, workload, f"{LABELS[m]}, log, bytes a step")) for m in ("logged", "exact")]
        return ", ".join(f"{m} {value}" for m, value in found if value)

    return find


def _entropy(rows: list[Row]) -> str:
    found = [
        f"{name} {row['value']:.2f}"
        for workload, name in _LARGE
        if (row := _find(rows, workload, f"{LABELS['logged']}, log size / entropy of its entries"))
    ]
    return ", ".join(found)


AIMS: tuple[tuple[str, str, Callable[[list[Row]], str]], ...] = (
    ("verified / plain float64, GPT-2 124M 8 x 64", "1.15", _times("gpt2_124M", ("logged", "exact"), "plain64")),
    ("verified / plain float64, ResNet-50 batch 32", "1.0", _times("resnet50", ("logged", "exact"), "plain64")),
    ("verified / plain float32, GPT-2 124M", "2.5", _times("gpt2_124M", ("logged", "exact"), "plain32")),
    ("verified / plain float32, ResNet-50", "2.5", _times("resnet50", ("logged", "exact"), "plain32")),
    ("audit / plain float64, GPT-2 124M", "1.15", _times("gpt2_124M", ("logged-audit", "exact-audit"), "plain64")),
    ("audit / plain float64, ResNet-50", "1.0", _times("resnet50", ("logged-audit", "exact-audit"), "plain64")),
    ("log a step, ResNet-50 batch 32", "200 kB, exact 10 kB", _log("resnet50")),
    ("log a step, GPT-2 124M", "", _log("gpt2_124M")),
    ("log size / entropy of its entries", "1.2", _entropy),
    ("rounding / memory copy, 2^24", "1.3",
     _kernel("trainer+fp, 2^24 float64", "auditor+fp, 2^24 float64", "plain, 2^24 float64")),
    ("float32 onto bfloat16 / plain float32, GPT-2 124M", "1.25", _times("gpt2_124M", ("low",), "plain32")),
    ("float32 onto bfloat16 / plain float32, ResNet-50", "1.25", _times("resnet50", ("low",), "plain32")),
    ("float32 onto bfloat16 / plain float32, ResNet-18", "1.25", _times("resnet18", ("low",), "plain32")),
    ("float32 onto bfloat16 / plain float32, GPT-2 nano", "1.25", _times("gpt2_nano", ("low",), "plain32")),
    ("state digest / SHA-256 on all cores", "at least 0.85", _kernel("digest of")),
    ("exact mm / plain float64 mm, shapes of GPT-2 124M", "1.15", _range("exact mm")),
    ("exact convolution / plain, ResNet-50", "0.9", _kernel("exact convolutions of a ResNet-50, batch 32, all")),
)  # fmt: skip

if __name__ == "__main__":
    main()
