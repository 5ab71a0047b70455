"""Exact contractions against the plain float64 kernels: ratios of medians, interleaved, on this machine.

``python -m bench.bench_exact [--json]``. Shapes are those of GPT-2 124M (8 x 64 tokens) and of ResNet-50 (batch 4).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from vt_core.engine.exact_contractions import FORMS
from vt_core.numerics.quantise import quantise

ROUNDS = 7


def medians(**runs: Callable[[], Any]) -> dict[str, float]:
    """Return name -> median seconds; one warm-up each, then interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name -> (operation, arguments)."""

    def t(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    found: dict[str, tuple[str, dict[str, Any]]] = {
        "mm 512x768 768x3072": ("mm", {"self": t(512, 768), "mat2": t(768, 3072)}),
        "mm 768x512 512x3072 (weight gradient)": ("mm", {"self": t(512, 768).t(), "mat2": t(512, 3072)}),
        "bmm 96 x 64x64 64x64": ("bmm", {"self": t(96, 64, 64), "mat2": t(96, 64, 64)}),
    }
    for size, channels in ((32, 64), (16, 128), (8, 256), (4, 512)):
        x, w = t(4, channels, size, size), t(channels, channels, 3, 3)
        settings = {
            "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0],
            "groups": 1,
        }  # fmt: skip
        name = f"{channels} channels, {size}x{size}"
        found[f"convolution {name}"] = ("convolution", {"input": x, "weight": w, "bias": None, **settings})
        backward = {"grad_output": t(*x.shape), "input": x, "weight": w, "bias_sizes": None, **settings}
        found[f"convolution backward {name}"] = (
            "convolution_backward",
            {**backward, "output_mask": [True, True, False]},
        )
    return found


def contraction(operation: str, arguments: dict[str, Any]) -> dict[str, float]:
    """Return the median seconds of the plain and the exact forms of one contraction."""
    kernel = getattr(torch.ops.aten, operation)
    return medians(
        plain=lambda: kernel(**arguments),
        exact=lambda: FORMS[operation](arguments, 1),
        exact2=lambda: FORMS[operation](arguments, 2),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = []
    big = torch.randn(4096, 4096, dtype=torch.float64)
    copy = torch.empty_like(big)
    for dims in ((1,), (0,)):
        found = medians(copy=lambda: copy.copy_(big), quantise=lambda dims=dims: quantise(big, dims, 20))
        rows.append(
            {
                "workload": f"quantise 2^24, groups along {dims[0]}",
                "baseline": "copy",
                "ratio": found["quantise"] / found["copy"],
            }
        )
    for name, case in cases().items():
        found = contraction(*case)
        for figure in ("exact", "exact2"):
            row = {"workload": name, "figure": figure, "value": found[figure], "baseline": found["plain"]}
            rows.append({**row, "ratio": found[figure] / found["plain"]})
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['ratio']:6.2f}  {row.get('figure', ''):7s} {row['workload']}")


if __name__ == "__main__":
    main()
