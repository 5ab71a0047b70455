"""A segment: some consecutive steps and the evidence they leave.

``train_segment`` is a pure function of (spec, state, data): the same bits come out on every machine that is given
the same rounding decisions, and on the same machine at every time. Segment 0 is the initialisation (step 0).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vt_core.engine.rounding import Counters, TrainerRounding
from vt_core.engine.rounding_log import LogWriter, log_sizes, step_digest
from vt_core.evidence.canonical import dumps, float_to_hex
from vt_core.evidence.digests import sha256_file
from vt_core.training.checkpoint import SCALARS, TENSORS, save_checkpoint
from vt_core.training.environment import environment
from vt_core.training.leaves import Leaf, encode_leaves, make_leaf
from vt_core.training.session import Session, StepOutcome
from vt_core.training.state import State, digest

LOG = "rounding.vtlog"
LEAVES = "leaves.json"
METRICS = "metrics.json"
ENVIRONMENT = "environment.json"
FILES = (TENSORS, SCALARS, LOG, LEAVES, METRICS, ENVIRONMENT)

Progress = Callable[[int, float], None]  # (step, loss)


@dataclass(frozen=True)
class Segment:
    """A finished segment: its final state, its leaves, and its files with their digests."""

    index: int
    state: State
    leaves: list[Leaf]
    files: dict[str, dict[str, Any]]
    metrics: dict[str, Any]


def commit_steps(first: int, last: int, interval: int) -> set[int]:
    """Return the steps after which a leaf is made: every ``interval`` steps, and always the last one."""
    return {s for s in range(first, last + 1) if s % interval == 0} | {last}


def train_segment(
    session: Session, index: int, state: State | None, directory: Path, progress: Progress | None = None
) -> Segment:
    """Train segment ``index`` from ``state`` (None for segment 0) and write its files into ``directory``.

    ``session`` is open. The directory appears whole or not at all: everything is written beside it first.
    Raises what :meth:`Session.run_step` raises, and OSError if the disk is full.
    """
    spec = session.spec
    first, last = spec.segment_range(index)
    draft = directory.with_name(directory.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    rounding = TrainerRounding(session.grid, spec.policy, spec.fingerprints)
    commits = commit_steps(first, last, spec.commit_interval)
    if index > 0:
        if state is None:
            raise ValueError("a training segment needs the state it starts from")
        session.restore(state)
    started = time.perf_counter()
    leaves: list[Leaf] = []
    rows: list[dict[str, Any]] = []
    logs: list[bytes] = []
    traces: list[bytes] = []
    words: list[bytes] = []
    snapshot: State | None = None
    with LogWriter(draft / LOG, {"spec": spec.digest(), "segment": index}) as log:
        for step in range(first, last + 1):
            rounding.begin_step(step)
            outcome = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
            record = log.append(rounding.end_step())
            logs.append(step_digest(record))
            traces.append(outcome.trace)
            words.append(rounding.words)
            rows.append(_row(step, outcome, record))
            if step in commits:
                snapshot = session.capture(step)
                leaves.append(make_leaf(step, digest(snapshot), logs, traces, words))
                logs, traces, words = [], [], []
            if progress is not None:
                progress(step, outcome.loss)
    assert snapshot is not None  # the last step is always a commit step
    save_checkpoint(snapshot, draft)
    (draft / LEAVES).write_bytes(encode_leaves(leaves))
    metrics = {
        "steps": rows,
        "counts": count_table(rounding.counters),
        "seconds": _hex(time.perf_counter() - started),
    }
    (draft / METRICS).write_bytes(dumps(metrics))
    (draft / ENVIRONMENT).write_bytes(dumps(environment(str(session.device))))
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)
    return Segment(index, snapshot, leaves, file_table(directory), metrics)


def file_table(directory: Path) -> dict[str, dict[str, Any]]:
    """Return name -> {sha256, size} of a segment's files."""
    table: dict[str, dict[str, Any]] = {}
    for name in FILES:
        path = directory / name
        table[name] = {"sha256": sha256_file(path), "size": path.stat().st_size}
    return table


def count_table(counters: Counters) -> dict[str, Any]:
    """Return the counts per op class as plain JSON."""
    table: dict[str, Any] = {
        str(c): {"elements": n.elements, "entries": n.entries} for c, n in counters.by_class.items()
    }
    table["plain"] = {"elements": counters.plain, "entries": 0}
    return table


def _row(step: int, outcome: StepOutcome, record: bytes) -> dict[str, Any]:
    entry_bytes, fingerprint_bytes = log_sizes(record)
    return {
        "step": step,
        "loss": _hex(outcome.loss),
        "log_bytes": entry_bytes,
        "fingerprint_bytes": fingerprint_bytes,
        "operations": outcome.operations,
    }


def _hex(value: float) -> str:
    return float_to_hex(value)
