"""Makes ``support`` importable: pytest's importlib mode leaves the path alone."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
