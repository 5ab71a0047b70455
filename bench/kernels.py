"""The kernels alone, as rows of the results; each script named below prints more of its topic."""

from __future__ import annotations

import statistics
import sys
from typing import Any

from bench import bench_convolution, bench_digest, bench_dispatch, bench_exact, bench_rounding
from vt_core.numerics.threads import worker_count

Row = dict[str, Any]
_ROUNDING = (("float64", "float32", 24, 15), ("float64", "float32", 20, 60), ("float32", "bfloat16", 24, 7))
_DIGEST_MIB = 256


def rows() -> list[Row]:
    """Return the rows of all kernels."""
    found: list[Row] = []
    for part in (rounding, exact, convolution, digests, dispatch):
        print(f"# kernels: {part.__name__}", file=sys.stderr, flush=True)
        found += part()
    return found


def rounding() -> list[Row]:
    """Rounding kernels against a copy of the same tensor (``bench_rounding``)."""
    found = []
    for compute, grid, size, rounds in _ROUNDING:
        seconds = bench_rounding.measure(size, compute, grid, rounds)
        copy = seconds.pop("copy")
        found += [
            _row(f"{name}, 2^{size} {compute} onto {grid}, s", taken, "copy", taken / copy)
            for name, taken in seconds.items()
        ]
    return found


def exact() -> list[Row]:
    """Exact products and sums against PyTorch's float64 kernels (``bench_exact``)."""
    found = []
    for name, case in bench_exact.cases().items():
        if not name.startswith("convolution"):
            seconds = bench_exact.operation(*case)
            (plain, _), (taken, _) = seconds["plain"], seconds["exact"]
            found.append(_row(f"exact {name}, s", taken, "PyTorch", taken / plain))
    return found


def convolution() -> list[Row]:
    """Convolutions of a ResNet-50 against PyTorch's (``bench_convolution``)."""
    total: dict[str, list[float]] = {kind: [0.0, 0.0, 0.0] for kind in bench_convolution.PASSES}
    for shape in bench_convolution.SHAPES:
        for kind, forms in bench_convolution.runs(shape, 32).items():
            if shape.times and not (kind == "input" and shape.channels == 3):
                seconds = bench_convolution.medians(forms, 3)
                total[kind] = [t + shape.times * s for t, s in zip(total[kind], seconds, strict=True)]
    sums = [sum(parts) for parts in zip(*total.values(), strict=True)]
    found = []
    for kind, (plain, logged, exactly) in (*total.items(), ("all passes", sums)):
        name = f"convolutions of a ResNet-50, batch 32, {kind}, s"
        found.append(_row(f"logged {name}", logged, "PyTorch", logged / plain))
        found.append(_row(f"exact {name}", exactly, "PyTorch", exactly / plain))
    return found


def digests() -> list[Row]:
    """State digests against the hash library on all cores (``bench_digest``)."""
    times = bench_digest.digests(_DIGEST_MIB, 5)
    unit = times[f"hashlib, {worker_count()} cores"]
    found = []
    for name, taken in times.items():
        ratio = statistics.median(u / t for u, t in zip(unit, taken, strict=True))
        speed = _DIGEST_MIB * 2**20 / statistics.median(taken) / 1e9
        found.append(_row(f"{name}, GB/s", speed, "hashlib on all cores", ratio))
    return found


def dispatch() -> list[Row]:
    """What the engine adds to an operation, without its kernels (``bench_dispatch``)."""
    return [
        _row(f"dispatch of {name} ({found['class']}), us added", found["added"], "plain operation",
             found["added"] / found["plain"])
        for name, found in bench_dispatch.measure().items()
    ]  # fmt: skip


def _row(figure: str, value: float, baseline: str, ratio: float) -> Row:
    return {"workload": "kernels", "figure": figure, "value": value, "baseline": baseline, "ratio": ratio}
