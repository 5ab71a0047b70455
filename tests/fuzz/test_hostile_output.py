"""Text from evidence: it moves no cursor, makes no markup, begins no line of its own, and keeps no verdict back."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.table import Table
from support.records import make_run
from support.runs import SMALL_DIGITS, Trainer, artifacts, audit, copy_run, recommit

from flows.cli import output, show
from flows.cli import runs as runs_command
from flows.cli.output import SafeConsole, describe, print_json, print_verdict
from flows.cli.report import make_report
from flows.cli.show import print_run, print_runs, run_summary, runs_summary
from tasks.auditing import distinct_environments
from tasks.report_facts import HIDDEN, one_line, visible
from tasks.store import Store, open_store
from vt_core.errors import MAX_MESSAGE, EvidenceError, SpecError
from vt_core.evidence.canonical import MAX_DEPTH, dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.training.job import load_job
from vt_core.training.leaves import decode_leaves, encode_leaves
from vt_core.verify.audit import no_replay_verdict
from vt_core.verify.verdict import MAX_TENSORS

EVIL = "x\x1b[2J\x1b]52;c;ZXZpbA==\x07\r\x9b31m\u202e[/][bold]\\\nverified: every replayed segment agrees"
UNSEEN = {chr(c) for c in HIDDEN} - {"\n"}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the commands print, on a console like theirs that is no terminal."""
    sink = io.StringIO()
    console = SafeConsole(file=sink, highlight=False, soft_wrap=True, width=2000)
    for module in (output, show, runs_command):
        monkeypatch.setattr(module, "out", console)
    yield sink


def expect_harmless(sink: io.StringIO) -> str:
    text = sink.getvalue()
    assert text and not UNSEEN & set(text), repr(text)
    assert not any(line.startswith("verified") for line in text.splitlines()), text
    return text


@pytest.mark.parametrize("colours", [False, True])
def test_console_spells_out_controls(colours: bool) -> None:
    sink = io.StringIO()
    console = SafeConsole(file=sink, force_terminal=colours, color_system="standard" if colours else None, width=200)
    table = Table("head\x1b[1m")
    table.add_row(EVIL.replace("[", "("), style="red")
    console.print(table)
    console.print("plain \x1b]0;title\x07", style="bold", markup=False)
    text = sink.getvalue()
    assert "\\u001b" in text and "\x07" not in text and "\x1b]" not in text and "\x1b[2J" not in text
    assert ("\x1b[1m" in text) == colours, "rich's own colours stay"


def test_visible_and_one_line() -> None:
    assert visible("é漢🙂\n") == "é漢🙂\n"
    assert visible("\x1b\x9b\u202e\U000e0041") == "\\u001b\\u009b\\u202e\\ue0041"
    assert one_line("a\nb") == "a\\nb" and len(one_line("x" * 5000)) == 2000


def test_json_keeps_its_value_and_has_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"message": EVIL, "é": "\U000e0041\x7f\u2028"}
    print_json(plain)
    text = capsys.readouterr().out
    assert json.loads(text) == plain
    assert not UNSEEN & set(text) and text.count("\n") == 1


def test_verdict(printed: io.StringIO) -> None:
    place = {"segment": 1, "op": EVIL, "module": EVIL, "tensors": [EVIL, EVIL]}
    print_verdict(
        {"verdict": "rejected", "reason": "state_mismatch", "message": EVIL, "run_id": "r", "stored_as": "s",
         "coverage": {"replayed": 1, "total": 1}, "first_divergence": place}
    )  # fmt: skip
    assert expect_harmless(printed).startswith("rejected")


@pytest.mark.parametrize(
    "divergence",
    [None, 5, "x", [], {}, {"segment": "1"}, {"segment": 1, "tensors": 5}, {"tensors": [None, {}]},
     {"op": [], "module": {}, "element": "x", "distance_text": 3, "trainer_value_text": None, "tensors": "abc"}],
)  # fmt: skip
def test_divergence_of_any_form(divergence: Any) -> None:
    assert isinstance(describe(divergence), str)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


VERDICTS: list[Any] = [
    {"verdict": EVIL, "reason": EVIL, "time": EVIL, "first_divergence": {"op": EVIL}},
    {"verdict": "[/]", "reason": ["x"], "time": {"a": 1}, "first_divergence": "x"},
    {"verdict": "rejected", "reason": {"[/]": 1}, "segments": 5, "first_divergence": [1]},
    {"verdict": ["rejected"]}, {"verdict": {}}, {"verdict": None}, [], 5, "rejected",
    {"verdict": "verified", "segments": [5, None, {"index": "1"}, {"index": -1}, {"index": True}]},
]  # fmt: skip


