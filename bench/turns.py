"""Taking turns: several processes train side by side, and only one of them computes at a time.

A loaded machine then slows all of them alike, and each is set up once. The controller writes the number of steps to a
child's standard input; the child runs them and writes their seconds as a JSON line, then waits for its next turn.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vt_core.engine.profiles import environment_for

ROOT = Path(__file__).resolve().parent.parent
WARM_UP = 2
"""Steps that are not counted: they allocate, and may compile (an optimizer's second step is not its first)."""


class Turns:
    """The child's side: call :meth:`wait` after the first steps and :meth:`step_done` after each."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        """``settle`` ends work that goes on in the background; its time belongs to the turn."""
        self.settle = settle
        self._left = 0
        self._seconds: list[float] = []
        self._mark = 0.0

    def wait(self) -> None:
        """Wait for a turn."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit("the controller is gone")
        self._left, self._seconds, self._mark = int(line), [], time.perf_counter()

    def step_done(self, last: bool) -> None:
        """Note a step's time; at the end of a turn report and, unless this was the last step, wait for the next."""
        self._left -= 1
        if self._left == 0:
            self.settle()
        now = time.perf_counter()
        self._seconds.append(now - self._mark)
        self._mark = now
        if self._left == 0:
            answer(self._seconds)
            if not last:
                self.wait()


def answer(value: Any) -> None:
    """Write one JSON line to the controller."""
    print(json.dumps(value), flush=True)


class Child:
    """The controller's side of one process: ``python -m bench.child MODE WORKLOAD STEPS FOLDER``."""

    def __init__(self, mode: str, workload: str, steps: int, folder: str, profile: str = "default") -> None:
        self.name = f"{workload} {mode}" + ("" if profile == "default" else f" ({profile})")
        self.seconds: list[float] = []
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **environment_for(profile)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.child", mode, workload, str(steps), folder],
            env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> None:
        """Wait until the process has set itself up."""
        self._read()

    def turn(self, steps: int, counted: bool) -> list[float]:
        """Let it run ``steps`` steps and return their seconds; ``counted`` says whether they go into the median."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds: list[float] = self._read()
        if counted:
            self.seconds.append(sum(seconds) / len(seconds))
        return seconds

    def result(self) -> dict[str, Any]:
        """Return what the process measured besides its steps, and wait for its end."""
        found: dict[str, Any] = self._read()
        self._process.wait(60)
        return found

    def stop(self) -> None:
        """Kill it, however far it is."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()}: see its message above")
        return json.loads(line)
