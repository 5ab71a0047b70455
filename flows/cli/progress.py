"""Progress bars with step rate and time left, on standard error; plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from flows.cli.output import err
from tasks.reporter import reporter


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return steps a second."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} steps/s")


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = None

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        self._task = self._progress.add_task(label, total=total, note="")

    def advance(self, note: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=1, note=note)

    def message(self, text: str) -> None:
        self._progress.console.print(text, style="dim", markup=False)


class _Lines:
    """For logs: one line when a part starts and one when it ends."""

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        self._label, self._total, self._done, self._since = label, total, 0, time.perf_counter()

    def advance(self, note: str = "") -> None:
        self._done += 1
        if self._done == self._total:
            seconds = max(time.perf_counter() - self._since, 1e-9)
            rate = f"{self._total / seconds:.1f} steps/s"
            err.print(f"{self._label}: {self._total} steps in {seconds:.1f} s, {rate} {note}".rstrip(), markup=False)

    def message(self, text: str) -> None:
        err.print(text, markup=False)


@contextmanager
def show_progress(quiet: bool) -> Iterator[None]:
    """Report what tasks do; nothing at all if ``quiet``."""
    if quiet:
        yield
        return
    if not err.is_terminal:
        token = reporter.set(_Lines())
        try:
            yield
        finally:
            reporter.reset(token)
        return
    columns = (
        TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )  # fmt: skip
    with Progress(*columns, console=err, transient=False) as progress:
        token = reporter.set(_Bars(progress))
        try:
            yield
        finally:
            reporter.reset(token)
