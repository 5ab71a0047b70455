"""What a report needs beside the verdict: the run's commitments, and the curves from checked ``metrics.json`` files.

``metrics.json`` is what the trainer says about its own run. It is informative: no verdict rests on it, so a file that
is missing, changed or malformed makes a note in the report and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore
from tasks.runs import RunStore, fetch_segments
from vt_core.errors import EvidenceError, NotFound
from vt_core.evidence.canonical import float_from_hex, loads_strict
from vt_core.evidence.digests import check_file, read_bounded, sha256_bytes
from vt_core.evidence.records import SegmentRecord
from vt_core.training.segment import METRICS
from vt_core.verify.audit import Run, open_run

_ROW = {"step", "loss", "log_bytes", "fingerprint_bytes", "operations"}
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class StepRow:
    """One step as the trainer reports it. ``loss`` may be NaN or infinite; step 0 is the initialisation."""

    step: int
    loss: float
    log_bytes: int
    fingerprint_bytes: int


@dataclass(frozen=True)
class ReportInputs:
    """The data of a report beside the verdict. ``run`` is None if the commitments do not hold together.

    ``rows`` are in order of steps, with gaps where segments were not replayed; ``notes`` say what is not available.
    """

    run_id: str
    store: str
    run: Run | None
    rows: tuple[StepRow, ...] = ()
    notes: tuple[str, ...] = ()


def read_metrics(data: bytes, first: int, last: int) -> list[StepRow]:
    """Return the rows of a ``metrics.json`` that must cover steps ``first`` to ``last``, each once and in order.

    Raises EvidenceError ``evidence_malformed`` for anything else.
    """
    plain = loads_strict(data, METRICS, _MOST_BYTES)
    rows = plain.get("steps") if isinstance(plain, dict) else None
    if not isinstance(rows, list) or len(rows) != last - first + 1:
        raise EvidenceError("evidence_malformed", f"{METRICS} must hold one row for each step from {first} to {last}")
    return [_row(row, step) for step, row in enumerate(rows, first)]


def _row(row: Any, step: int) -> StepRow:
    if not isinstance(row, dict) or set(row) != _ROW or row["step"] != step:
        raise EvidenceError("evidence_malformed", f"{METRICS}: the row of step {step} has another form")
    log_bytes, fingerprint_bytes = row["log_bytes"], row["fingerprint_bytes"]
    if not all(type(n) is int and n >= 0 for n in (row["step"], log_bytes, fingerprint_bytes, row["operations"])):
        raise EvidenceError("evidence_malformed", f"{METRICS}: step {step} has a count that is none")
    loss = float_from_hex(row["loss"], f"{METRICS}: loss of step {step}", finite=False)
    return StepRow(step, loss, log_bytes, fingerprint_bytes)


def collect(
    run_id: str, store: str, run: Run | None, replayed: Iterable[int], folders: Mapping[int, Path],
    errors: Mapping[int, EvidenceError],
) -> ReportInputs:  # fmt: skip
    """Return the inputs with the curves of the ``replayed`` segments, from those ``folders`` that hold them.

    A file counts only if its SHA-256 is the committed one. Never raises for bad evidence.
    """
    rows: list[StepRow] = []
    notes: list[str] = []
    for index in sorted(set(replayed)):
        if run is None or not 0 <= index < len(run.records):
            continue
        try:
            rows += _checked(run.records[index], index, folders, errors)
        except (EvidenceError, OSError) as error:
            notes.append(f"curves of segment {index} are not available: {error}")
    return ReportInputs(run_id, store, run, tuple(rows), tuple(notes))


def _checked(
    record: SegmentRecord, index: int, folders: Mapping[int, Path], errors: Mapping[int, EvidenceError]
) -> list[StepRow]:
    if index in errors:
        raise errors[index]
    entry = record.files.get(METRICS)
    if index not in folders or entry is None:
        raise EvidenceError("artifact_missing", f"{METRICS} is not part of the evidence that was fetched")
    path = folders[index] / METRICS
    check_file(path, entry["sha256"], entry["size"], f"segment {index}: {METRICS}")
    return read_metrics(read_bounded(path, _MOST_BYTES, METRICS), record.first_step, record.last_step)


def fetch_inputs(run: RunStore, replayed: Iterable[int], workspace: Path) -> ReportInputs:
    """Return the inputs of a report from the store alone: fetches only ``metrics.json`` of ``replayed`` segments.

    Works in a fresh folder in ``workspace``, which is removed again. Raises NotFound if there is no such run and
    StoreError for the store's troubles; bad evidence becomes a note.
    """
    try:
        opened = open_run(run.commitments())
    except EvidenceError as error:
        return ReportInputs(run.run_id, run.store.url, None, (), (f"the commitments do not hold together: {error}",))
    wanted = [opened.records[i] for i in sorted(set(replayed)) if 0 <= i < len(opened.records)]
    workspace.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="report-", dir=workspace))
    try:
        with ArtifactStore(folder, run.store.dvc_remote()) as artifacts:
            folders: dict[int, Path] = {}
            errors: dict[int, EvidenceError] = {}
            if wanted:
                artifacts.init()
                folders, errors = fetch_segments(artifacts, folder, wanted, "evidence", only=METRICS)
            return collect(run.run_id, run.store.url, opened, (r.index for r in wanted), folders, errors)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stored_verdict(run: RunStore, name: str | None = None) -> dict[str, Any]:
    """Return a verdict from the store with its name as ``stored_as``: the one ``name`` ends in, or the last one.

    Raises NotFound if there is none of that name (the message lists what there is), EvidenceError if it was changed
    after it was stored (its name holds its digest) or belongs to another run.
    """
    names = run.verdicts()
    wanted = [n for n in names if name is None or _stem(n) == _stem(name)]
    if not wanted:
        have = ", ".join(n.rpartition("/")[2] for n in names[-5:]) or "none yet; 'vt audit' makes one"
        raise NotFound(f"run {run.run_id!r} has no verdict {name or ''} in {run.store.url}; it has: {have}")
    chosen = wanted[-1]
    data = run.verdict(chosen)
    if not chosen.removesuffix(".json").endswith(sha256_bytes(data)[:16]):
        raise EvidenceError("evidence_malformed", f"the verdict {chosen} was changed after it was stored")
    plain = loads_strict(data, chosen)
    if not isinstance(plain, dict) or plain.get("run_id") != run.run_id:
        raise EvidenceError("evidence_malformed", f"{chosen} is no verdict on run {run.run_id!r}")
    return {**plain, "stored_as": chosen}


def _stem(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json")
