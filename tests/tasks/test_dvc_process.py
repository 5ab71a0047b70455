"""One DVC child serves many commands: errors, crashes and kills of one must not reach the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.dvc_process import DvcProcess
from vt_core.errors import StoreError


@pytest.fixture
def dvc() -> Iterator[DvcProcess]:
    with DvcProcess(timeout_s=120) as process:
        yield process


def child_of(dvc: DvcProcess) -> int:
    process = dvc._process
    assert process is not None
    return process.pid


def gone(pid: int, within_s: float) -> bool:
    """Tell whether ``pid`` ends in time; a zombie waiting for its parent counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_commands_share_one_child(dvc: DvcProcess, tmp_path: Path) -> None:
    assert dvc.run(["--version"], tmp_path).startswith("3.")
    first = child_of(dvc)
    (tmp_path / "a").mkdir()
    dvc.run(["init", "--no-scm"], tmp_path / "a")
    assert (tmp_path / "a" / ".dvc" / "config").exists()
    assert "core.no_scm=true" in dvc.run(["config", "--list"], tmp_path / "a").lower()
    assert child_of(dvc) == first


def test_an_error_carries_dvcs_message_and_does_not_poison_the_next_command(dvc: DvcProcess, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"dvc add x failed in .*you are not inside of a DVC repository"):
        dvc.run(["add", "x"], tmp_path)
    first = child_of(dvc)
    dvc.run(["init", "--no-scm"], tmp_path)
    with pytest.raises(StoreError, match="missing-file"):
        dvc.run(["add", "missing-file"], tmp_path)
    with pytest.raises(StoreError, match=r"invalid choice|argument"):
        dvc.run(["no-such-command"], tmp_path)
    with pytest.raises(StoreError, match="absent"):
        dvc.run(["status"], tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"x")
    dvc.run(["add", "file"], tmp_path)
    assert (tmp_path / "file.dvc").exists()
    assert child_of(dvc) == first, "the child was restarted: the errors did poison it"


def test_a_crash_is_reported_and_the_next_command_works(dvc: DvcProcess, tmp_path: Path) -> None:
    dvc.run(["--version"], tmp_path)
    first = child_of(dvc)
    os.kill(first, signal.SIGKILL)
    assert dvc._process is not None
    dvc._process.wait(5)
    assert dvc.run(["--version"], tmp_path).startswith("3.")
    assert child_of(dvc) != first


def test_a_crash_in_the_middle_of_a_command_is_a_store_error(dvc: DvcProcess, tmp_path: Path) -> None:
    dvc.run(["init", "--no-scm"], tmp_path)
    threading.Timer(1.0, lambda: os.kill(child_of(dvc), signal.SIGKILL)).start()
    with pytest.raises(StoreError, match=r"died \(exit status -9\) during dvc"):
        dvc.run(["stage", "add", "--run", "-n", "slow", "sleep 20"], tmp_path)
    assert dvc.run(["--version"], tmp_path).startswith("3.")


def test_a_command_that_takes_too_long_is_stopped(dvc: DvcProcess, tmp_path: Path) -> None:
    dvc.run(["init", "--no-scm"], tmp_path)
    first = child_of(dvc)
    with pytest.raises(StoreError, match="did not end within 1 s"):
        dvc.run(["stage", "add", "--run", "-n", "slow", "sleep 20"], tmp_path, timeout_s=1)
    assert gone(first, 5)
    # A late answer of the stopped command must not be taken for the answer to this one.
    assert dvc.run(["--version"], tmp_path).startswith("3.")


def test_threads_get_their_own_answers(dvc: DvcProcess, tmp_path: Path) -> None:
    answers: dict[int, str] = {}
    for n in range(6):
        (tmp_path / str(n)).mkdir()

    def work(n: int) -> None:
        dvc.run(["init", "--no-scm", "-q"], tmp_path / str(n))
        dvc.run(["remote", "add", f"remote{n}", f"/nowhere/{n}"], tmp_path / str(n))
        answers[n] = dvc.run(["remote", "list"], tmp_path / str(n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: text.split()[0] for n, text in answers.items()} == {n: f"remote{n}" for n in range(6)}


def test_the_child_outlives_the_thread_that_started_it(dvc: DvcProcess, tmp_path: Path) -> None:
    thread = threading.Thread(target=dvc.run, args=(["--version"], tmp_path))
    thread.start()
    thread.join()
    first = child_of(dvc)
    time.sleep(0.3)
    dvc.run(["--version"], tmp_path)
    assert child_of(dvc) == first


def test_close_ends_the_child_and_removes_its_state(tmp_path: Path) -> None:
    dvc = DvcProcess()
    dvc.run(["--version"], tmp_path)
    assert dvc._state is not None
    pid, state = child_of(dvc), Path(dvc._state.name)
    assert (state / "config" / "config").exists()
    dvc.close()
    assert gone(pid, 5)
    assert not state.exists()
    dvc.close()


PARENT = """
import sys, time
from pathlib import Path
from tasks.dvc_process import DvcProcess
dvc = DvcProcess()
dvc.run(["init", "--no-scm"], Path(sys.argv[1]))
print(dvc._process.pid, dvc._state.name, flush=True)
if sys.argv[2] == "busy":
    dvc.run(["stage", "add", "--run", "-n", "slow", "sleep 60"], Path(sys.argv[1]))
time.sleep(60)
"""


@pytest.mark.parametrize("doing", ["idle", "busy"])
def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path, doing: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), doing], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    number, state = parent.stdout.readline().decode().split()
    pid = int(number)
    if doing == "busy":
        time.sleep(1)
    assert not gone(pid, 0.2)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid, 10)
    assert not Path(state).exists()


def test_the_users_own_dvc_settings_do_not_reach_the_child(
    dvc: DvcProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "config").write_text("[core]\n    remote = users-own\n")
    monkeypatch.setenv("DVC_GLOBAL_CONFIG_DIR", str(settings))
    (tmp_path / "ws").mkdir()
    dvc.run(["init", "--no-scm"], tmp_path / "ws")
    text = dvc.run(["config", "--list"], tmp_path / "ws")
    assert "users-own" not in text
    assert "core.check_update=false" in text
