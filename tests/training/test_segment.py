"""Segments: the same bits at every time, whole or not at all, and going on after any kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import REPOSITORY
from support.runs import SMALL_DIGITS, Trainer, artifacts

from vt_core.engine.rounding_log import LogReader
from vt_core.evidence.digests import sha256_file
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.leaves import decode_leaves
from vt_core.training.segment import FILES, LEAVES, LOG, METRICS, Segment, file_table, train_segment
from vt_core.training.session import Session
from vt_core.training.state import State, digest

LAST = 3


def train(folder: Path, first: int = 0, state: State | None = None, last: int = LAST) -> list[Segment]:
    job, dataset, spec = SMALL_DIGITS.open()
    session = Session(spec, job, dataset)
    segments = []
    with session.open():
        for index in range(first, last + 1):
            segments.append(train_segment(session, index, state, folder / str(index)))
            state = segments[-1].state
    return segments


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def without_times(path: Path) -> Any:
    if path.name != METRICS:
        return path.read_bytes()
    plain = json.loads(path.read_bytes())
    assert float.fromhex(plain.pop("seconds")) > 0
    return plain


def assert_equal(a: Path, b: Path, first: int = 0, last: int = LAST) -> None:
    for index in range(first, last + 1):
        for name in FILES:
            assert without_times(a / str(index) / name) == without_times(b / str(index) / name), f"{index}/{name}"


def test_two_trainings_write_the_same_files(whole: Path, tmp_path: Path) -> None:
    train(tmp_path)
    assert_equal(whole, tmp_path)


@pytest.mark.parametrize("start", [1, 2, 3])
def test_training_goes_on_from_a_checkpoint_file(start: int, whole: Path, tmp_path: Path) -> None:
    train(tmp_path, start, load_checkpoint(whole / str(start - 1)))
    assert_equal(whole, tmp_path, start)


def test_files_are_what_the_segment_says(whole: Path, tmp_path: Path) -> None:
    segment = train(tmp_path, last=1)[1]
    folder = tmp_path / "1"
    assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    assert segment.files == file_table(folder)
    assert segment.files[LOG]["sha256"] == sha256_file(folder / LOG)
    assert decode_leaves((folder / LEAVES).read_bytes()) == segment.leaves
    assert [leaf.step for leaf in segment.leaves] == [1, 2]
    assert segment.leaves[-1].state == digest(load_checkpoint(folder)).root
    with LogReader(folder / LOG, 1 << 30) as log:
        assert log.steps == [1, 2] and log.header["segment"] == 1
    metrics = json.loads((folder / METRICS).read_bytes())
    assert [row["step"] for row in metrics["steps"]] == [1, 2]


@pytest.mark.parametrize("interval", [2, 3, 7])
def test_commit_interval_changes_leaves_and_nothing_else(interval: int, whole: Path, tmp_path: Path) -> None:
    case = SMALL_DIGITS.train | {"commit_interval": interval, "segment_steps": 6}
    trainer = Trainer(type(SMALL_DIGITS)(SMALL_DIGITS.reference, SMALL_DIGITS.args, case), tmp_path / "run").run()
    leaves = decode_leaves((artifacts(trainer.folder, 1) / LEAVES).read_bytes())
    assert [leaf.step for leaf in leaves] == sorted({s for s in range(1, 7) if s % interval == 0} | {6})
    assert trainer.final == digest(load_checkpoint(whole / "3")).root.hex()


def test_a_training_segment_needs_a_state(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="state"):
        train(tmp_path, 1, None)


KILLED = """
import os, signal, sys
from pathlib import Path
from support.runs import SMALL_DIGITS
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.segment import train_segment
from vt_core.training.session import Session

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])

def progress(step, loss):
    print(step, flush=True)
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

job, dataset, spec = SMALL_DIGITS.open()
session = Session(spec, job, dataset)
done = 0
while (folder / str(done)).exists():
    done += 1
state = load_checkpoint(folder / str(done - 1)) if done else None
with session.open():
    for index in range(done, spec.segment_count):
        state = train_segment(session, index, state, folder / str(index), progress).state
