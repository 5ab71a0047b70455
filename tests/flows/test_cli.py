"""The command line as a user meets it: exit codes, JSON, resume, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

COMMANDS = ("train", "calibrate", "audit", "show", "report", "doctor", "demo")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(vt, command):
    done = vt(command, "--help")
    assert done.code == 0 and f"Example: vt {command}" in done.out


def test_usage_errors_leave_with_3(vt, params):
    for arguments in (("audit",), ("train", "--no-such-option"), ("nonsense",)):
        assert vt(*arguments).code == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": {"steps": 0}}, "steps must be at least 1"),
        ({"train": {"steps": 3, "epochs": 1}}, "exactly one of"),
        ({"train": {"stepz": 3}}, "stepz"),
        ({"job": {"reference": "no_such_module:Job"}}, "no_such_module"),
        ({"job": {"reference": "vt_core.jobs.digits:DigitsJob", "args": {"widht": 3}}}, "widht"),
        ({"train": {"steps": 3, "grid": "float8"}}, "float8"),
        ({"train": {"steps": 3, "device": "cuda"}}, "no CUDA device"),
        ({"trane": {}}, "trane"),
    ],
)
def test_mistakes_in_the_parameters_are_named(vt, params, change, says):
    path = params()
    plain = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**plain, **change}))
    done = vt("train", "--params", str(path), "--json")
    assert done.code == 3
    assert says in done.json["error"] and says in done.err


def test_absent_things_are_named(vt, params, tmp_path):
    assert "params.yaml" in vt("train").err
    assert vt("audit", "nobody", "--store", str(tmp_path / "nowhere")).code == 3
    params()
    (tmp_path / "store").mkdir()
    done = vt("audit", "nobody", "--params", "params.yaml")
    assert done.code == 3 and "there is no run 'nobody'" in done.err
    assert vt("audit", "x", "--store", str(tmp_path), "--profile", "warp").code == 3


@pytest.mark.slow
def test_train_audit_show_and_resume(vt, params, tmp_path):
    path = params()
    trained = vt("train", "--params", str(path), "--run-id", "first", "--json")
    assert trained.code == 0, trained.err
    summary = trained.json
    assert {"run_id", "state_digest", "root", "log_bytes", "steps", "seconds"} <= summary.keys()
    assert summary["run_id"] == "first" and summary["steps"] == 6

    elsewhere = tmp_path / "an auditor's ördner"
    elsewhere.mkdir()
    url = (tmp_path / "store").as_uri()
    audited = vt("audit", "first", "--store", url, "--profile", "portable", "--json", cwd=elsewhere)
    assert audited.code == 0, audited.err
    verdict = audited.json
    assert verdict["verdict"] == "verified" and verdict["state"] == summary["state_digest"]
    assert verdict["environment"]["variables"]["VT_PROFILE"] == "portable"
    assert not list((elsewhere / ".vt" / "audit").iterdir()), "fetched evidence is removed again"

    # The same name and parameters: nothing to do, the same bits. Other parameters: refused, nothing lost.
    again = vt("train", "--params", str(path), "--run-id", "first", "--json")
    assert again.code == 0 and again.json["state_digest"] == summary["state_digest"]
    other = vt("train", "--params", str(params("other.yaml", seed=4)), "--run-id", "first", "--json")
    assert other.code == 3 and "other parameters" in other.json["error"]

    runs = vt("show", "--store", url, "--json").json["runs"]
    assert [(r["run_id"], r["segments"], r["sealed"], r["last_verdict"]) for r in runs] == [
        ("first", 3, True, "verified")
    ]
    shown = vt("show", "first", "--store", url)
    assert shown.code == 0 and "sealed" in shown.out and "verified" in shown.out

    # A bit of the published checkpoint flips in the store: rejected, exit code 1, also for a reader of text.
    record = json.loads((tmp_path / "store/commitments/runs/first/segments/00001.json").read_bytes())
    size = record["files"]["checkpoint.safetensors"]["size"]
    victim = next(p for p in (tmp_path / "store/artifacts").rglob("*") if p.is_file() and p.stat().st_size == size)
    victim.chmod(0o644)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    broken = vt("audit", "first", "--store", url, cwd=elsewhere)
    assert broken.code == 1 and "rejected" in broken.out and "artifact_corrupt" in broken.out


@pytest.mark.slow
def test_a_job_of_the_users_own_needs_no_installation(vt, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_tiny_job.py").write_text(
        """
