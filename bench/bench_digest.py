"""Speed of the state digest against the hash library, and what a digest after each step costs a training.

    python bench/bench_digest.py [--mib 512] [--size tiny] [--steps 30] [--rounds 7]

The state has ``--mib`` MiB at grid width. The unit is SHA-256 by hashlib over 1 MiB that stays in the cache, one
thread a core. The runs are interleaved and medians are compared; a ratio is the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.timing import in_turns
from bench.workloads import location
from vt_core.engine.rounding import TrainerRounding
from vt_core.numerics import Grid
from vt_core.numerics.threads import worker_count
from vt_core.training.checkpoint import save_checkpoint
from vt_core.training.job import load_job
from vt_core.training.session import Session
from vt_core.training.spec import build_spec
from vt_core.training.state import capture, check_on_grid, digest, digest_live

MIB = 1 << 20
GRID = Grid.parse("float32")


def hash_buffer(count: int) -> None:
    """Hash one cached MiB ``count`` times."""
    buffer = bytearray(os.urandom(MIB))
    for _ in range(count):
        hasher = hashlib.sha256(b"\x00")
        hasher.update(buffer)
        hasher.digest()


def on_cores(cores: int, mib: int) -> None:
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(hash_buffer, [mib // cores] * cores))


def digests(mib: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each part of a committed step on a state of one large model, and of hashlib."""
    model = nn.ParameterList([torch.randn(MIB).double() for _ in range(mib // 4)])  # 4 MiB each at grid width
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshot = capture(0, model, optimizer, GRID)
    cores = worker_count()
    with tempfile.TemporaryDirectory(prefix="vt-bench-") as folder:
        work: dict[str, Callable[[], object]] = {
            "hashlib, 1 core": lambda: on_cores(1, mib),
            f"hashlib, {cores} cores": lambda: on_cores(cores, mib),
            "digest of a snapshot": lambda: digest(snapshot),
            "digest of the live state": lambda: digest_live(0, model, optimizer, GRID),
            "capture": lambda: capture(0, model, optimizer, GRID),
            "check_on_grid": lambda: check_on_grid(model, optimizer, GRID, {}),
            "checkpoint with its SHA-256": lambda: save_checkpoint(snapshot, Path(folder)),
        }
        return in_turns(rounds, work)


def show(mib: int, times: dict[str, list[float]]) -> None:
    """Print speeds and ratios."""
    cores = worker_count()
    unit = times[f"hashlib, {cores} cores"]
    for name, found in times.items():
        ratio = statistics.median(u / t for u, t in zip(unit, found, strict=True))
        median = statistics.median(found)
        print(
            f"{name:<28} {median:8.4f} s  {mib * MIB / median / 1e9:6.2f} GB/s  {ratio:6.3f} x hashlib, {cores} cores"
        )


def steps(size: str, count: int) -> None:
    """Train a GPT-2 with a digest after each step: none, at once, or hidden behind the next step."""
    reference = "vt_core.jobs.gpt2_text:Gpt2TextJob"
    arguments = {"size": size, "tokens": "byte", "batch_size": 8, "block": 64}
    with tempfile.TemporaryDirectory(prefix="vt-bench-") as folder:
        job = load_job(reference, arguments)
        dataset = job.dataset(location("text", Path(folder)))
        spec = build_spec(job, dataset, reference, arguments, {"seed": 1, "steps": count, "segment_steps": count})
        session = Session(spec, job, dataset)
        rounding = TrainerRounding(session.grid, spec.policy, spec.fingerprints)
        times: dict[str, list[float]] = {"no digest": [], "at once": [], "hidden": []}
        with session.open():
            rounding.begin_step(0)
            session.initialise(rounding)
            for step in range(1, count + 1):
                mode = list(times)[step % 3]
                start = time.perf_counter()
                if mode == "at once":
                    session.digest(step - 1)
                hidden = session.start_digest(step - 1) if mode == "hidden" else None
                rounding.begin_step(step)
                session.run_step(step, rounding)
                if hidden is not None:
                    hidden.result()
                if step > 3:
                    times[mode].append(time.perf_counter() - start)
    base = statistics.median(times["no digest"])
    for mode, found in times.items():
        median = statistics.median(found)
        print(f"GPT-2 {size}, step with digest: {mode:<10} {median:8.4f} s  {median / base:6.3f} x no digest")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    show(given.mib, digests(given.mib, given.rounds))
    if given.steps:
        steps(given.size, given.steps)
