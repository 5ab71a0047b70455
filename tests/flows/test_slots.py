"""A killed worker must not keep its place under the store's limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, time
from uuid import uuid4
from prefect import flow, get_client, tags, task
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import TaskRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from flows.slots import release_dead_slots

TAG = "vt-store-test"

@task
def busy():
    mine, known = TaskRunContext.get().task_run.id, False
    while not known:  # the server hears of a task run later
        try:
            with get_client(sync_client=True) as client:
                known = client.read_task_run(mine).flow_run_id is not None
        except ObjectNotFound:
            time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)

@task
def idle():
    return 1

@flow(name="slot-killed")
def killed():
    with tags(TAG):
        busy()

def held():
    with get_client(sync_client=True) as client:
        return len(client.read_concurrency_limit_by_tag(tag=TAG).active_slots)

if sys.argv[1] == "kill":
    killed()
assert release_dead_slots("no-such-limit") == 0
print("held", held())
print("released while the flow run lives", release_dead_slots(TAG))
with get_client(sync_client=True) as client:
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(state={"type": {"any_": ["RUNNING"]}}))
    for run in runs:
        if any("slot" in t for t in [client.read_flow(run.flow_id).name]):
            client.set_flow_run_state(run.id, Crashed(), force=True)
print("held after the flow run has crashed", held())
print("released", release_dead_slots(TAG))
print("held at the end", held())
with get_client(sync_client=True) as client:
    client.increment_v1_concurrency_slots([TAG], uuid4())
print("held by nobody the server knows", held(), release_dead_slots(TAG, 0.5), held())
"""


def test_slots_of_dead_runs_are_given_back(prefect_environment: dict[str, str], tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=Path(__file__).parents[2], env={**prefect_environment, "PYTHONPATH": "."},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    made = run([sys.executable, "-m", "prefect", "concurrency-limit", "create", "vt-store-test", "1"])
    assert made.returncode == 0, made.stderr
    done = run([sys.executable, str(tmp_path / "program.py"), "kill"])
    assert done.returncode == -9, done.stdout + done.stderr
    done = run([sys.executable, str(tmp_path / "program.py"), "release"])
    assert done.stdout.splitlines() == [
        "held 1", "released while the flow run lives 0", "held after the flow run has crashed 1", "released 1",
        "held at the end 0", "held by nobody the server knows 1 1 0",
    ], done.stdout + done.stderr  # fmt: skip
