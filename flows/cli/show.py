"""``vt show``: the runs of a store, and what one run has published."""

from __future__ import annotations

import json
from typing import Any

from rich.markup import escape
from rich.table import Table

from flows.cli.output import describe, out
from tasks.report_facts import one_line
from tasks.runs import RunStore, list_runs
from tasks.store import Store
from vt_core.errors import EvidenceError, NotFound, VtError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.ranges import segment_count, segment_range
from vt_core.evidence.records import Commitments, check_chain, parse_seal, parse_segment

MAX_SEGMENTS = 1_000_000  # as vt_core.training.spec, which loads torch


def runs_summary(store: Store) -> dict[str, Any]:
    """Return all runs with their number of segments, seal and last verdict."""
    rows = []
    for run_id in list_runs(store):
        run = RunStore(store, run_id)
        names = store.commitments.list(f"runs/{run_id}/")
        segments = sum("/segments/" in name for name in names)
        rows.append(
            {
                "run_id": run_id,
                "segments": segments,
                "sealed": f"runs/{run_id}/seal.json" in names,
                "last_verdict": _last_verdict(run),
            }
        )
    return {"store": store.url, "runs": rows}


def run_summary(store: Store, run_id: str) -> dict[str, Any]:
    """Return what a run has published; ``problem`` says what is wrong with its commitments, if anything is."""
    run = RunStore(store, run_id)
    commitments = run.commitments()
    plain: dict[str, Any] = {"run_id": run_id, "store": store.url, "problem": None, "segments": [], "sealed": False}
    try:
        plain |= _published(commitments)
    except EvidenceError as error:
        plain["problem"] = f"{error.reason}: {error}"
    plain["verdicts"] = [{"name": name} | _read_verdict(run, name) for name in run.verdicts()]
    return plain


def _published(commitments: Commitments) -> dict[str, Any]:
    """Check the commitments without replaying anything (and without the libraries of a replay)."""
    spec = loads_strict(commitments.spec or b"", "spec.json")
    try:
        steps, length = spec["steps"], spec["segment_steps"]
        if type(steps) is not int or type(length) is not int or steps < 1 or length < 1:
            raise ValueError("steps and segment_steps must be counts")
        described = {"job": str(spec["reference"]), "steps": steps, "seed": str(spec["seed"])}
        described |= {"compute": str(spec["compute_dtype"]), "grid": str(spec["grid"])}
        count = segment_count(steps, length)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise EvidenceError("evidence_malformed", f"spec.json: {error!r}", file="spec.json") from error
    digest = sha256_bytes(commitments.spec or b"")
    records = [parse_segment(d, f"segments/{i:05d}.json") for i, d in enumerate(commitments.segments)]
    seal = None if commitments.seal is None else parse_seal(commitments.seal)
    if len(records) > count:
        raise EvidenceError("chain_broken", "there are more segments than the spec has")
    if count > MAX_SEGMENTS:  # a list of all of them is made below
        raise EvidenceError("evidence_malformed", f"spec.json: {count:.3g} segments are too many", file="spec.json")
    expected = count if seal is not None else len(records)
    ranges = [segment_range(steps, length, i) for i in range(expected)]
    check_chain(commitments.run_id, digest, ranges, records, seal)
    rows = [
        {
            "index": r.index, "first_step": r.first_step, "last_step": r.last_step, "root": r.root,
            "bytes": sum(f["size"] for f in r.files.values()),
        }
        for r in records
    ]  # fmt: skip
    sealed = {"sealed": seal is not None, "root": seal.root if seal else None, "state": seal.state if seal else None}
    return {**described, "spec": digest, "segments": rows, "segment_count": count, **sealed}


def print_runs(plain: dict[str, Any]) -> None:
    """Print the table of runs."""
    if not plain["runs"]:
        out.print(f"no runs in {plain['store']} yet; start one with: vt train --store {plain['store']}")
        return
    table = Table("run", "segments", "sealed", "last verdict")
    for row in plain["runs"]:
        verdict = escape(one_line(row["last_verdict"] or "-", 40))
        table.add_row(row["run_id"], str(row["segments"]), "yes" if row["sealed"] else "no", verdict)
    out.print(table)


def print_run(plain: dict[str, Any]) -> None:
    """Print one run."""
    out.print(f"[bold]{plain['run_id']}[/] in {plain['store']}")
    if plain["problem"]:
        out.print(f"  [red]evidence problem[/] {escape(one_line(plain['problem']))}")
    else:
        out.print(
            f"  job {one_line(plain['job'], 200)}, {plain['steps']} steps, seed {one_line(plain['seed'], 40)}, "
            f"{one_line(plain['compute'], 40)} -> {one_line(plain['grid'], 40)}",
            markup=False,
        )
        out.print(f"  spec {plain['spec']}")
        table = Table("segment", "steps", "MB", "root")
        for s in plain["segments"]:
            table.add_row(
                str(s["index"]), f"{s['first_step']}-{s['last_step']}", f"{s['bytes'] / 1e6:.2f}", s["root"][:16]
            )
        out.print(table)
        published = f"{len(plain['segments'])} of {plain['segment_count']} segments published"
        out.print(f"  {published}, {'sealed, root ' + plain['root'][:16] if plain['sealed'] else 'not sealed yet'}")
    for v in plain["verdicts"]:
        divergence = v.get("first_divergence")
        where = f", {describe(divergence)}" if divergence else ""
        said = " ".join(one_line(v.get(key) or "", 60) for key in ("time", "verdict", "reason"))
        out.print(f"  {said}{where}", markup=False)


def _last_verdict(run: RunStore) -> str | None:
    names = run.verdicts()
    return _read_verdict(run, names[-1])["verdict"] if names else None


def _read_verdict(run: RunStore, name: str) -> dict[str, Any]:
    try:
        plain = loads_strict(run.verdict(name), name)
        if isinstance(plain, dict) and isinstance(plain.get("verdict"), str):
            keys = ("verdict", "reason", "message", "time", "coverage", "first_divergence")
            return {k: plain.get(k) for k in keys}
    except (EvidenceError, NotFound, json.JSONDecodeError):
        pass
    except VtError as error:
        return {"verdict": "unreadable", "reason": str(error)}
    return {"verdict": "unreadable", "reason": None}
