"""Gives back the places under the store's limit that dead flow runs still hold.

A task run holds its place under a tag's limit until it ends. One whose process was killed never ends, and Prefect gives
such a place back to nobody: after a few killed workers no task would reach the store any more. Its flow run does end
(the automation ``crash-runs-without-heartbeat`` sees to that), and this ends its task runs as well. A process that was
killed as soon as it had its place may not even have told the server of its task run: such a place is given back if the
server has not heard of the task run for a while.
"""

from __future__ import annotations

import time
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.observing import STORE_LIMIT

UNKNOWN_FOR_S = 30.0
"""After so long the server has heard of every task run that lives: they are told of in the background."""


def release_dead_slots(tag: str = STORE_LIMIT, unknown_for_s: float = UNKNOWN_FOR_S) -> int:
    """End the task runs that hold a place under ``tag``'s limit although their flow run has ended; returns how many.

    Waits ``unknown_for_s`` seconds if the server does not know a holder, and takes the place back if it still does not.
    """
    with get_client(sync_client=True) as client:
        released, unknown = 0, []
        for holder in _holders(client, tag):
            try:
                released += _end_if_dead(client, holder)
            except ObjectNotFound:
                unknown.append(holder)
        if unknown:
            time.sleep(unknown_for_s)
            released += sum(_release_if_unknown(client, tag, h) for h in _holders(client, tag) if h in unknown)
    return released


def _holders(client: SyncPrefectClient, tag: str) -> list[UUID]:
    try:
        return list(client.read_concurrency_limit_by_tag(tag=tag).active_slots or [])
    except ObjectNotFound:
        return []


def _end_if_dead(client: SyncPrefectClient, holder: UUID) -> bool:
    task_run = client.read_task_run(holder)
    if task_run.flow_run_id is None:
        return False
    flow_run = client.read_flow_run(task_run.flow_run_id)
    if flow_run.state is None or not flow_run.state.is_final():
        return False
    client.set_task_run_state(holder, Crashed(message="its flow run has ended without it"), force=True)
    return True


def _release_if_unknown(client: SyncPrefectClient, tag: str, holder: UUID) -> bool:
    try:
        return _end_if_dead(client, holder)
    except ObjectNotFound:
        client.decrement_v1_concurrency_slots([tag], holder, UNKNOWN_FOR_S)
        return True
