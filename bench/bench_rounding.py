"""Speed of the rounding kernels against a memory copy (``torch.copy_``) and against the reference.

    python bench/bench_rounding.py

Medians of interleaved runs, so that a busy machine slows all of them alike. Each kernel run starts from unrounded
values: the copy that restores them is timed by itself and is the unit.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.timing import seconds
from vt_core.numerics import DEFAULT, Grid, OpClass, kernels, reference


def compile_time() -> float:
    """First calls: compilation, or loading from numba's cache."""
    start = time.perf_counter()
    for name in ("float64", "float32"):
        x = torch.ones(4, dtype=getattr(torch, name))
        tolerance = DEFAULT[name][OpClass.CONTRACTION]
        entries = kernels.trainer_round_(x, tolerance, Grid.parse("bfloat16"), True).entries
        kernels.auditor_round_(x, tolerance, Grid.parse("bfloat16"), entries, True)
        kernels.round_plain_(x, Grid.parse("bfloat16"), True)
        kernels.is_on_grid(x, Grid.parse("bfloat16"))
        kernels.correctly_rounded_sqrt(x)
    return time.perf_counter() - start


def measure(log_size: int, compute: str, grid_name: str, rounds: int, with_reference: bool = False) -> dict[str, float]:
    """Return the median seconds of a copy (``copy``) and of each kernel on ``2**log_size`` elements."""
    grid, tolerance = Grid.parse(grid_name), DEFAULT[compute][OpClass.CONTRACTION]
    source = torch.randn(1 << log_size, dtype=getattr(torch, compute), generator=torch.Generator().manual_seed(0))
    x = source.clone()
    entries = kernels.trainer_round_(x, tolerance, grid, False).entries
    rounded = x.clone()
    work: dict[str, Callable[[], object]] = {
        "trainer": lambda: kernels.trainer_round_(x, tolerance, grid, False),
        "trainer+fp": lambda: kernels.trainer_round_(x, tolerance, grid, True),
        "auditor+fp": lambda: kernels.auditor_round_(x, tolerance, grid, entries, True),
        "plain": lambda: kernels.round_plain_(x, grid, False),
        "on grid": lambda: kernels.is_on_grid(rounded, grid),
    }
    if with_reference:
        work["reference"] = lambda: reference.trainer_round_(x, tolerance, grid, False)
    times: dict[str, list[float]] = {name: [] for name in ["copy", *work]}
    for _ in range(rounds):
        for name, run in work.items():
            times["copy"].append(seconds(lambda: x.copy_(source)))
            times[name].append(seconds(run))
    return {name: statistics.median(taken) for name, taken in times.items()}


def show(log_size: int, compute: str, grid_name: str, rounds: int, with_reference: bool = False) -> None:
    """Print one line of ratios."""
    found = measure(log_size, compute, grid_name, rounds, with_reference)
    copy = found.pop("copy")
    ratios = "  ".join(f"{name} {taken / copy:6.2f}" for name, taken in found.items())
    print(f"2^{log_size} {compute} -> {grid_name}: copy {copy * 1e6:9.1f} us;  x copy: {ratios}")


if __name__ == "__main__":
    print(f"first calls (compile or load): {compile_time():.1f} s; {kernels.worker_count()} threads")
    for compute, grid_name in (("float64", "float32"), ("float64", "bfloat16"), ("float32", "bfloat16")):
        show(24, compute, grid_name, 7, with_reference=compute == "float64" and grid_name == "float32")
        show(20, compute, grid_name, 40)
        show(16, compute, grid_name, 200)
        show(8, compute, grid_name, 500)
