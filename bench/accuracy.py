"""Loss curves of verified training against plain PyTorch, from the same weights and batches, without dropout.

``python -m bench.accuracy [--steps 200] [--seeds 2] [--out docs/images/accuracy.png]``: plain float32 and float64, and
verified training with contractions logged, exact and exact2, on a small ResNet (CIFAR images) and a small GPT (text).
``VT_BENCH_DATA`` names a folder with real data, as for ``python -m bench``. Prints a table; ``--json FILE`` keeps all
losses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.plain import plain_steps
from bench.workloads import location
from vt_core.engine.rounding import DryRounding
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, build_spec

JOBS: dict[str, tuple[str, dict[str, Any], str]] = {
    "cifar_resnet": (
        "vt_core.jobs.cifar_resnet:CifarResNetJob",
        {"depth": 18, "width": 16, "batch_size": 16, "augment": True},
        "cifar",
    ),
    "gpt2_text": ("vt_core.jobs.gpt2_text:Gpt2TextJob", {"batch_size": 8, "block": 64, "dropout": 0.0}, "text"),
}
MODES = ("float32", "float64", "logged", "exact", "exact2")
LAST = 20
"""The final loss is the mean over the last LAST steps."""


def curve(name: str, mode: str, seed: int, steps: int, folder: Path) -> list[float]:
    """Return the loss of each step."""
    reference, args, kind = JOBS[name]
    job = load_job(reference, args)
    dataset = job.dataset(location(kind, folder))
    train = {"seed": seed, "steps": steps, "segment_steps": steps}
    contractions = mode if mode in ("exact", "exact2") else "logged"
    spec = build_spec(job, dataset, reference, args, {**train, "contractions": contractions})
    session = Session(spec, job, dataset)
    rounding = DryRounding(session.grid, spec.policy, False)
    with session.open():
        rounding.begin_step(0)
        session.initialise(rounding)
        if mode not in ("float32", "float64"):
            losses = []
            for step in range(1, steps + 1):
                rounding.begin_step(step)
                losses.append(session.run_step(step, rounding).loss)
            return losses
        weights = {k: v.clone() for k, v in session.model.state_dict().items()}
    return _plain(job, dataset, spec, weights, getattr(torch, mode))


def _plain(job: Job, dataset: Dataset, spec: RunSpec, weights: dict[str, Any], dtype: torch.dtype) -> list[float]:
    torch.set_default_dtype(dtype)
    model = job.build_model().train()
    model.load_state_dict(weights)
    losses = [float(loss) for loss in plain_steps(job, dataset, spec, model, dtype)]
    torch.set_default_dtype(torch.float32)
    return losses


def draw(curves: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """Draw one panel a job: the mean over the seeds of each mode, smoothed over ten steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(curves), figsize=(11, 4))
    for panel, (name, modes) in zip(np.atleast_1d(panels), curves.items(), strict=True):
        for style, (mode, runs) in zip(("-", "--", "-.", ":", (0, (1, 3))), modes.items(), strict=True):
            mean = np.mean(np.array(runs), axis=0)
            width = min(10, len(mean))
            panel.plot(np.convolve(mean, np.ones(width) / width, "valid"), linestyle=style, label=mode)
        panel.set(title=name, xlabel="step", ylabel="training loss")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train everything, print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; default: all")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    curves: dict[str, dict[str, list[list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.jobs or JOBS:
            for mode in MODES:
                runs = curves.setdefault(name, {}).setdefault(mode, [])
                for seed in range(1, arguments.seeds + 1):
                    runs.append(curve(name, mode, seed, arguments.steps, Path(folder)))
                    print(f"{name} {mode} seed {seed}: {runs[-1][-1]:.6f}", file=sys.stderr, flush=True)
    print("| job | mode | final loss | seed spread | largest distance of the loss to float64, by seed |")
    print("|---|---|---|---|---|")
    for name, modes in curves.items():
        for mode, runs in modes.items():
            finals = [statistics.fmean(run[-LAST:]) for run in runs]
            far = [
                max(abs(a - b) for a, b in zip(run, base, strict=True))
                for run, base in zip(runs, modes["float64"], strict=True)
            ]
            distances = ", ".join(f"{d:.1e}" for d in far)
            print(
                f"| {name} | {mode} | {statistics.fmean(finals):.5f} | {max(finals) - min(finals):.5f} | {distances} |"
            )
    if arguments.out:
        draw(curves, arguments.out)
    if arguments.json:
        arguments.json.write_text(json.dumps(curves))


if __name__ == "__main__":
    main()
