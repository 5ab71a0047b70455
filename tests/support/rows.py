"""A dataset of rows of numbers, for jobs of one parameter."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


class Rows:
    """Sixteen rows of ``width`` float64 numbers, the same each time."""

    def __init__(self, width: int) -> None:
        self.values = np.random.default_rng(3).standard_normal((16, width))

    def __len__(self) -> int:
        return len(self.values)

    def batch(self, indices: Any, stream: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {"x": self.values[indices]}

    def manifest(self) -> dict[str, str]:
        return {"x": hashlib.sha256(self.values.tobytes()).hexdigest()}
