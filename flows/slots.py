"""Gives back the places under the store's limit that dead flow runs still hold.

A task run holds its place under a tag's limit until it ends. One whose process was killed never ends, and Prefect gives
such a place back to nobody: after a few killed workers no task would reach the store any more. Its flow run does end
(the automation ``crash-runs-without-heartbeat`` sees to that), and this ends its task runs as well.
"""

from __future__ import annotations

from prefect import get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.observing import STORE_LIMIT


def release_dead_slots(tag: str = STORE_LIMIT) -> int:
    """End the task runs that hold a place under ``tag``'s limit although their flow run has ended; returns how many."""
    released = 0
    with get_client(sync_client=True) as client:
        try:
            holders = client.read_concurrency_limit_by_tag(tag=tag).active_slots or []
        except ObjectNotFound:
            return 0
        for task_run_id in holders:
            try:
                task_run = client.read_task_run(task_run_id)
                if task_run.flow_run_id is None:
                    continue
                flow_run = client.read_flow_run(task_run.flow_run_id)
            except ObjectNotFound:
                continue
            if flow_run.state is not None and flow_run.state.is_final():
                dead = Crashed(message="its flow run has ended without it")
                client.set_task_run_state(task_run_id, dead, force=True)
                released += 1
    return released
