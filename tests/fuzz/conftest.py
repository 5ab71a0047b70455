"""Makes ``tests/support`` importable as ``support`` and this folder's modules by their names."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# At the end of the path: tests/tasks and tests/flows must not be found before the packages of the same names.
sys.path += [str(_HERE.parent), str(_HERE)]
