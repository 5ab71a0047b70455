"""One process of a calibration: it records or compares, under the profile and on the device it was started for.

Started by ``tasks.calibrating`` as ``python -m tasks.calibration_worker ORDER``, with the name of a JSON file that says
what to do. Says ``step N`` on standard output after each step, and writes what it measured to the order's ``result``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tasks.params import load_params
from vt_core.errors import VtError
from vt_core.training.session import Session
from vt_core.verify.calibration import Calibration, compare, record


def work(order: dict[str, Any]) -> dict[str, Any]:
    """Do what ``order`` says and return the result as plain JSON. Raises VtError."""
    params = load_params(Path(order["params"]))
    if order["location"] is not None:
        params = params.with_location(order["location"])
    job, dataset = params.open_job()
    spec = params.spec(job, dataset)
    plan = Calibration(**order["plan"])
    folder = Path(order["folder"])
    session = Session(spec, job, dataset, order["device"] or params.device)
    with session.open():
        if order["part"] == "record":
            recorded = record(session, plan, folder, _tell)
            return {
                "reference": spec.reference,
                "compute_dtype": spec.compute_dtype,
                "grid": spec.grid,
                "contractions": spec.contractions,
                "policy": spec.policy.to_json(),
                "permuted": recorded.permuted.to_json(),
                "costs": [[str(op_class), cost.to_json()] for op_class, cost in recorded.costs.values()],
            }
        compared = compare(session, plan, folder, _tell)
        return {"measured": compared.measured.to_json(), "parted": compared.parted}


def _tell(step: int) -> None:
    print(f"step {step}", flush=True)


def main() -> None:
    """Entry point of the process; exit code 3 for an error that has a message, which is then the result."""
    order = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        result, code = work(order), 0
    except VtError as error:
        result, code = {"error": str(error)}, 3
    Path(order["result"]).write_text(json.dumps(result), encoding="utf-8")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
