"""How tasks tell a person what they are doing, without knowing whether a terminal, a log or nobody listens."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol


class Reporter(Protocol):
    """Receives progress; implementations live with the CLI."""

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        """Start a part of ``total`` steps numbered from ``first``; ``segment`` if it is about one."""

    def advance(self, note: str = "") -> None:
        """One step of the current part is done."""

    def message(self, text: str) -> None:
        """Say one line."""


class Silent:
    """Reports to nobody."""

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        """Ignore."""

    def advance(self, note: str = "") -> None:
        """Ignore."""

    def message(self, text: str) -> None:
        """Ignore."""


_SILENT = Silent()
reporter: ContextVar[Reporter] = ContextVar("reporter", default=_SILENT)
