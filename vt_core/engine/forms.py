"""What an exact form of an operation is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Form = Callable[[dict[str, Any]], Tensor | tuple[Tensor | None, ...] | None]
"""A function of an operation's arguments by schema name (defaults are absent), all floating ones float64, that returns
what the operation returns, as new tensors that are not yet on the grid: the same bits on every machine. Arguments that
the operation writes without saying so in its schema (running statistics) it writes too. None: no form for these
arguments, the operation keeps its log.

A module may name forms in ``FLOAT32`` that take float32 tensors as they are; they return what they would if these were
widened, as float32 or float64."""
