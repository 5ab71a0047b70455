"""``vt runs`` and ``vt watch``: what happens in a store, from its commitments and verdicts alone."""

from __future__ import annotations

import time
from typing import Any

from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flows.cli.output import EXIT_OF, err, out, print_json
from tasks.coverage import Coverage, coverage, run_coverage
from tasks.report_facts import one_line
from tasks.runs import RunStore
from tasks.store import Store
from vt_core.errors import EvidenceError, NotFound, SpecError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.ranges import segment_count

_COLOURS = {"verified": "green", "rejected": "red", "inconclusive": "yellow", None: "dim"}


def table(store: Store) -> dict[str, Any]:
    """Return the audit state of every run as plain JSON."""
    return {"store": store.url, "runs": [_row(c) for c in coverage(store)]}


def print_table(plain: dict[str, Any]) -> None:
    """Print the runs for a person."""
    if not plain["runs"]:
        out.print(f"no runs in {plain['store']} yet; start one with: vt train --store {plain['store']}")
        return
    shown = Table("run", "job", "segments", "sealed", "audited", "verdict")
    for row in plain["runs"]:
        verdict = escape((row["verdict"] or "-") + (f" ({one_line(row['reason'], 60)})" if row["reason"] else ""))
        if row["unproven"]:
            verdict += f" + {row['unproven']} without proof of replay"
        share = f"{row['audited_share']:.0%}" if row["sealed"] else "-"
        shown.add_row(
            row["run_id"], escape(one_line((row["job"] or "?").rpartition(":")[2], 60)), str(row["published"]),
            "yes" if row["sealed"] else "no", share, f"[{_COLOURS[row['verdict']]}]{verdict}[/]",
        )  # fmt: skip
    out.print(shown)


def follow(store: Store, run_id: str, interval: float, until: str, as_json: bool) -> int:
    """Show a run's state until it is sealed or judged; returns the exit code of its verdict, 0 without one."""
    if until not in ("sealed", "verdict", "never"):
        raise SpecError(f"--until {until!r}: use sealed, verdict or never")
    run = RunStore(store, run_id)
    total: int | None = None
    last: dict[str, Any] | None = None
    with Live(console=err, refresh_per_second=4, transient=False) as live:
        while True:
            found = run_coverage(run, store.commitments.list(f"runs/{run_id}/"), run.verdicts())
            total = total or _total(run)
            state = _row(found) | {"segments": total}
            if as_json and state != last:
                print_json(state)
            live.update(_line(state))
            last = state
            if (until == "sealed" and found.sealed) or (until == "verdict" and found.sealed and found.verdict):
                return EXIT_OF[found.verdict] if found.verdict else 0
            time.sleep(interval)


def _row(c: Coverage) -> dict[str, Any]:
    return {
        "run_id": c.run_id,
        "job": c.job,
        "published": c.published,
        "sealed": c.sealed,
        "audited": sorted(c.audited),
        "audited_share": round(c.share, 4),
        "verdict": c.verdict,
        "reason": c.reason,
        "unproven": c.unproven,
    }


def _total(run: RunStore) -> int | None:
    try:
        plain = loads_strict(run.spec() or b"", "spec.json")
        steps, length = plain["steps"], plain["segment_steps"]
        return segment_count(steps, length) if type(steps) is type(length) is int and min(steps, length) > 0 else None
    except (EvidenceError, NotFound, KeyError, TypeError):
        return None


def _line(state: dict[str, Any]) -> Text:
    total = state["segments"]
    done = state["published"]
    width = 30
    filled = width * done // total if total else 0
    text = Text(f"{state['run_id']}  ")
    text.append("#" * filled, "green").append("." * (width - filled), "dim")
    text.append(f"  {done}/{total or '?'} segments  {'sealed' if state['sealed'] else 'training'}  ")
    text.append(f"audited {state['audited_share']:.0%}  ")
    return text.append(state["verdict"] or "no verdict yet", _COLOURS[state["verdict"]])
