"""What the commands print: one JSON object for machines, or lines for people; and the exit codes."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment

from tasks.report_facts import HIDDEN, get_count, get_text, one_line, visible

EXIT_VERIFIED, EXIT_REJECTED, EXIT_INCONCLUSIVE, EXIT_ERROR = 0, 1, 2, 3
EXIT_OF = {"verified": EXIT_VERIFIED, "rejected": EXIT_REJECTED, "inconclusive": EXIT_INCONCLUSIVE}


class SafeConsole(Console):
    """A console that spells out the control characters of what it is given to print.

    Rich hands them to the terminal: a run's name or message with ESC in it could move the cursor, and with it the
    word ``verified``, or fill the clipboard. Rich's own sequences (colours, progress bars) are made after this.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with visible text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


_JSON_ESCAPES = {c: json.dumps(chr(c))[1:-1] for c in HIDDEN}

out = SafeConsole(highlight=False, soft_wrap=True)
err = SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def print_json(plain: Any) -> None:
    """Print one JSON object on standard output; NaN and infinities become null.

    Characters that a terminal could obey are written as JSON escapes: the value is the same.
    """
    text = json.dumps(_finite(plain), ensure_ascii=False, sort_keys=False)
    sys.stdout.write(text.translate(_JSON_ESCAPES) + "\n")
    sys.stdout.flush()


def fail(message: str, kind: str, as_json: bool) -> NoReturn:
    """Report an error of the user's or the environment's and leave with code 3."""
    if as_json:
        print_json({"error": message, "kind": kind})
    err.print(f"[bold red]error[/]: {escape(message)}")
    raise SystemExit(EXIT_ERROR)


def print_summary(summary: dict[str, Any]) -> None:
    """Say what a training run published."""
    steps, seconds = summary["steps"], summary["seconds"]
    out.print(f"[bold green]sealed[/]: run {summary['run_id']} in {summary['store']}")
    out.print(f"  {steps} steps in {summary['segments']} segments, {seconds} s, final loss {summary['final_loss']:.4f}")
    out.print(f"  state {summary['state_digest']}")
    out.print(f"  root  {summary['root']}")
    per_step = summary["log_bytes"] / max(steps, 1)
    out.print(
        f"  rounding log {summary['log_bytes']} bytes ({per_step:.0f} a step), "
        f"fingerprints {summary['fingerprint_bytes']} bytes"
    )
    out.print(f"audit it: vt audit {summary['run_id']} --store {summary['store']} --profile portable", style="dim")


def print_verdict(verdict: dict[str, Any]) -> None:
    """Say a verdict to a person."""
    colour = {"verified": "green", "rejected": "red", "inconclusive": "yellow"}[verdict["verdict"]]
    reason = f" ({verdict['reason']})" if verdict["reason"] else ""
    out.print(f"[bold {colour}]{verdict['verdict']}[/]{reason}: {escape(one_line(verdict['message']))}")
    coverage = verdict["coverage"]
    out.print(f"  run {verdict['run_id']}, {coverage['replayed']} of {coverage['total']} segments replayed")
    counts = verdict.get("counts", {})
    if counts and not any(n["elements"] for n in counts.values()):
        out.print("  no result needed a rounding decision: the log is empty", style="dim")
    for op_class, n in counts.items():
        if n["elements"]:
            share = n["entries"] / n["elements"]
            out.print(
                f"  {op_class}: {n['entries']} of {n['elements']} elements logged ({share:.1e}), "
                f"{n['disagreements']} settled another way than here{_headroom(verdict, op_class)}",
                style="dim",
            )
    divergence = verdict.get("first_divergence")
    if divergence:
        out.print(f"  where: {escape(describe(divergence))}")
    if verdict.get("stored_as"):
        out.print(f"  stored as {verdict['stored_as']}", style="dim")


def _headroom(verdict: dict[str, Any], op_class: str) -> str:
    """Return what was seen of a class's divergence, in tolerances; empty if nothing was."""
    found = verdict.get("headroom", {}).get(op_class)
    if not found or not found["seen_at"]:
        return ""
    mean = "" if found["mean"] is None else f", mean about {float(found['mean']):.2g}"
    return f"; headroom {float(found['largest']):.2g} of the tolerance seen{mean}"


def describe(divergence: Any) -> str:
    """Return the place of a divergence in words, on one line; what an audit would not write is left out."""
    parts = [f"{key} {n}" for key in ("segment", "step") if (n := get_count(divergence, key)) is not None]
    op, module = get_text(divergence, "op"), get_text(divergence, "module")
    if op:
        parts.append(f"op {one_line(op, 200)}" + (f" in {one_line(module, 200)}" if module else ""))
    if (element := get_count(divergence, "element")) is not None:
        parts.append(f"element {element}")
    for side in ("trainer", "auditor"):
        if (value := get_text(divergence, f"{side}_value_text")) is not None:
            parts.append(f"{side} {one_line(value, 40)}")
    if (distance := get_text(divergence, "distance_text")) is not None:
        parts.append(f"{one_line(distance, 40)} tolerances apart")
    tensors = divergence.get("tensors") if isinstance(divergence, dict) else None
    if tensors and isinstance(tensors, (list, tuple)):
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        parts.append("tensors " + ", ".join(one_line(t, 200) for t in tensors[:3]) + more)
    return ", ".join(parts)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
