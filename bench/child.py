"""One side of a comparison in a process of its own: ``python -m bench.child MODE WORKLOAD STEPS FOLDER``.

Modes: ``plain32`` and ``plain64`` (ordinary PyTorch); ``logged``, ``exact`` (verified training) and ``low`` (the same
in float32 onto bfloat16), which write FOLDER/MODE; and ``MODE-audit``, which replays it. Steps run when the controller
says so (``turns``). Verified training is what a training service runs, with log, leaves and checkpoint.
"""

from __future__ import annotations

import resource
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from bench.plain import plain_steps
from bench.shares import Shares
from bench.turns import WARM_UP, Turns, answer
from bench.workloads import WORKLOADS, location
from vt_core.engine.rounding import Place, TrainerRounding
from vt_core.engine.rounding_log import entropy_floor_bits
from vt_core.engine.scale import Bound
from vt_core.evidence.merkle import root
from vt_core.evidence.records import SegmentRecord
from vt_core.numerics import OpClass
from vt_core.training.job import load_job
from vt_core.training.leaves import decode_leaves
from vt_core.training.segment import LEAVES, Segment, file_table, train_segment
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, build_spec
from vt_core.training.state import digest
from vt_core.verify.audit import total_counts
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.replay import replay_segment
from vt_core.verify.verdict import SegmentResult

SETTINGS: dict[str, dict[str, str]] = {
    "logged": {"contractions": "logged"},
    "exact": {"contractions": "exact"},
    "low": {"contractions": "logged", "compute_dtype": "float32", "grid": "bfloat16"},
}


def main() -> None:
    """Run one mode."""
    mode, name, steps, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    setting, _, kind = mode.partition("-")
    workload = WORKLOADS[name]
    job = load_job(workload.reference, workload.args)
    dataset = job.dataset(location(workload.data, folder))
    train = {"seed": 1, "steps": steps, "segment_steps": steps, **SETTINGS.get(setting, {}), **workload.train}
    spec = build_spec(job, dataset, workload.reference, workload.args, train)
    if mode.startswith("plain"):
        result = plain(job, dataset, spec, torch.float32 if mode == "plain32" else torch.float64)
    else:
        session = Session(spec, job, dataset)
        with session.open():
            result = (replay if kind else verified)(session, folder / setting)
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer(result)


def plain(job: Any, dataset: Any, spec: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Train without the engine; returns the operations of a step by PyTorch's own count."""
    torch.set_default_dtype(dtype)
    torch.manual_seed(1)
    steps = plain_steps(job, dataset, spec, job.build_model().train(), dtype)
    counter = FlopCounterMode(display=False)
    with counter:
        loss = next(steps)
    for _ in range(WARM_UP - 1):
        loss = next(steps)
    turns = Turns()
    answer("ready")
    turns.wait()
    for step in range(WARM_UP + 1, spec.steps + 1):
        loss = next(steps)
        turns.step_done(step == spec.steps)
    return {"loss": float(loss), "flops": counter.get_total_flops()}


def verified(session: Session, folder: Path) -> dict[str, Any]:
    """Train with all evidence."""
    shares, turns, floor = Shares(session), Turns(session.settle), EntropyFloor()
    last = session.spec.steps
    initial = train_segment(session, 0, None, folder / "0")

    def progress(step: int, loss: float) -> None:
        if step == WARM_UP:
            answer("ready")
            turns.wait()
        elif step > WARM_UP:
            turns.step_done(step == last)
        shares.between_steps(step, last)

    with shares, floor:
        done = train_segment(session, 1, initial.state, folder / "1", progress)
    return {"shares": shares.found(), **evidence_figures(done, floor.bits)}


class EntropyFloor:
    """Sums up, while it is open, the least size of the log in bits, site by site, as entries are made."""

    def __enter__(self) -> EntropyFloor:
        self.bits, self._plain = 0.0, TrainerRounding.inexact
        floor, plain = self, self._plain

        def inexact(self: TrainerRounding, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
            counts = self.counters.by_class[op_class]
            before = counts.entries
            plain(self, x, op_class, bound, place)
            if counts.entries > before:
                floor.bits += entropy_floor_bits(x.numel(), counts.entries - before)

        TrainerRounding.inexact = inexact  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        TrainerRounding.inexact = self._plain  # type: ignore[method-assign]


def evidence_figures(done: Segment, floor: float) -> dict[str, Any]:
    """Return sizes and counts of a segment's log a step; ``floor`` is its least size in bits."""
    rows, counts = done.metrics["steps"], done.metrics["counts"]
    total = sum(r["log_bytes"] for r in rows)
    return {
        "log_bytes": total / len(rows),
        "fingerprint_bytes": statistics.mean(r["fingerprint_bytes"] for r in rows),
        "log_over_entropy": total * 8 / floor if floor else None,
        "logged": {k: v["entries"] / v["elements"] for k, v in counts.items() if v["elements"] and k != "plain"},
        "rounded": sum(v["elements"] for k, v in counts.items() if k != "plain") // len(rows),
        "rounded_plain": counts["plain"]["elements"] // len(rows),
        "operations": rows[-1]["operations"],
        "state": digest(done.state).root.hex(),
    }


def replay(session: Session, folder: Path) -> dict[str, Any]:
    """Audit both segments; raises if one is not replayed bit for bit."""
    turns, last = Turns(), session.spec.steps
    results: list[SegmentResult] = []
    start: tuple[SegmentRecord, Path] | None = None

    def progress(step: int) -> None:
        if step == WARM_UP:
            answer("ready")
            turns.wait()
        elif step > WARM_UP:
            turns.step_done(step == last)

    for index in (0, 1):
        where = folder / str(index)
        record = committed(session.spec, index, where)
        results.append(replay_segment(session, record, where, start, AuditorLimits.default(), progress))
        if results[-1].reason is not None:
            raise SystemExit(f"segment {index}: {results[-1].reason}: {results[-1].message}")
        start = (record, where)
    counts = total_counts(results)
    return {
        "state": results[-1].final_state,
        "disagreements": {c: n["disagreements"] for c, n in counts.items()},
        "headroom": {c: float(n["max_distance"]) for c, n in counts.items()},
    }


def committed(spec: RunSpec, index: int, where: Path) -> SegmentRecord:
    """Return the record of a segment as a trainer publishes it; ``where`` holds its files."""
    first, last = spec.segment_range(index)
    hashes = [leaf.hash() for leaf in decode_leaves((where / LEAVES).read_bytes())]
    return SegmentRecord(
        run_id="bench", spec=spec.digest(), index=index, first_step=first, last_step=last, previous=None,
        files=file_table(where), leaves=[h.hex() for h in hashes], root=root(hashes).hex(), pointer={},
    )  # fmt: skip


if __name__ == "__main__":
    main()
