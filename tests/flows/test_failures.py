"""Things break in the middle of a run. Each test ends in the state of an undisturbed run, with nothing lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.services import SMALL_JOB, Services, wait_for

from flows.cli.server import Server
from flows.services import processes
from flows.services.__main__ import start_prefect, start_s3, start_worker
from tasks.params import load_params
from tasks.training import Trainer, trainer_from_params
from vt_core.errors import VtError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = {"steps": 36, "segment_steps": 3}
SEGMENTS = 13  # the initialisation is the first


def trainer_in(folder: Path, workspace: Path, run_id: str) -> Trainer:
    """Return the trainer of a run in a local store, without Prefect and without S3."""
    path = folder / f"{run_id}.yaml"
    path.write_text(json.dumps({"job": SMALL_JOB, "train": {"seed": 3, **STEPS}}))
    return trainer_from_params(load_params(path), str(folder / f"{run_id}-store"), run_id, workspace)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state digest of a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    trainer = trainer_in(folder, folder / "w", "undisturbed")
    with trainer.open():
        for index in range(trainer.begin(), trainer.published.segment_count):
            trainer.publish(trainer.train(index))
        return trainer.seal().state


def check(services: Services, run_id: str, state: str) -> None:
    """The run is sealed, whole, and in that state."""
    shown = services.json("client", "show", run_id)
    assert shown["problem"] is None and shown["sealed"] and shown["state"] == state
    assert [s["index"] for s in shown["segments"]] == list(range(SEGMENTS))


def published(services: Services, run_id: str) -> int:
    """Return how many segments are in the store; asks S3 itself, which is quick."""
    found = services.client("client").list_objects_v2(
        Bucket="evidence", Prefix=f"prod/commitments/runs/{run_id}/segments/"
    )
    return int(found["KeyCount"])


@pytest.fixture
def training(services: Services) -> Iterator[Any]:
    """Start ``vt train`` with the trainer's keys and the services' Prefect server; killed at the end if need be."""
    started: list[subprocess.Popen[str]] = []

    def start(run_id: str) -> subprocess.Popen[str]:
        path = services.write_params(f"{run_id}.yaml", **STEPS)
        command = [sys.executable, "-m", "flows.cli.main", "train", "--params", path, "--run-id", run_id, "--json"]
        process = subprocess.Popen(
            command, cwd=services.cwd, env=services.environment("trainer"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_worker_killed_in_the_middle_of_a_run(services: Services, undisturbed: str):
    path = services.write_params("killed.yaml", **STEPS)
    assert services.deployment("train/default", watch=False, params=path, run_id="killed").returncode == 0
    wait_for(lambda: published(services, "killed") >= 2, 120, "the first segments")
    worker = psutil.Process(services.pids()["worker-trainer"])
    victims = [*worker.children(recursive=True), worker]
    assert len(victims) > 1, "the training runs in a process of its own"
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    psutil.wait_procs(victims, timeout=10)
    there = published(services, "killed")
    assert 2 <= there < SEGMENTS, "the kill came too late to test anything"

    start_worker(services.layout, "trainer")
    # Prefect goes on believing in the dead run, and the deployment allows one at a time: see docs/operations.md.
    crash = (
        "from prefect import get_client; from prefect.states import Crashed\n"
        "from prefect.client.schemas.filters import FlowRunFilter\n"
        "with get_client(sync_client=True) as c:\n"
        "    runs = c.read_flow_runs(flow_run_filter=FlowRunFilter(name={'like_': 'train-killed'}))\n"
        "    print([c.set_flow_run_state(r.id, Crashed(), force=True).status.value for r in runs])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", crash], env=services.environment("client"), cwd=services.cwd, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert "ACCEPT" in done.stdout, done.stdout + done.stderr
    done = services.deployment("train/default", params=path, run_id="killed")
    assert done.returncode == 0, done.stdout + done.stderr
    check(services, "killed", undisturbed)
    trained = {int(n) for n in re.findall(r"\btrain-segment-(\d+)\b", done.stdout)}
    assert trained == set(range(there, SEGMENTS)), "what was published is not trained again, and all the rest is"


def test_prefect_server_restarted_during_a_run(services: Services, undisturbed: str, training):
    process = training("restarted")
    wait_for(lambda: published(services, "restarted") >= 2, 120, "the first segments")
    # Killed, for a polite stop takes as long as the rest of the run on a quiet machine.
    os.killpg(services.pids()["prefect"] or 0, signal.SIGKILL)
    at_stop = published(services, "restarted")
    start_prefect(services.layout)
    assert at_stop < SEGMENTS, "the server was killed too late to test anything"
    out, err = process.communicate(timeout=200)
    if process.returncode != 0:  # a client that had not connected before does not wait for the server
        assert process.returncode == 3 and "Prefect server" in json.loads(out)["error"], out + err
        wait_for(lambda: Server(services.layout.api_url, None, None, None).wait() >= 0, 60, "the server")
        out, err = training("restarted").communicate(timeout=200)
    assert json.loads(out)["state_digest"] == undisturbed, err
    check(services, "restarted", undisturbed)


def test_s3_stopped_during_a_push(services: Services, undisturbed: str, training):
    process = training("unplugged")
    wait_for(lambda: published(services, "unplugged") >= 2, 120, "the first segments")
    assert processes.stop(services.folder, "s3")
    began = time.monotonic()
    while time.monotonic() - began < 15:
        assert process.poll() is None, process.communicate()
        time.sleep(0.5)
    start_s3(services.layout)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    assert json.loads(out)["state_digest"] == undisturbed
    check(services, "unplugged", undisturbed)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 700 kB."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "vt-test", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small tmpfs")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_disk_full_in_the_middle_of_a_run(services: Services, undisturbed: str, small_disk: Path):
    path = services.write_params("full.yaml", **STEPS)
    command = ("train", "--params", path, "--run-id", "full", "--workspace", str(small_disk / "w"), "--json")
    full = services.vt("trainer", *command)
    assert full.returncode == 3, full.stdout + full.stderr
    said = json.loads(full.stdout)["error"]
    assert "free space" in said or "No space left" in said, said
    assert "Traceback" not in full.stderr
    there = published(services, "full")
    assert 1 <= there < SEGMENTS
    # Everything that is published can be used: nothing half written was committed to.
    assert services.json("client", "show", "full")["problem"] is None

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    done = services.vt("trainer", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["state_digest"] == undisturbed
    check(services, "full", undisturbed)


def test_disk_full_at_any_file_of_a_segment(undisturbed: str, small_disk: Path, tmp_path: Path):
    """Room for 0 to 48 kB of a segment: whichever file it is, one of our errors, and nothing is left half done."""
    trainer = trainer_in(tmp_path, small_disk / "w", "tight")
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    ballast = small_disk / "ballast"
    failures: list[str] = []
    with trainer.open():
        for index in range(trainer.begin(), trainer.published.segment_count):
            if index == 4:
                before = trainer._state
                for room in range(0, 48 * 1024, 8 * 1024):
                    free = os.statvfs(small_disk)
                    ballast.write_bytes(b"\0" * (free.f_bavail * free.f_frsize - room))
                    try:
                        trainer.train(index)
                    except (OSError, VtError) as error:  # what the command line turns into one line and exit code 3
                        failures.append(str(error))
                        assert not trainer._folder(index).exists()
                    for left in (trainer._folder(index), trainer._folder(index).with_suffix(".draft")):
                        shutil.rmtree(left, ignore_errors=True)  # or the next try would find room in what it replaces
                    ballast.unlink()
                    trainer._state = before
            trainer.publish(trainer.train(index))
        assert trainer.seal().state == undisturbed
    assert len(failures) >= 3, failures
    print(failures)


def test_two_audits_of_one_run_at_once(services: Services, undisturbed: str):
    # The run of an earlier test; on its own, this test makes one.
    if "full" not in {r["run_id"] for r in services.json("client", "runs")["runs"]}:
        path = services.write_params("full.yaml", **STEPS)
        assert services.vt("trainer", "train", "--params", path, "--run-id", "full").returncode == 0
    before = {v["name"] for v in services.json("client", "show", "full")["verdicts"]}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", "audit", "full", "--segments", "sample:2", "--json"],
            cwd=services.cwd, env=services.environment("auditor"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    names = {json.loads(out)["stored_as"] for out, _ in outputs}
    assert len(names) == 2 and not names & before
    stored = {v["name"] for v in services.json("client", "show", "full")["verdicts"]}
    assert names <= stored
    check(services, "full", undisturbed)
