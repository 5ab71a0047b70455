"""``vt demo``: the whole story, told with figures; leaves with 0 only if all of it came true."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from flows.cli.output import describe, err, out, print_json
from flows.cli.server import prefect_server
from vt_core.engine.profiles import environment_for
from vt_core.errors import VtError


def run_demo(workspace: Path, profile: str, as_json: bool, verbose: bool) -> int:
    """Run the demonstration in ``workspace`` (emptied first) and return the exit code."""
    environment_for(profile)  # an unknown profile is an error before anything starts
    folder = workspace.absolute()
    for name in ("store", "trainer", "auditor"):
        shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    say = (lambda text: None) if as_json else (lambda text: out.print(text))

    say("[bold]Verifiable training, the whole story[/]")
    say("\n[bold]1.[/] Plain training, the same program, data and seed, on two kinds of floating point ...")
    with prefect_server(folder / "prefect", verbose) as server:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda name: _part("plain", folder, name, {}, verbose), ("default", profile)))
        difference = _plain_difference(folder, profile)
        say(
            f"   {difference['differing']} of {difference['parameters']} parameters differ between the profiles "
            f"'default' and '{profile}', by up to {difference['largest']:.1e}: replay alone proves nothing"
        )
        say("\n[bold]2.[/] Verified training: an honest trainer, and one who changes a single label in segment 2 ...")
        waited = server.wait()
        training = _part("train", folder, "default", server.environment, verbose)
        honest, cheat = training["honest"], training["poisoned"]
        per_step = honest["log_bytes"] / honest["steps"]
        say(
            f"   {honest['steps']} steps in {honest['segments']} segments (the first is the initialisation), final "
            f"loss {honest['final_loss']:.4f}\n   the rounding log takes {per_step:.0f} bytes a step "
            f"(and {honest['fingerprint_bytes'] / honest['steps']:.0f} bytes of fingerprints)\n"
            f"   state {honest['state_digest'][:32]}...   honest\n   state {cheat['state_digest'][:32]}...   poisoned"
        )
        say(f"\n[bold]3.[/] An auditor, from the store alone, under the profile '{profile}' ...")
        verdicts = _part("audit", folder, profile, server.environment, verbose)
    good, bad = verdicts["honest"], verdicts["poisoned"]
    place = bad.get("first_divergence") or {}
    logged = sum(c["entries"] for c in good.get("counts", {}).values())
    used = sum(c["disagreements"] for c in good.get("counts", {}).values())
    say(
        f"   honest:   [green]{good['verdict']}[/], every bit of {good['coverage']['replayed']} segments agrees "
        f"(the log settled {used} of {logged} roundings that could go either way)"
        if good["verdict"] == "verified" else f"   honest:   [red]{good['verdict']}[/] {good['message']}"
    )  # fmt: skip
    say(f"   poisoned: [red]{bad['verdict']}[/] ({bad['reason']}), {escape(describe(place)) if place else 'no place'}")
    truths = {
        "plain_training_differs": difference["differing"] > 0,
        "honest_verified": good["verdict"] == "verified",
        "state_equal_to_the_bit": good.get("state") == honest["state_digest"],
        "poisoned_rejected": bad["verdict"] == "rejected",
        "segment_step_and_op_named": place.get("segment") == 2 and "step" in place and bool(place.get("op")),
    }
    seconds = time.perf_counter() - began
    if as_json:
        print_json({"ok": all(truths.values()), "checks": truths, "plain": difference, "training": training,
                    "verdicts": verdicts, "seconds": round(seconds, 1)})  # fmt: skip
    say(f"\n{seconds:.0f} s in all, of which {waited:.0f} s waiting for the Prefect server to start")
    for name, true in truths.items():
        if not true:
            err.print(f"[bold red]did not come true[/]: {name}")
    return 0 if all(truths.values()) else 1


def _part(part: str, folder: Path, profile: str, extra: dict[str, str], verbose: bool) -> dict[str, Any]:
    """Run one part in a process under ``profile`` and return its result. Raises VtError with its last output."""
    command = [sys.executable, "-m", "flows.cli.demo_parts", part, str(folder)]
    environment = environment_for(profile) | extra
    done = subprocess.run(
        command, env=environment, stdout=None if verbose else subprocess.PIPE,
        stderr=None if verbose else subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        tail = "\n".join((done.stdout or "").strip().splitlines()[-12:])
        raise VtError(f"the part {part!r} of the demonstration failed under profile {profile!r}:\n{tail}")
    suffix = f"-{profile}" if part == "plain" else ""
    plain: dict[str, Any] = json.loads((folder / f"{part}{suffix}.json").read_text(encoding="utf-8"))
    return plain


def _plain_difference(folder: Path, profile: str) -> dict[str, Any]:
    a, b = (np.load(folder / f"plain-{name}.npy", allow_pickle=False) for name in ("default", profile))
    return {
        "parameters": int(a.size),
        "differing": int((a.view(np.uint32) != b.view(np.uint32)).sum()),
        "largest": float(np.abs(a - b).max()),
    }
