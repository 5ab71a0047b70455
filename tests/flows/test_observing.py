"""Structured log lines carry run, segment and step, in the text, in the record and in the file of VT_LOG_JSON."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from flows import observing
from flows.observing import LogReporter


def test_lines_of_a_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VT_LOG_JSON", str(tmp_path / "log.jsonl"))
    monkeypatch.setattr(observing, "_EVERY_S", 0.0)
    with caplog.at_level(logging.INFO, logger="vt"):
        reporter = LogReporter("r", logging.getLogger("vt"))
        reporter.message("joining")
        reporter.start("initialisation", 1, 0, 0)
        reporter.advance()
        reporter.start("replay of segment 3", 2, 7, 3)
        reporter.advance("loss 0.5")
        reporter.advance()
    expected = [
        {"run": "r", "event": "note", "note": "joining"},
        {"run": "r", "segment": 0, "part": "initialisation", "event": "started", "steps": 1},
        {"run": "r", "segment": 0, "part": "initialisation", "event": "done", "step": 0, "done": 1, "steps": 1},
        {"run": "r", "segment": 3, "part": "replay of segment 3", "event": "started", "steps": 2},
        {
            "run": "r", "segment": 3, "part": "replay of segment 3", "event": "running", "step": 7, "done": 1,
            "steps": 2, "note": "loss 0.5",
        },
        {"run": "r", "segment": 3, "part": "replay of segment 3", "event": "done", "step": 8, "done": 2, "steps": 2},
    ]  # fmt: skip
    assert [record.vt for record in caplog.records] == expected  # type: ignore[attr-defined]
    assert "segment=3" in caplog.text and "step=7" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in line.items() if k != "time"} for line in lines] == expected
    assert all(line["time"].endswith("Z") for line in lines)
