"""Evidence that an earlier version wrote is read and replayed by this one (docs/evidence.md, "Versions")."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.runs import audit, read_commitments

from vt_core.training.spec import ENGINE, libraries, parse_spec
from vt_core.verify.audit import open_run

HERE = Path(__file__).resolve().parent
FINAL = dict.fromkeys(("v1", "v2", "v3", "v4"), "ebe73a0469ed266f037199a86f9bf7808a20cffd64c5e71d7a6a814893eece92")
"""State root at the end of each golden run."""


@pytest.fixture(params=sorted(FINAL))
def golden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(HERE))  # the auditor's own copy of the job
    return HERE / str(request.param)


def test_every_golden_run_is_listed() -> None:
    assert {p.name for p in HERE.iterdir() if p.is_dir() and p.name.startswith("v")} == set(FINAL)


def test_the_commitments_of_an_earlier_version_are_read(golden: Path) -> None:
    run = open_run(read_commitments(golden, "golden"))
    assert run.seal is not None and run.seal.state == FINAL[golden.name]
    assert [(r.first_step, r.last_step) for r in run.records] == [(0, 0), (1, 4), (5, 8), (9, 10)]


def test_an_earlier_run_is_replayed_bit_for_bit(golden: Path) -> None:
    spec = parse_spec((golden / "spec.json").read_bytes())
    verdict = audit(golden, commitments=read_commitments(golden, "golden"))
    same_torch = spec.libraries["torch"].split(".")[:2] == libraries()["torch"].split(".")[:2]
    if spec.engine == ENGINE and same_torch:
        assert (verdict["verdict"], verdict["reason"]) == ("verified", None), verdict["message"]
        assert verdict["state"] == FINAL[golden.name]
    else:  # it says so, and accuses nobody
        assert (verdict["verdict"], verdict["reason"]) == ("inconclusive", "environment_unsupported")


def test_a_changed_golden_run_is_refused(golden: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(golden, tmp_path / "copy"))
    path = copy / "artifacts" / "segment-00002" / "rounding.vtlog"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    verdict = audit(copy, commitments=read_commitments(copy, "golden"))
    assert verdict["reason"] in ("artifact_corrupt", "environment_unsupported")
