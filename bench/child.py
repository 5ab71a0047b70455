"""One measurement in a process of its own: ``python -m bench.child MODE WORKLOAD STEPS FOLDER``; prints one JSON line.

Modes: plain32, plain64 (ordinary PyTorch), train (verified, writes FOLDER/segments), audit (replays it).
"""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.workloads import WORKLOADS, location
from vt_core.engine.rounding import AuditorRounding
from vt_core.engine.rounding_log import LogReader, entropy_floor_bits
from vt_core.engine.streams import Streams
from vt_core.training.job import load_job
from vt_core.training.sampler import Sampler
from vt_core.training.segment import LOG, train_segment
from vt_core.training.session import Session
from vt_core.training.spec import build_spec
from vt_core.training.state import digest


def main() -> None:
    mode, name, steps, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    workload = WORKLOADS[name]
    job = load_job(workload.reference, workload.args)
    dataset = job.dataset(location(workload.data, folder))
    if mode.startswith("plain"):
        result = plain(job, dataset, steps, torch.float32 if mode == "plain32" else torch.float64)
    else:
        train = {"seed": 1, "steps": steps, "segment_steps": steps, **workload.train}
        spec = build_spec(job, dataset, workload.reference, workload.args, train)
        session = Session(spec, job, dataset)
        with session.open():
            result = (verified if mode == "train" else replay)(session, folder)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def plain(job: Any, dataset: Any, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    torch.set_default_dtype(dtype)
    torch.manual_seed(1)
    model = job.build_model().train()
    optimizer = job.build_optimizer(model)
    streams = Streams(1)
    sampler = Sampler(streams, len(dataset), job.batch_size)
    times = []
    for step in range(1, steps + 1):
        began = time.perf_counter()
        arrays = dataset.batch(sampler.indices(step), streams.stream("augment", step=step))
        batch = {n: torch.from_numpy(a) for n, a in arrays.items()}
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
        optimizer.zero_grad(set_to_none=True)
        loss = job.loss(model, batch)
        loss.backward()
        job.before_update(model)
        optimizer.step()
        times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times[1:] or times), "first": times[0], "loss": float(loss.detach())}


def verified(session: Session, folder: Path) -> dict[str, Any]:
    segments = folder / "segments"
    initial = train_segment(session, 0, None, segments / "0")
    marks = [time.perf_counter()]
    done = train_segment(session, 1, initial.state, segments / "1", lambda s, loss: marks.append(time.perf_counter()))
    times = [b - a for a, b in itertools.pairwise(marks[1:])] or [marks[1] - marks[0]]
    rows = done.metrics["steps"]
    counts = done.metrics["counts"]
    floor = 0.0
    elements = {k: v["elements"] for k, v in counts.items()}
    for v in counts.values():
        floor += entropy_floor_bits(max(v["elements"], 1), v["entries"]) if v["entries"] else 0.0
    return {
        "seconds": statistics.median(times),
        "log_bytes_per_step": statistics.mean(r["log_bytes"] for r in rows),
        "fingerprint_bytes_per_step": statistics.mean(r["fingerprint_bytes"] for r in rows),
        "log_over_entropy": sum(r["log_bytes"] for r in rows) * 8 / max(floor, 1.0),
        "share_logged": {k: v["entries"] / v["elements"] for k, v in counts.items() if v["elements"] and k != "plain"},
        "elements_per_step": {k: v // len(rows) for k, v in elements.items()},
        "operations": rows[-1]["operations"],
        "state": digest(done.state).root.hex(),
    }


def replay(session: Session, folder: Path) -> dict[str, Any]:
    """Replay both segments with their logs and compare the final state with the published one."""
    from vt_core.training.checkpoint import load_checkpoint

    spec = session.spec
    rounding = AuditorRounding(session.grid, spec.policy, spec.fingerprints)
    times, findings = [], 0
    for index in (0, 1):
        directory = folder / "segments" / str(index)
        if index:
            session.restore(load_checkpoint(folder / "segments" / "0"))
        with LogReader(directory / LOG, 1 << 34) as reader:
            for step in reader.steps:
                rounding.begin_replay(reader.read_step(step))
                began = time.perf_counter()
                _ = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
                rounding.end_replay()
                state = digest(session.capture(step))
                if step:
                    times.append(time.perf_counter() - began)
                findings += len(rounding.findings)
        published = digest(load_checkpoint(directory)).root
        if published != state.root:
            raise SystemExit(f"segment {index}: the replay ends in another state")
    return {
        "seconds": statistics.median(times[1:] or times),
        "findings": findings,
        "state": state.root.hex(),
        "counts": {
            str(c): {"entries": n.entries, "disagreements": n.disagreements, "max_distance": n.max_distance}
            for c, n in rounding.counters.by_class.items()
        },
    }


if __name__ == "__main__":
    main()
