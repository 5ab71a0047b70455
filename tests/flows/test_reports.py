"""Reports from the command line, and what Prefect's pages show of an audit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.actions import ArtifactCreate

from flows.artifacts import artifact_key, segment_rows, verdict_markdown
from tasks.report_facts import read_facts

VERDICT = {
    "verdict": "rejected",
    "reason": "trace_mismatch",
    "message": "<script>alert(1)</script> [link](http://x) `code`\n# heading",
    "segments": [{"index": i, "result": "rejected" if i == 700 else "verified"} for i in range(1000)],
    "coverage": {"replayed": 1000, "total": 1000},
    "first_divergence": {"segment": 700, "step": 3, "op": "aten.mm", "distance_text": "4.5"},
}


@pytest.mark.parametrize("run_id", ["plain-1", "With.Dots_and-Capitals", "-", "a--b", "x" * 100, "ä"])
def test_keys_are_ones_that_prefect_takes(run_id):
    key = artifact_key("audit-verdict", run_id)
    assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", key)
    assert ArtifactCreate(key=key, type="markdown", data="x").key == key


def test_run_ids_that_look_alike_keep_their_own_artifacts():
    ids = ["a.b", "a-b", "A-b", "a_b", "a--b"]
    assert len({artifact_key("k", i) for i in ids}) == len(ids)


def test_text_from_evidence_is_no_markdown():
    text = verdict_markdown(read_facts(VERDICT, "run_1"))
    assert "\\<script\\>" in text and "\\[link\\]\\(http://x\\)" in text and "run\\_1" in text
    assert "\n# heading" not in text and text.count("\n# ") == 0 and text.startswith("# Rejected")
    assert "1000 of 1000 segments" in text and "step: 3" in text and "4\\.5 (in tolerances)" in text


def test_a_long_table_keeps_the_rows_at_fault():
    rows = segment_rows(read_facts(VERDICT, "r"))
    assert len(rows) == 500 and any(r["segment"] == 700 and r["result"] == "rejected" for r in rows)
    assert [r["segment"] for r in rows] == sorted(r["segment"] for r in rows)


def test_a_server_that_is_not_there_changes_nothing(tmp_path):
    program = (
        "from flows.artifacts import AuditArtifacts\n"
        "shown = AuditArtifacts('r'); print(list(shown.progress([4, 5])))\n"
        "shown.conclude({'verdict': 'verified', 'segments': []}); shown.conclude({'verdict': 'nonsense'}); print('on')"
    )
    environment = {
        **os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path),
        "PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_CLIENT_MAX_RETRIES": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], env=environment, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[4, 5]" in done.stdout and done.stdout.rstrip().endswith("on")
    assert "no artifact for Prefect's pages" in done.stdout + done.stderr


def artifacts(environment: dict[str, str], run_id: str) -> dict[str, Any]:
    """Return kind -> artifact of a run, as the server has them; a link is stored as markdown too."""
    request = urllib.request.Request(
        f"{environment['PREFECT_API_URL']}/artifacts/filter", b"{}", {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.loads(answer.read())
    mine = [a for a in found if a["key"] and a["key"].endswith(run_id)]
    return {"link" if "-link-" in a["key"] else a["type"]: a for a in mine}


@pytest.mark.slow
def test_audit_with_a_report_and_report_alone(vt, params, tmp_path, vt_environment):
    assert vt("train", "--params", str(params()), "--run-id", "told", "--json").code == 0
    url = (tmp_path / "store").as_uri()
    missing = vt("audit", "told", "--store", url, "--report", "nowhere/report.html")
    assert missing.code == 3 and "not a writable directory" in missing.err

    done = vt("audit", "told", "--store", url, "--segments", "1-2", "--report", "report.html", "--json")
    assert done.code == 0 and done.json["report"] == "report.html", done.err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Verified: 2 of 3 segments" in page and page.count("<svg") == 2

    shown = artifacts(vt_environment, "told")
    assert set(shown) == {"progress", "markdown", "table", "link"}
    assert f"{url}/verdicts/runs/told/" in shown["link"]["data"]
    assert shown["progress"]["data"] == 100.0
    assert "Verified" in shown["markdown"]["data"] and "2 of 3 segments" in shown["markdown"]["data"]
    assert [row["segment"] for row in json.loads(shown["table"]["data"])] == [1, 2]

    # From the store alone, elsewhere: the same bytes.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = vt("report", "told", "--store", url, "--out", "again.html", "--json", cwd=elsewhere)
    assert again.code == 0 and again.json["notes"] == [] and again.json["steps"] == 6, again.err
    assert (elsewhere / "again.html").read_text(encoding="utf-8") == page
    name = again.json["stored_as"].rpartition("/")[2]
    assert vt("report", "told", "--store", url, "--out", "b.html", "--verdict", name).code == 0
    for arguments, says in (
        (("nobody", "--out", "c.html"), "there is no run"),
        (("told", "--out", "c.html", "--verdict", "x"), "has no verdict x"),
        (("told", "--out", "."), "replace a directory"),
    ):
        failed = vt("report", *arguments, "--store", url)
        assert failed.code == 3 and says in failed.err, failed.err
    assert not (tmp_path / "c.html").exists()
