"""Long runs and full stores: what commands cost as they grow, in time and in calls to the store."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.records import Counting, make_run
from support.services import SMALL_JOB, clean_environment

from flows.cli.runs import table
from flows.cli.show import run_summary, runs_summary
from tasks.params import load_params
from tasks.store import Store, open_store
from tasks.training import trainer_from_params

GENEROUS_S = 6.0  # under 2 s on a quiet machine; this is to notice a square, not a slow minute
SEGMENTS, RUNS = 500, 50


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One run of 500 segments, and 49 short ones."""
    store = open_store(str(tmp_path_factory.mktemp("large") / "store"), create=True)
    make_run(store, "long", SEGMENTS, verdict="verified")
    for n in range(RUNS - 1):
        make_run(store, f"short-{n:02d}", 4, sealed=n % 3 != 0, verdict="verified" if n % 3 == 1 else None)
    return store


@pytest.mark.parametrize("arguments", [("runs",), ("show",), ("show", "long")])
def test_commands_answer_in_time(large: Store, arguments: tuple[str, ...], tmp_path: Path, capsys):
    command = [sys.executable, "-m", "flows.cli.main", *arguments, "--store", large.url, "--json"]
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False
    )  # fmt: skip
    seconds = time.perf_counter() - began
    with capsys.disabled():
        print(f"\nvt {' '.join(arguments)}: {seconds:.2f} s", end="")
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    if arguments == ("show", "long"):
        assert plain["problem"] is None and len(plain["segments"]) == SEGMENTS and plain["sealed"]
    else:
        assert len(plain["runs"]) == RUNS
    assert seconds < GENEROUS_S


def counted(store: Store) -> tuple[Store, Counting, Counting]:
    commitments, verdicts = Counting(store.commitments), Counting(store.verdicts)
    return dataclasses.replace(store, commitments=commitments, verdicts=verdicts), commitments, verdicts


def calls_of(store: Store, function, *arguments) -> int:
    wrapped, commitments, verdicts = counted(store)
    function(wrapped, *arguments)
    return commitments.total + verdicts.total


def test_calls_grow_with_the_number_of_runs_and_not_of_segments(tmp_path: Path):
    def store(name: str, runs: int, segments: int) -> Store:
        made = open_store(str(tmp_path / name), create=True)
        for n in range(runs):
            make_run(made, f"r{n}", segments, verdict="verified")
        return made

    few, many, long = store("few", 5, 3), store("many", 10, 3), store("long", 5, 60)
    for function in (table, runs_summary):
        assert calls_of(few, function) == calls_of(long, function), function.__name__
        assert calls_of(many, function) <= 2 * calls_of(few, function), function.__name__
    # vt show RUN reads each record once: two listings, spec, seal, the verdict, the records.
    short, whole = calls_of(few, run_summary, "r0"), calls_of(long, run_summary, "r0")
    assert whole - short == 57, (short, whole)


def test_reading_what_is_published_takes_one_read_a_segment(tmp_path: Path):
    made = open_store(str(tmp_path / "s"), create=True)
    run = make_run(made, "r", 40, sealed=False)
    wrapped, commitments, _ = counted(made)
    run.store = wrapped
    assert [r.index for r in run.published()] == list(range(40))
    assert commitments.calls["read"] == 41 and commitments.total == 42  # and the spec, and one listing


@pytest.mark.slow
def test_publishing_a_segment_costs_the_same_however_long_the_run_is(tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps({"job": SMALL_JOB, "train": {"seed": 1, "steps": 9, "segment_steps": 1}}))
    trainer = trainer_from_params(load_params(path), str(tmp_path / "store"), "r", tmp_path / "w")
    trainer.run.store, commitments, _ = counted(trainer.run.store)
    objects = Counting(trainer.artifacts._objects)
    trainer.artifacts._objects = objects
    costs: list[tuple[int, int]] = []
    with trainer.open():
        for index in range(trainer.begin(), trainer.published.segment_count):
            segment = trainer.train(index)
            before = commitments.total, objects.total
            trainer.publish(segment)
            costs.append((commitments.total - before[0], objects.total - before[1]))
    assert len(costs) == 10 and len(set(costs[1:])) == 1, costs
    assert costs[-1][0] == 1, "one conditional create commits to a segment"
