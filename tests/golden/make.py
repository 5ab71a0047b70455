"""Write a golden run: ``python tests/golden/make.py tests/golden/v1``. Once committed, a golden run is never made anew.

A new format version gets a folder of its own beside the older ones, which must stay readable (docs/evidence.md).
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from support.runs import Case, Trainer  # noqa: E402

CASE = Case(
    "frozen_job:FrozenJob",
    {"batch_size": 8},
    # Half of each: products have a log, functions none (versions 1 and 2: a log for all).
    {"seed": 11, "steps": 10, "segment_steps": 4, "commit_interval": 2, "functions": "exact"},
)


def main(folder: Path) -> None:
    """Train, publish and seal the run in ``folder``, which must not exist."""
    if folder.exists():
        raise SystemExit(f"{folder} exists: a golden run is never overwritten")
    print("final state", Trainer(CASE, folder, run_id="golden").run().final)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
