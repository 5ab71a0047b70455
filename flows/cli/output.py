"""What the commands print: one JSON object for machines, or lines for people; and the exit codes."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

EXIT_VERIFIED, EXIT_REJECTED, EXIT_INCONCLUSIVE, EXIT_ERROR = 0, 1, 2, 3
EXIT_OF = {"verified": EXIT_VERIFIED, "rejected": EXIT_REJECTED, "inconclusive": EXIT_INCONCLUSIVE}

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_json(plain: Any) -> None:
    """Print one JSON object on standard output; NaN and infinities become null."""
    sys.stdout.write(json.dumps(_finite(plain), ensure_ascii=False, sort_keys=False) + "\n")
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
    out.print(f"[bold {colour}]{verdict['verdict']}[/]{reason}: {escape(verdict['message'])}")
    coverage = verdict["coverage"]
    out.print(f"  run {verdict['run_id']}, {coverage['replayed']} of {coverage['total']} segments replayed")
    for op_class, n in verdict.get("counts", {}).items():
        if n["elements"]:
            share = n["entries"] / n["elements"]
            out.print(
                f"  {op_class}: {n['entries']} of {n['elements']} elements logged ({share:.1e}), "
                f"{n['disagreements']} settled another way than here",
                style="dim",
            )
    divergence = verdict.get("first_divergence")
    if divergence:
        out.print(f"  where: {escape(describe(divergence))}")
    if verdict.get("stored_as"):
        out.print(f"  stored as {verdict['stored_as']}", style="dim")


def describe(divergence: dict[str, Any]) -> str:
    """Return the place of a divergence in words."""
    parts = [f"segment {divergence['segment']}"]
    if "step" in divergence:
        parts.append(f"step {divergence['step']}")
    if "op" in divergence:
        parts.append(f"op {divergence['op']}" + (f" in {divergence['module']}" if divergence.get("module") else ""))
    if "element" in divergence:
        parts.append(f"element {divergence['element']}")
    if "trainer_value_text" in divergence:
        parts.append(f"trainer {divergence['trainer_value_text']}")
    if "auditor_value_text" in divergence:
        parts.append(f"auditor {divergence['auditor_value_text']}")
    if "distance_text" in divergence:
        parts.append(f"{divergence['distance_text']} tolerances apart")
    tensors = divergence.get("tensors", [])
    if tensors:
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        parts.append("tensors " + ", ".join(tensors[:3]) + more)
    return ", ".join(parts)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