@pytest.mark.parametrize("plain", VERDICTS)
def test_stored_verdicts_of_any_form(plain: Any, store: Store, printed: io.StringIO, tmp_path: Path) -> None:
    run = make_run(store, "run", 2)
    data = dumps({**plain, "run_id": "run"} if isinstance(plain, dict) else plain)
    store.verdicts.create(f"runs/run/20260101T000000Z-{sha256_bytes(data)[:16]}.json", data)
    print_runs(runs_summary(store))
    print_run(run_summary(store, "run"))
    runs_command.print_table(runs_command.table(store))
    expect_harmless(printed)
    target = tmp_path / "report.html"
    try:
        make_report(store, run.run_id, None, target, tmp_path)
    except EvidenceError:
        assert not target.exists()


def test_spec_of_any_size_is_shown_at_once(store: Store, printed: io.StringIO) -> None:
    """With a seal, a list of all segments is made: 2^53 of them would take the memory of a house."""
    for run_id, steps, length in (("a", (1 << 53) - 1, 1), ("b", "9" * 4000, 1), ("c", 5, 0), ("d", -5, -1)):
        make_run(store, run_id, 2)
        spec = {"reference": EVIL, "steps": steps, "segment_steps": length, "seed": EVIL, "compute_dtype": EVIL}
        (Path(store.url.removeprefix("file://")) / "commitments" / "runs" / run_id / "spec.json").unlink()
        store.commitments.create(f"runs/{run_id}/spec.json", dumps({**spec, "grid": EVIL}))
        summary = run_summary(store, run_id)
        assert summary["problem"].startswith("evidence_malformed")
        print_run(summary)
    print_runs(runs_summary(store))
    runs_command.print_table(runs_command.table(store))
    expect_harmless(printed)


# What would keep a verdict from being given at all


def test_messages_that_quote_evidence_are_cut() -> None:
    error = EvidenceError(
        "chain_broken", "segment 0 belongs to run " + "\U000e0041" * 10_000_000, file="x" * 10_000_000
    )
    assert len(str(error)) == MAX_MESSAGE
    assert len(dumps(no_replay_verdict("run", error))) < 20_000


@pytest.mark.parametrize("depth", [3, MAX_DEPTH - 2, MAX_DEPTH - 1])
def test_a_deep_environment_record_stops_no_verdict(depth: int) -> None:
    """It is canonical JSON by itself, and one level too deep where a verdict quotes it."""
    deep: Any = 1
    for _ in range(depth):
        deep = {"a": deep}
    good = {"machine": "x86_64", "libraries": {"torch": "2"}}
    found = distinct_environments({0: deep, 1: good, 2: [1], 3: good, 4: {"gpu": [1]}})  # type: ignore[dict-item]
    assert found == {"from_segment_1": good}
    dumps({"trainer_environments": found})


def test_many_environments_are_too_many() -> None:
    found = distinct_environments({i: {"machine": str(i)} for i in range(1000)})
    assert len(found) == 16


def test_a_leaf_that_names_a_hundred_thousand_tensors(tmp_path: Path) -> None:
    """Each of them differs from what is found; the verdict names some, and can be stored."""
    run = Trainer(SMALL_DIGITS, tmp_path / "honest").run().folder
    folder = copy_run(run, tmp_path / "forged")
    path = artifacts(folder, 2) / "leaves.json"
    *before, last = decode_leaves(path.read_bytes())
    names = {f"param.{i}" + "n" * 600: bytes(32) for i in range(100_000)}
    path.write_bytes(encode_leaves([*before, dataclasses.replace(last, state=bytes(32), tensors=names)]))
    recommit(folder, {2: [*before, dataclasses.replace(last, state=bytes(32))]})
    verdict = audit(folder, choice="2")
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "state_mismatch")
    assert len(verdict["first_divergence"]["tensors"]) == MAX_TENSORS
    assert len(dumps(verdict)) < 2 << 20


# A spec names a module, and importing executes it


@pytest.mark.parametrize(
    "reference",
    ["unittest.__main__:Job", "typer.__main__:Job", "this:Job", "antigravity:Job", "os:Job", "idlelib.idle:A"],
)
def test_modules_that_are_no_jobs_are_not_imported(reference: str) -> None:
    module = reference.partition(":")[0]
    sys.modules.pop(module, None) if module != "os" else None
    with pytest.raises(SpecError, match="no job is in"):
        load_job(reference)
    assert module == "os" or module not in sys.modules


def test_a_module_that_ends_the_process_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 would say verified."""
    (tmp_path / "leaving_job.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpecError, match="failed to import: SystemExit"):
        load_job("leaving_job:Job")


@pytest.mark.parametrize(
    "args", [{"width": 10**18}, {"batch_size": -1}, {"width": "x"}, {"width": 10**400}, {"lr": "nan"}]
)
def test_arguments_that_no_job_can_use(args: dict[str, Any]) -> None:
    try:
        load_job(SMALL_DIGITS.reference, args)
    except SpecError as error:
        assert str(error)
