"""``python -m flows.services.pools NAME...``: make process work pools on the server that PREFECT_API_URL names.

Also the automation that ends flow runs whose process has died without a word (a killed worker, a lost host): Prefect
believes in such a run for ever, and it would keep the place of a deployment that allows one run at a time.

One process for all of it: each call of the ``prefect`` command would cost some seconds. What exists is left as it is,
with whatever limits its operator has set.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from prefect import get_client
from prefect.automations import Automation
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.observing import STORE_LIMIT

AUTOMATION = "crash-runs-without-heartbeat"
HEARTBEAT_S = 30  # the workers' PREFECT_FLOWS_HEARTBEAT_FREQUENCY; Prefect takes no less
SILENCE_S = 150
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


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


def make_automation() -> bool:
    """Make the automation that marks silent runs as crashed unless it exists; tells whether it was made.

    If it hits a run that is alive (the server was away for long), nothing is lost: the training goes on, and of two
    trainers of one run, one wins.
    """
    try:
        Automation.read(name=AUTOMATION)
        return False
    except ValueError:
        pass
    Automation(
        name=AUTOMATION,
        description=f"A flow run that has been silent for {SILENCE_S} s is dead.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{end}" for end in _ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENCE_S),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, message="no heartbeat: its process is gone")],
    ).create()
    return True


def limit_store(slots: int = 4) -> None:
    """Let at most ``slots`` tasks move data to or from the store at once, over all workers, unless a limit is set."""
    with get_client(sync_client=True) as client:
        try:
            client.read_concurrency_limit_by_tag(tag=STORE_LIMIT)
        except ObjectNotFound:
            client.create_concurrency_limit(tag=STORE_LIMIT, concurrency_limit=slots)


if __name__ == "__main__":
    limit_store()
    print("pools made:", ", ".join(make_pools(sys.argv[1:])) or "none")
    print("automation made:", make_automation())
