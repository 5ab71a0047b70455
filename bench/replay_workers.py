"""Throughput of replay workers: the same audit with one and with two of them, interleaved, on running services.

``make services`` first (with ``python -m flows.services start --replayers 2``), then ``. .vt/services/client.env`` and
``python -m bench.replay_workers RUN --segments 1-4 --rounds 2``. The pool's own limit decides how many replays run at
once, so both sides have the same workers. Set OMP_NUM_THREADS=1 for the services, or one replay takes all cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from flows import settings

settings.apply()

from prefect import get_client  # noqa: E402
from prefect.client.schemas.actions import WorkPoolUpdate  # noqa: E402
from prefect.deployments import run_deployment  # noqa: E402

POOL = "replayer"


def audit_seconds(run_id: str, segments: str, workers: int) -> float:
    """Audit with at most ``workers`` replays at once; returns the seconds. Raises RuntimeError if it fails."""
    with get_client(sync_client=True) as client:
        client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=workers))
    started = time.monotonic()
    run = run_deployment(
        "audit/default",
        parameters={"run_id": run_id, "segments": segments, "replay_deployment": "replay/default"},
        poll_interval=0.5,
        as_subflow=False,
    )
    if run.state is None or not run.state.is_completed():
        raise RuntimeError(f"the audit ended as {run.state}")
    return time.monotonic() - started


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_id")
    parser.add_argument("--segments", default="1-4")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(arguments.rounds):
        for workers, times in seconds.items():
            times.append(audit_seconds(arguments.run_id, arguments.segments, workers))
    one, two = (statistics.median(seconds[n]) for n in (1, 2))
    with get_client(sync_client=True) as client:
        client.update_work_pool(POOL, WorkPoolUpdate(concurrency_limit=None))
    print(json.dumps({"one_worker_s": round(one, 1), "two_workers_s": round(two, 1), "ratio": round(one / two, 2)}))


if __name__ == "__main__":
    main()
