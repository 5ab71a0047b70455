"""Long-running processes by name in one folder: started once, found again, stopped by their own pid only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from vt_core.errors import VtError


def start(folder: Path, name: str, command: Sequence[str], environment: dict[str, str]) -> bool:
    """Start ``name`` unless it runs already; tells whether it was started. Output goes to ``NAME.log``."""
    if running(folder, name):
        return False
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            list(command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / f"{name}.pid").write_text(json.dumps({"pid": process.pid, "began": _birth(process.pid)}))
    return True


def running(folder: Path, name: str) -> int | None:
    """Return the pid of ``name`` if that very process still runs (a reused pid has another start time)."""
    try:
        saved = json.loads((folder / f"{name}.pid").read_text())
        pid, began = int(saved["pid"]), saved["began"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if began is not None and _birth(pid) == began else None


def stop(folder: Path, name: str, patience: float = 20.0) -> bool:
    """End ``name`` and its children; tells whether it ran. Waits, then kills."""
    pid = running(folder, name)
    if pid is None:
        (folder / f"{name}.pid").unlink(missing_ok=True)
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and running(folder, name):
            time.sleep(0.1)
        if not running(folder, name):
            break
    (folder / f"{name}.pid").unlink(missing_ok=True)
    return True


def check_alive(folder: Path, name: str) -> None:
    """Raise VtError with the end of the log if ``name`` has died."""
    if running(folder, name) is None:
        log = folder / f"{name}.log"
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        raise VtError(f"{name} did not stay up; the end of {log}:\n{tail}")


def _birth(pid: int) -> str | None:
    """Return the start time of a living process, None if there is none (or it is only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else fields[19]
