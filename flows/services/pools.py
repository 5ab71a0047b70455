"""``python -m flows.services.pools NAME...``: make process work pools on the server that PREFECT_API_URL names.

One process for all of them: each call of the ``prefect`` command would cost some seconds. A pool that exists is left
as it is, with whatever limits its operator has set.
"""

from __future__ import annotations

import sys

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker


def make_pools(names: list[str]) -> list[str]:
    """Make the pools that do not exist; returns their names."""
    made: list[str] = []
    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for name in names:
            try:
                client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
            except ObjectAlreadyExists:
                continue
            made.append(name)
    return made


if __name__ == "__main__":
    print("made:", ", ".join(make_pools(sys.argv[1:])) or "nothing")
