"""``python -m bench.lying_log [CASE ...] [--quick] [--json]``: how far a lying log moves a model.

For each case: honest noise, the honest log as another CPU profile sees it, and every attacker. Two tests are shown:
one over all entries alike, and ``vt_core/verify/bias.py``. ``loss`` is by how much the held-out loss rose (nats) and
``gain`` by how much the backdoor's loss fell, both against the honest run; ``success`` is the share of triggered inputs
that get the attacker's answer. ``gradient_sign`` and ``last_layer_only`` want to raise the loss, those after them want
the backdoor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.lying_log.cases import CASES, QUICK, known, with_steps
from bench.lying_log.measure import PROFILE, Bench, Noise, OneStep, attack, honest_elsewhere, honest_noise, one_step
from bench.lying_log.runs import Counts, Outcome
from vt_core.verify.bias import Bias

QUICK_STEPS = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.lying_log", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} with {QUICK_STEPS} steps")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    given = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    everything: dict[str, Any] = {}
    for name in given.cases or (QUICK if given.quick else CASES):
        case = known(name)
        case = with_steps(case, QUICK_STEPS) if given.quick else case
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="vt-lying-") as folder:
            bench = Bench(name, case, Path(folder))
            noise, elsewhere, outcomes = honest_noise(bench), honest_elsewhere(bench), attack(bench)
            first = one_step(name, case, Path(folder) / "first")
        print(f"# {name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        if given.json:
            everything[name] = {
                "noise": [dataclasses.asdict(n) for n in noise],
                "elsewhere": elsewhere,
                "attackers": [o.to_json() for o in outcomes],
                "one_step": dataclasses.asdict(first),
            }
        else:
            print("\n".join([f"\n## {name}, {case.train['steps']} steps\n", *log_rows(elsewhere), ""]))
            print("\n".join([*noise_rows(noise), "", *attacker_rows(outcomes), "", one_step_line(first)]), flush=True)
    if given.json:
        print(json.dumps(everything, indent=1))


def log_rows(counts: Counts) -> list[str]:
    """Return the honest log as the other profile sees it, as a Markdown table."""
    rows = [
        f"| class | elements | logged | decisions | flipped on {PROFILE} | fine | moved | mean push, tau | farthest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, n in counts.items():
        if n["elements"]:
            rows.append(
                f"| {name} | {n['elements']:,} | {n['entries']:,} ({n['entries'] / n['elements']:.1e}) "
                f"| {n['decisions']:,} | {n['flipped']:,} ({n['flipped'] / max(1, n['decisions']):.2%}) "
                f"| {n['fine']:,} | {n['moved']:,} | {n['pushed'] / max(1, n['fine']):.4f} | {n['max_distance']:.2f} |"
            )
    return rows


def noise_rows(noise: list[Noise]) -> list[str]:
    """Return honest noise as a Markdown table."""
    rows = ["| honest difference | L2 of weights | largest | loss | backdoor objective |", "|---|---|---|---|---|"]
    return rows + [f"| {n.what} | {n.l2:.1e} | {n.largest:.1e} | {n.loss:.1e} | {n.gain:.1e} |" for n in noise]


def attacker_rows(outcomes: list[Outcome]) -> list[str]:
    """Return the attackers as a Markdown table."""
    rows = [
        "| attacker | plausible | entries | differ | one test | decisions flipped | fine moved | bias.py "
        "| L2 of weights | largest | loss | backdoor gain | success |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        rows.append(
            f"| {o.attacker} | {'yes' if o.plausible else 'NO'} | {o.total('entries'):,} "
            f"| {o.total('disagreements'):,} | {_said(o.by_entries)} | {o.total('flipped'):,} of "
            f"{o.total('decisions'):,} | {o.total('moved'):,} of {o.total('fine'):,} | {_said(o.by_uses)} "
            f"| {o.l2:.1e} | {o.largest:.1e} | {o.loss:+.1e} | {o.gain:+.1e} | {o.success:.0%} |"
        )
    return rows


def one_step_line(first: OneStep) -> str:
    """Return the first step's figures in one line."""
    return (
        f"First step, first order, nats of the backdoor objective: the step itself {first.step:+.1e}, coins "
        f"{first.chance:.1e} (rms), steering {first.free:+.1e}, steering below the tests {first.below:+.1e}."
    )


def _said(bias: Bias | None) -> str:
    return "passes" if bias is None else f"caught, p = {bias.p_value:.0e}"


if __name__ == "__main__":
    main()
