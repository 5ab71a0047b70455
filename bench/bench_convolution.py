"""Convolutions of ResNet-18 and ResNet-50 on CIFAR images: blocked products against PyTorch's float64 kernels.

``python -m bench.bench_convolution [--batch 32] [--rounds 5] [--json]``: for each shape and pass the ratio of medians,
interleaved, of logged (not quantised) and of exact convolutions to the plain kernel, and their total over a ResNet-50.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench import timing
from vt_core.engine import convolutions
from vt_core.engine.exact_contractions import FORMS

PASSES = ("forward", "input", "weight")


class Shape(NamedTuple):
    """A square convolution with padding for its kernel; ``times``: how often a ResNet-50 has it."""

    channels: int
    outputs: int
    kernel: int
    stride: int
    size: int
    times: int


SHAPES = [
    Shape(3, 64, 3, 1, 32, 1), Shape(64, 64, 1, 1, 32, 1), Shape(64, 64, 3, 1, 32, 3), Shape(64, 256, 1, 1, 32, 4),
    Shape(256, 64, 1, 1, 32, 2), Shape(256, 128, 1, 1, 32, 1), Shape(128, 128, 3, 2, 32, 1),
    Shape(256, 512, 1, 2, 32, 1), Shape(64, 128, 3, 2, 32, 0), Shape(64, 128, 1, 2, 32, 0),
    Shape(128, 128, 3, 1, 16, 3), Shape(128, 512, 1, 1, 16, 4), Shape(512, 128, 1, 1, 16, 3),
    Shape(512, 256, 1, 1, 16, 1), Shape(256, 256, 3, 2, 16, 1), Shape(512, 1024, 1, 2, 16, 1),
    Shape(128, 256, 3, 2, 16, 0), Shape(256, 256, 3, 1, 8, 5), Shape(256, 1024, 1, 1, 8, 6),
    Shape(1024, 256, 1, 1, 8, 5), Shape(1024, 512, 1, 1, 8, 1), Shape(512, 512, 3, 2, 8, 1),
    Shape(1024, 2048, 1, 2, 8, 1), Shape(512, 512, 3, 1, 4, 2), Shape(512, 2048, 1, 1, 4, 3),
    Shape(2048, 512, 1, 1, 4, 2),
]  # fmt: skip


def runs(shape: Shape, batch: int) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]]:
    """Return for each pass the plain, the logged and the exact form."""

    def t(*sizes: int) -> Tensor:
        return torch.randn(*sizes, dtype=torch.float64)

    channels, outputs, kernel, stride, size, _ = shape
    settings = {
        "stride": [stride] * 2, "padding": [kernel // 2] * 2, "dilation": [1, 1], "transposed": False,
        "output_padding": [0, 0], "groups": 1,
    }  # fmt: skip
    operands = {"input": t(batch, channels, size, size), "weight": t(outputs, channels, kernel, kernel)}
    forward = {**operands, "bias": None, **settings}
    plain, plain_backward = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
    grad = torch.randn_like(plain(**forward))
    found: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
        "forward": (
            partial(plain, **forward),
            partial(logged, "convolution", forward, plain),
            partial(FORMS["convolution"], forward, 1),
        )
    }
    for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
        given = {"grad_output": grad, **operands, "bias_sizes": None, **settings, "output_mask": mask}
        found[name] = (
            partial(plain_backward, **given),
            partial(logged, "convolution_backward", given, plain_backward),
            partial(FORMS["convolution_backward"], given, 1),
        )
    return found


def logged(name: str, arguments: dict[str, Any], kernel: Any) -> Any:
    """Run the operation as training with ``contractions: logged`` does."""
    found = convolutions.run(name, arguments, kernel)
    return kernel(**arguments) if found is None else found


def medians(forms: tuple[Callable[[], Any], ...], rounds: int) -> list[float]:
    """Return the median seconds of each, after one call to warm up, interleaved."""
    found = timing.medians(rounds, {str(i): form for i, form in enumerate(forms)})
    return [found[str(i)] for i in range(len(forms))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    total = [0.0, 0.0, 0.0]
    for shape in SHAPES:
        kernel, stride = f"{shape.kernel}x{shape.kernel}", f"/{shape.stride}"
        name = f"{shape.channels} -> {shape.outputs}, {kernel}{stride}, {shape.size}x{shape.size}"
        for direction, forms in runs(shape, given.batch).items():
            plain, logged, exact = medians(forms, given.rounds)
            row = {
                "workload": name,
                "pass": direction,
                "plain": plain,
                "logged": logged / plain,
                "exact": exact / plain,
            }
            rows.append(row)
            if not given.json:
                print(f"{row['logged']:6.2f} {row['exact']:6.2f}  {direction:8s} {name}", flush=True)
            if not (direction == "input" and shape.channels == 3):  # nobody wants the gradient of the images
                total = [t + shape.times * s for t, s in zip(total, (plain, logged, exact), strict=True)]
    summary = {"workload": "ResNet-50, all convolutions of a step", "pass": "all", "plain": total[0]}
    rows.append({**summary, "logged": total[1] / total[0], "exact": total[2] / total[0]})
    if given.json:
        print(json.dumps(rows))
    else:
        print(f"{rows[-1]['logged']:6.2f} {rows[-1]['exact']:6.2f}  {'all':8s} {summary['workload']}")


if __name__ == "__main__":
    main()
