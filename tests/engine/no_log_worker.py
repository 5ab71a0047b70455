"""Trains small jobs without any log under this process's CPU profile: ``python -m no_log_worker FOLDER DATA``.

Prints one JSON object: job -> [root of the final state, digest of what plain float64 training ends with].
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import torch
from support.runs import Trainer
from support.worker import USUAL, cases, plain_training


def main() -> None:
    """Train all jobs."""
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    found = {}
    for name in USUAL:
        case = cases(data)[name]
        exact = dataclasses.replace(case, train={**case.train, "contractions": "exact", "functions": "exact"})
        found[name] = [Trainer(exact, folder / name).run().final, plain_training(case, torch.float64)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
