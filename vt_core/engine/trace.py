"""The trace of a step: the sequence of (operation, output shapes, dtypes), as one digest.

A different trace means other code, another model or another library version. That is a finding of its own and
not a numerical one. Views are left out: they compute nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

_MOST_KNOWN = 1 << 14


class Trace:
    """Collects the operations of one step."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._known: dict[tuple[str, torch.Size, torch.dtype], str] = {}  # lines of one tensor: a step repeats them

    def begin(self) -> None:
        """Forget everything: a new step starts."""
        self._lines.clear()

    def record(self, name: str, result: Any) -> None:
        """Add one operation and the shapes and dtypes of what it returned."""
        if type(result) is not torch.Tensor:
            self._lines.append(f"{name} {_describe(result)}")
            return
        key = name, result.shape, result.dtype
        line = self._known.get(key)
        if line is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            line = self._known[key] = f"{name} {_describe(result)}"
        self._lines.append(line)

    def digest(self) -> bytes:
        """Return SHA-256 over the lines so far."""
        return hashlib.sha256("\n".join(self._lines).encode()).digest()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The operations so far, for people who look for the first difference."""
        return tuple(self._lines)


def _describe(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return f"{tuple(result.shape)}{result.dtype}"
    if isinstance(result, (tuple, list)):
        return "[" + ",".join(_describe(item) for item in result) + "]"
    return type(result).__name__
