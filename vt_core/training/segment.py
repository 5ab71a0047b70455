"""A segment: some consecutive steps and the evidence they leave.

``train_segment`` is a pure function of (spec, state, data): the same bits come out on every machine that is given
the same rounding decisions, and on the same machine at every time. Segment 0 is the initialisation (step 0).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
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
from vt_core.training.live_digest import LiveDigest
from vt_core.training.session import Session, StepOutcome
from vt_core.training.state import State, StateDigest
from vt_core.training.tensor_digest import Pending, state_root

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


@dataclass(frozen=True)
class _OpenLeaf:
    """What a leaf is made of; ``state`` is None after the last step, whose snapshot is hashed later."""

    step: int
    state: LiveDigest | None
    logs: list[bytes]
    traces: list[bytes]
    words: list[bytes]

    def close(self, state: StateDigest) -> Leaf:
        return make_leaf(self.step, state, self.logs, self.traces, self.words)


@dataclass
class SegmentDraft:
    """A segment whose steps are done and whose files are not yet: :meth:`finish` writes them, from any thread.

    Nothing of the session is used any more: the next segment may run from ``state`` meanwhile. Until it is finished
    there is nothing at ``directory``, and a killed process leaves only a ``.draft`` folder that nobody reads.
    """

    index: int
    state: State
    directory: Path
    _leaves: list[_OpenLeaf]
    _metrics: dict[str, Any]
    _environment: dict[str, Any]
    _finished: Segment | None = None

    def finish(self) -> Segment:
        """Write and hash what is missing, and put the directory in its place; may be called again after a failure.

        Raises OSError if the disk is full, and SpecError for a state that no auditor would read.
        """
        if self._finished is not None:
            return self._finished
        draft = _draft(self.directory)
        hashing = Pending(self.state.tensors, None, background=True)
        files = save_checkpoint(self.state, draft)
        roots = hashing.result()
        final = StateDigest(state_root(self.state.step, self.state.scalars, roots), roots)
        leaves = [leaf.close(final if leaf.state is None else leaf.state.result()) for leaf in self._leaves]
        (draft / LEAVES).write_bytes(encode_leaves(leaves))
        (draft / METRICS).write_bytes(dumps(self._metrics))
        (draft / ENVIRONMENT).write_bytes(dumps(self._environment))
        files = file_table(draft, files)
        shutil.rmtree(self.directory, ignore_errors=True)
        draft.rename(self.directory)
        self._finished = Segment(self.index, self.state, leaves, files, self._metrics)
        return self._finished


def train_segment(
    session: Session, index: int, state: State | None, directory: Path, progress: Progress | None = None
) -> Segment:
    """Train segment ``index`` from ``state`` (None for segment 0) and write its files into ``directory``.

    ``session`` is open. The directory appears whole or not at all: everything is written beside it first.
    Raises what :meth:`Session.run_step` raises, and OSError if the disk is full.
    """
    return run_segment(session, index, state, directory, progress).finish()


def run_segment(
    session: Session, index: int, state: State | None, directory: Path, progress: Progress | None = None
) -> SegmentDraft:
    """Run the steps of a segment as :func:`train_segment` does, and leave writing its files to the draft."""
    spec = session.spec
    first, last = spec.segment_range(index)
    draft = _draft(directory)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    rounding = TrainerRounding(session.grid, spec.policy, spec.fingerprints)
    commits = commit_steps(first, last, spec.commit_interval)
    if index > 0:
        if state is None:
            raise ValueError("a training segment needs the state it starts from")
        session.restore(state)
    started = time.perf_counter()
    leaves: list[_OpenLeaf] = []
    rows: list[dict[str, Any]] = []
    logs: list[bytes] = []
    traces: list[bytes] = []
    words: list[bytes] = []
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
                # After the last step the whole state is copied anyway, for the checkpoint, and hashed from there.
                state_digest = None if step == last else session.start_digest(step)
                leaves.append(_OpenLeaf(step, state_digest, logs, traces, words))
                logs, traces, words = [], [], []
            if step == last:
                snapshot = session.capture(step)
            if progress is not None:
                progress(step, outcome.loss)
    metrics = {
        "steps": rows,
        "counts": count_table(rounding.counters),
        "seconds": _hex(time.perf_counter() - started),
    }
    return SegmentDraft(index, snapshot, directory, leaves, metrics, environment(str(session.device)))


def _draft(directory: Path) -> Path:
    return directory.with_name(directory.name + ".draft")


def file_table(directory: Path, known: Mapping[str, dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """Return name -> {sha256, size} of a segment's files; the entries that are ``known`` are not worked out again."""
    return {name: known[name] if known and name in known else _entry(directory / name) for name in FILES}


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": sha256_file(path), "size": path.stat().st_size}


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
