"""Makes ``engine_support`` and ``support`` importable: pytest's importlib mode leaves the path alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# At the end of the path: tests/jobs must not be found before packages of the same name.
sys.path.append(str(Path(__file__).resolve().parents[1]))
