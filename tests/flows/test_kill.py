"""``vt train`` killed at arbitrary moments, started again, and again: the final state is the same to the bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

KILLS = 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_arbitrary_moments_ends_in_the_same_bits(vt, params, vt_environment, tmp_path):
    path = params(steps=400, segment_steps=10)
    undisturbed = vt("train", "--params", str(path), "--run-id", "undisturbed", "--json")
    assert undisturbed.code == 0, undisturbed.err

    rng = random.Random(20261129)
    command = [sys.executable, "-m", "flows.cli.main", "train", "--params", str(path), "--run-id", "killed"]
    published: list[int] = []
    for kill in range(KILLS):
        process = subprocess.Popen(
            command, cwd=tmp_path, env=vt_environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        if kill % 5 != 4:  # most kills hit the training; every fifth hits the start-up
            assert process.stderr is not None
            for line in process.stderr:
                if "segment" in line or "initialisation" in line:
                    break
        time.sleep(rng.uniform(0.0, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
        folder = tmp_path / "store/commitments/runs/killed/segments"
        published.append(len(list(folder.glob("*.json"))) if folder.exists() else 0)
    assert published[-1] < 41, f"the run was finished before the last kill: {published}"
    assert published[-1] > 0, f"no kill hit the training: {published}"

    finished = vt("train", "--params", str(path), "--run-id", "killed", "--json")
    assert finished.code == 0, finished.err
    assert finished.json["state_digest"] == undisturbed.json["state_digest"]
    # (Not the root: the log may hold other entries where a library chose other threads; the state may not differ.)
    audited = vt("audit", "killed", "--params", str(path), "--segments", "sample:3", "--json")
    assert audited.code == 0, audited.err


@pytest.mark.slow
def test_two_trainers_on_one_run_one_wins(params, vt, vt_environment, tmp_path):
    path = params(steps=8, segment_steps=2)
    command = [sys.executable, "-m", "flows.cli.main", "train", "--params", str(path), "--run-id", "same", "--json"]
    both = [
        subprocess.Popen(
            [*command, "--workspace", str(tmp_path / f"w{i}")], cwd=tmp_path, env=vt_environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    outputs = [p.communicate(timeout=300) for p in both]
    codes = [p.returncode for p in both]
    assert 0 in codes, outputs
    for code, (out, _) in zip(codes, outputs, strict=True):
        assert code == 0 or "has another segment" in out, out
    assert vt("audit", "same", "--params", str(path), "--json").code == 0


def test_the_child_of_a_killed_trainer_ends_too(params, vt_environment, tmp_path):
    path = params(steps=40, segment_steps=20)
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.main", "train", "--params", str(path), "--run-id", "orphan"],
        cwd=tmp_path, env=vt_environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "initialisation" in line:
            break
    children = [int(p) for p in _children(process.pid)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in children if _alive(pid)]


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


if not hasattr(os, "posix_spawn"):
    pytest.skip("kill tests need POSIX signals", allow_module_level=True)
