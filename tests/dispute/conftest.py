"""Makes ``tests/support`` importable as ``support``, whatever folder pytest was started in."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end of the path: tests/tasks and tests/flows must not be found before the packages of the same names.
sys.path.append(str(Path(__file__).resolve().parents[1]))
