"""``vt report``: a stored verdict as an HTML page, from the store alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.cli.output import err, out
from tasks.report_inputs import fetch_inputs, stored_verdict
from tasks.reporting import check_target, write_report
from tasks.runs import RunStore
from tasks.store import Store


def make_report(store: Store, run_id: str, name: str | None, target: Path, workspace: Path) -> dict[str, Any]:
    """Write the report on verdict ``name`` (None: the last one) of a run to ``target``; returns what was done.

    Raises SpecError for a target that cannot be written, NotFound for a run or verdict that is not there,
    EvidenceError for a verdict that was changed, StoreError for the store's troubles.
    """
    check_target(target)
    run = RunStore(store, run_id)
    run.commitments()  # a wrong name of a run is told as such
    verdict = stored_verdict(run, name)
    listed = verdict.get("segments")
    rows = listed if isinstance(listed, list) else []
    indexes = [s["index"] for s in rows if isinstance(s, dict) and type(s.get("index")) is int]
    inputs = fetch_inputs(run, indexes, workspace / "report")
    write_report(target, verdict, inputs)
    return {
        "run_id": run_id,
        "verdict": verdict["verdict"],
        "stored_as": verdict["stored_as"],
        "report": str(target),
        "steps": len(inputs.rows),
        "notes": list(inputs.notes),
    }


def print_report(plain: dict[str, Any]) -> None:
    """Say what was written, and what is not in it."""
    out.print(f"{escape(plain['report'])}: {plain['verdict']}, run {plain['run_id']}, {plain['steps']} steps")
    for note in plain["notes"]:
        err.print(note, markup=False)