"""


def run_until_killed(folder: Path, kill_at: int, program: str = KILLED) -> tuple[int, list[int]]:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-c", program, str(folder), str(kill_at)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, [int(line) for line in done.stdout.split()]


@pytest.mark.slow
def test_killed_after_any_step_and_started_again(whole: Path, tmp_path: Path) -> None:
    """Killed before the first segment is whole, inside one, and after the very last step; each start takes up the last
    whole segment."""
    trained: list[int] = []
    for kill_at in (0, 3, 6):
        code, steps = run_until_killed(tmp_path, kill_at)
        assert code == -signal.SIGKILL and steps[-1] == kill_at
        trained += steps
        for index in range(LAST + 1):
            folder = tmp_path / str(index)
            if folder.exists():  # whole or not at all
                assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    assert run_until_killed(tmp_path, -1)[0] == 0
    assert trained == [0, 0, 1, 2, 3, 3, 4, 5, 6], "nothing finished was trained again"
    assert_equal(whole, tmp_path)
    assert not list(tmp_path.glob("*.draft"))


KILLED_WHILE_WRITING = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from support.runs import SMALL_DIGITS
from vt_core.training import tensor_file
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.segment import run_segment
from vt_core.training.session import Session

folder, kill_at, parts, written = Path(sys.argv[1]), int(sys.argv[2]), tensor_file._parts, 0

def killing(tensors):
    global written
    assert threading.current_thread() is not threading.main_thread()
    before = written
    for part in parts(tensors):
        if written == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        yield part
    print(written - before, flush=True)

tensor_file._parts, tensor_file._PART_BYTES = killing, 256
job, dataset, spec = SMALL_DIGITS.open()
session = Session(spec, job, dataset)
done = 0
while (folder / str(done)).exists():
    done += 1
print(done, flush=True)
state = load_checkpoint(folder / str(done - 1)) if done else None
writing = None
with session.open(), ThreadPoolExecutor(1) as other:
    for index in range(done, spec.segment_count):
        draft = run_segment(session, index, state, folder / str(index))
        state = draft.state
        if writing is not None:
            writing.result()
        writing = other.submit(draft.finish)
    writing.result()
"""


@pytest.mark.slow
def test_killed_while_a_segment_is_written_behind_the_next_one(whole: Path, tmp_path: Path) -> None:
    """Killed at the first byte of a checkpoint, inside the next one, and in the last one: whole segments stay, the
    others are trained again, and all files are those of a training that nobody disturbed."""
    code, (_, *parts) = run_until_killed(tmp_path / "undisturbed", -1, KILLED_WHILE_WRITING)
    assert code == 0 and len(parts) == LAST + 1 and min(parts) > 10
    begun = []
    for kill_at in (0, parts[0] + parts[1] // 2, parts[1] + parts[2] + 1):
        code, (first, *_) = run_until_killed(tmp_path / "run", kill_at, KILLED_WHILE_WRITING)
        assert code == -signal.SIGKILL
        begun.append(first)
        assert list((tmp_path / "run").glob("*.draft"))
        for index in range(LAST + 1):
            folder = tmp_path / "run" / str(index)
            if folder.exists():  # whole or not at all
                assert sorted(p.name for p in folder.iterdir()) == sorted(FILES)
    assert begun == [0, 0, 1]
    code, (first, *_) = run_until_killed(tmp_path / "run", -1, KILLED_WHILE_WRITING)
    assert (code, first) == (0, LAST)
    assert_equal(whole, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.draft"))


@pytest.mark.parametrize("stop_at", range(7))
def test_stopped_after_any_step_and_started_again(stop_at: int, whole: Path, tmp_path: Path) -> None:
    """The same in this process, after every step: an exception in place of the kill."""
    job, dataset, spec = SMALL_DIGITS.open()
    session, state = Session(spec, job, dataset), None

    def stop(step: int, loss: float) -> None:
        if step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.open():
        for index in range(LAST + 1):
            state = train_segment(session, index, state, tmp_path / str(index), stop).state
    done = sum((tmp_path / str(index)).exists() for index in range(LAST + 1))
    assert done == (stop_at + 1) // 2
    train(tmp_path, done, load_checkpoint(tmp_path / str(done - 1)) if done else None)
    assert_equal(whole, tmp_path)


def test_failure_in_the_middle_leaves_the_old_segment_alone(whole: Path, tmp_path: Path) -> None:
    job, dataset, spec = SMALL_DIGITS.open()
    session = Session(spec, job, dataset)
    state = load_checkpoint(whole / "0")

    def fail(step: int, loss: float) -> None:
        raise KeyboardInterrupt

    with session.open():
        train_segment(session, 1, state, tmp_path / "1")
        before = file_table(tmp_path / "1")
        with pytest.raises(KeyboardInterrupt):
            train_segment(session, 1, state, tmp_path / "1", fail)
        assert file_table(tmp_path / "1") == before
        # and the session itself can go on
        train_segment(session, 1, state, tmp_path / "1")
    assert_equal(whole, tmp_path, 1, 1)