import hashlib
import numpy as np, torch
from torch import nn
from vt_core.training.job import Job

class Data:
    def __len__(self): return 64
    def batch(self, indices, stream):
        x = np.sin(np.outer(indices + 1.0, np.arange(1, 9)))
        return {"x": x.astype(np.float32), "y": (indices % 2).astype(np.int64)}
    def manifest(self): return {"formula": hashlib.sha256(b"sin").hexdigest()}

class Mine(Job):
    def __init__(self, batch_size=8): self.batch_size = batch_size
    def build_model(self): return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2))
    def build_optimizer(self, model): return torch.optim.RMSprop(model.parameters(), lr=0.01)
    def dataset(self, location): return Data()
    def loss(self, model, batch): return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
"""
    )
    (folder / "params.yaml").write_text(
        yaml.safe_dump(
            {"job": {"reference": "my_tiny_job:Mine"}, "train": {"steps": 5, "segment_steps": 2}, "store": "evidence"}
        )
    )
    trained = vt("train", "--params", "mine/params.yaml", "--run-id", "mine", "--json")
    assert trained.code == 0, trained.err
    # The auditor stands in the folder of its own copy of the job; the store is the same one.
    audited = vt("audit", "mine", "--profile", "portable", "--json", cwd=folder)
    assert audited.code == 0, audited.err
    # Another auditor's copy of the code differs by one character.
    other = tmp_path / "theirs"
    other.mkdir()
    text = (folder / "my_tiny_job.py").read_text()
    (other / "my_tiny_job.py").write_text(text.replace("Dropout(0.2)", "Dropout(0.1)"))
    done = vt("audit", "mine", "--store", str(folder / "evidence"), "--json", cwd=other)
    assert done.code == 1 and done.json["reason"] == "code_mismatch"


def test_doctor_finds_this_machine_fit(vt, tmp_path):
    done = vt("doctor", "--json")
    failed = [c for c in done.json["checks"] if not c["ok"]]
    assert done.code == 0 and not failed, failed
    broken = vt("doctor", "--store", str(tmp_path / "nowhere"), "--json")
    assert broken.code == 3 and not broken.json["ok"]


def test_store_path_is_relative_to_the_parameter_file(tmp_path):
    from tasks.params import load_params

    (tmp_path / "p.yaml").write_text("job: {reference: 'a:B'}\nstore: ./s\ndata: {location: d}\n")
    loaded = load_params(tmp_path / "p.yaml")
    assert Path(str(loaded.store)) == tmp_path / "s" and Path(str(loaded.location)) == tmp_path / "d"


@pytest.mark.slow
def test_a_run_is_resumed_on_a_machine_that_has_nothing_of_it(vt, params, tmp_path):
    """The first trainer's disk is gone: the store alone is enough to go on, and the bits are the same."""
    path = params(steps=6, segment_steps=2)
    whole = vt("train", "--params", str(path), "--run-id", "whole", "--json")
    assert whole.code == 0, whole.err
    # As if the first trainer had died after segment 2: its later commitments and its workspace are not there.
    assert vt("train", "--params", str(path), "--run-id", "moved", "--json").code == 0
    commitments = tmp_path / "store/commitments/runs/moved"
    (commitments / "segments/00003.json").unlink()
    (commitments / "seal.json").unlink()
    done = vt("train", "--params", str(path), "--run-id", "moved", "--workspace", "elsewhere", "--json")
    assert done.code == 0, done.err
    assert done.json["state_digest"] == whole.json["state_digest"]
    assert done.json["steps"] == 6 and done.json["log_bytes"] == whole.json["log_bytes"]


def test_a_fault_of_ours_does_not_pass_for_a_verdict(monkeypatch, capsys):
    from flows.cli import main

    def broken(*args, **kwargs):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(main, "app", broken)
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 3 and "a bug" in capsys.readouterr().err
