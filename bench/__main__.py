"""``python -m bench [WORKLOAD ...] [--quick]``: every figure of docs/performance.md, as a table and bench/results.json.

Training and replay run in turns with ordinary PyTorch (``compare``), kernels against a memory copy or PyTorch's own
(``kernels``), the machine's peaks by themselves (``machine``). Figures are ratios of one run; seconds on a shared
machine mean little.

examples:
  python -m bench --quick            small models and the kernels, under ten minutes
  python -m bench                    with ResNet-50 (batch 32) and GPT-2 124M (8 x 64): needs 20 GB of memory
  python -m bench resnet18 --rounds 5
  python -m bench resnet18 --compute float32 --keep
  python -m bench kernels            the kernels alone
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from bench import kernels, machine
from bench.compare import BY_NAME, compare
from bench.workloads import WORKLOADS

QUICK = ("kernels", "digits", "gpt2_nano", "resnet18")
FULL = ("kernels", "digits", "gpt2_nano", "resnet18", "resnet50", "gpt2_124M")
RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(("kernels", *WORKLOADS)))
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1")
    parser.add_argument("--rounds", type=int, help="turns of each mode (default 3, quick 2)")
    parser.add_argument("--per-turn", type=int, help="steps of a turn (default 2, quick 1)")
    parser.add_argument("--compute", choices=BY_NAME, default="all", help="float32 is that onto a bfloat16 grid")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", action="store_true", help="keep what the file has of other figures")
    given = parser.parse_args()
    rounds, per_turn = given.rounds or (2 if given.quick else 3), given.per_turn or (1 if given.quick else 2)
    names = given.workloads or (QUICK if given.quick else FULL)
    for name in names:
        if name != "kernels" and name not in WORKLOADS:
            parser.error(f"unknown workload {name!r}: choose from kernels, {', '.join(WORKLOADS)}")
    others = json.loads(given.out.read_text(encoding="utf-8")) if given.keep and given.out.exists() else []
    began = time.perf_counter()
    print("# peaks of this machine", file=sys.stderr, flush=True)
    peaks = machine.peaks()
    rows: list[dict[str, Any]] = machine.rows(peaks)
    for name in names:
        parts = [kernels.rows()] if name == "kernels" else compare(name, rounds, per_turn, peaks, given.compute)
        for part in parts:
            rows += part
            write(given.out, rows, others)
    for row in rows:
        print(line(row))
    print(f"# {time.perf_counter() - began:.0f} s; written to {given.out}", file=sys.stderr)


def write(path: Path, rows: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Write ``rows``, and those of ``others`` that measure something else."""
    measured = {(row["workload"], row["figure"], row["baseline"]) for row in rows}
    kept = [row for row in others if (row["workload"], row["figure"], row["baseline"]) not in measured]
    path.write_text(json.dumps(kept + rows, indent=1) + "\n", encoding="utf-8")


def line(row: dict[str, Any]) -> str:
    """Return one row of the table."""
    value = f"{row['value']:.4g}" if isinstance(row["value"], float) else str(row["value"])
    ratio = "" if row["ratio"] is None else f"{row['ratio']:6.2f} of {row['baseline']}"
    return f"{row['workload']:<10} {row['figure']:<62} {value:>11}  {ratio}".rstrip()


if __name__ == "__main__":
    main()
