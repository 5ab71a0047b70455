"""Starts ``support.worker`` under a CPU profile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.data import write_cifar, write_text

from vt_core.engine.profiles import environment_for

REPOSITORY = Path(__file__).resolve().parents[2]


def prepare(folder: Path) -> Path:
    """Write the data that the worker's jobs read; returns ``folder``."""
    write_cifar(folder / "cifar")
    write_text(folder / "text.txt")
    return folder


def run_worker(profile: str, part: str, folder: Path, *names: str) -> dict[str, Any]:
    """Run one part under ``profile`` and return its result; raises AssertionError with the output if it fails."""
    environment = environment_for(profile) | {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}",
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads make a shared machine crawl
    }
    command = [sys.executable, "-m", "support.worker", part, str(folder), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, f"{profile} {part}: {done.stderr[-3000:]}"
    result: dict[str, Any] = json.loads((folder / f"{part}-{profile}.json").read_text(encoding="utf-8"))
    return result
