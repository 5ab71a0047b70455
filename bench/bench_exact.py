"""Exact contractions and sums against the plain float64 kernels: ratios of medians, interleaved, on this machine.

``python -m bench.bench_exact [--json] [--only WORD]``. Shapes are those of GPT-2 124M (8 x 64 tokens) and of ResNet-50
(batch 4). Beside the ratio of the times by the clock stands that of processor time, which other work disturbs less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from vt_core.engine.exact_contractions import FORMS
from vt_core.engine.exact_sums import FORMS as SUMS
from vt_core.numerics.quantise import quantise, quantise_into

ROUNDS = 7


Seconds = tuple[float, float]  # by the clock, and of all processors


def medians(**runs: Callable[[], Any]) -> dict[str, Seconds]:
    """Return name -> median seconds; one warm-up each, then interleaved."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started, used = time.perf_counter(), time.process_time()
            run()
            wall[name].append(time.perf_counter() - started)
            busy[name].append(time.process_time() - used)
    return {name: (statistics.median(wall[name]), statistics.median(busy[name])) for name in runs}


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name -> (operation, arguments)."""

    def t(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    found: dict[str, tuple[str, dict[str, Any]]] = {
        "mm 512x768 768x768": ("mm", {"self": t(512, 768), "mat2": t(768, 768)}),
        "mm 512x768 768x2304": ("mm", {"self": t(512, 768), "mat2": t(768, 2304)}),
        "mm 512x768 768x3072": ("mm", {"self": t(512, 768), "mat2": t(768, 3072)}),
        "mm 512x3072 3072x768": ("mm", {"self": t(512, 3072), "mat2": t(3072, 768)}),
        "mm 512x768 768x50257 (transposed)": ("mm", {"self": t(512, 768), "mat2": t(50257, 768).t()}),
        "mm 512x3072 3072x768 (input's gradient)": ("mm", {"self": t(512, 3072), "mat2": t(768, 3072).t()}),
        "mm 512x768 768x3072 (input's gradient)": ("mm", {"self": t(512, 768), "mat2": t(3072, 768).t()}),
        "mm 512x50257 50257x768 (input's gradient)": ("mm", {"self": t(512, 50257), "mat2": t(50257, 768)}),
        "mm 768x512 512x3072 (weight's gradient)": ("mm", {"self": t(512, 768).t(), "mat2": t(512, 3072)}),
        "mm 50257x512 512x768 (weight's gradient)": ("mm", {"self": t(512, 50257).t(), "mat2": t(512, 768)}),
        "bmm 96 x 64x64 64x64": ("bmm", {"self": t(96, 64, 64), "mat2": t(96, 64, 64)}),
        "bmm 96 x 64x64 64x64 (transposed)": ("bmm", {"self": t(96, 64, 64), "mat2": t(96, 64, 64).transpose(1, 2)}),
        "sum of 512x3072 over rows": ("sum", {"self": t(512, 3072), "dim": [0]}),
        "sum of 512x3072 over columns": ("sum", {"self": t(512, 3072), "dim": [1]}),
        "mean of 2^20": ("mean", {"self": t(1 << 20)}),
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


def operation(name: str, arguments: dict[str, Any]) -> dict[str, Seconds]:
    """Return the median seconds of the plain and the exact forms of one operation."""
    kernel = getattr(torch.ops.aten, name)
    if name in SUMS:
        return medians(plain=lambda: kernel(**arguments), exact=lambda: SUMS[name](arguments))
    return medians(
        plain=lambda: kernel(**arguments),
        exact=lambda: FORMS[name](arguments, 1),
        exact2=lambda: FORMS[name](arguments, 2),
    )


def quantisation(only: str) -> dict[str, dict[str, Seconds]]:
    """Return name -> seconds of quantising into memory that is used again (``again``) and into fresh memory."""
    found = {}
    for shape in ((4096, 4096), (768, 3072), (512, 768)):
        x = torch.randn(*shape, dtype=torch.float64)
        copy, buffer = torch.empty_like(x), torch.empty(x.numel(), dtype=torch.float64)
        for dim, groups in ((-1, "rows"), (-2, "columns")):
            name = f"quantise {shape[0]}x{shape[1]}, {groups}, against a copy"
            if only not in name:
                continue
            found[name] = medians(
                plain=partial(copy.copy_, x),
                again=partial(quantise_into, x, dim, 20, buffer),
                fresh=partial(quantise, x, (dim,), 20),
            )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="measure only what has this word in its name")
    options = parser.parse_args()
    measured = quantisation(options.only)
    measured |= {name: operation(*case) for name, case in cases().items() if options.only in name}
    rows = [
        {
            "workload": name,
            "figure": figure,
            "value": value[0],
            "baseline": seconds["plain"][0],
            "ratio": value[0] / seconds["plain"][0],
            "processor_ratio": value[1] / seconds["plain"][1],
        }
        for name, seconds in measured.items()
        for figure, value in seconds.items()
        if figure != "plain"
    ]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['ratio']:6.2f} {row['processor_ratio']:6.2f}  {row['figure']:7s} {row['workload']}")


if __name__ == "__main__":
    main()
