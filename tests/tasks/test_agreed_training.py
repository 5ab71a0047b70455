"""Training just what was agreed: this machine's code, data and libraries must be those of the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.runs import SMALL_DIGITS
from support.signed import CLIENT, TRAINER

from tasks.training import open_trainer, trainer_from_spec
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.agreement import read_spec_file, sign_spec
from vt_core.evidence.canonical import dumps, loads_strict

SPEC = SMALL_DIGITS.open()[2].to_bytes()
PLAIN: dict[str, Any] = loads_strict(SPEC, "it")

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "code": ({"sources": {**PLAIN["sources"], "digits.py": "0" * 64}}, "code_mismatch"),
    "one source less": ({"sources": {"digits.py": PLAIN["sources"]["digits.py"]}}, "code_mismatch"),
    "data": ({"manifest": {**PLAIN["manifest"], "images": "0" * 64}}, "data_mismatch"),
    "size of the data": ({"dataset_size": 1499}, "data_mismatch"),
    "torch": ({"libraries": {**PLAIN["libraries"], "torch": "1.0.0"}}, "environment_unsupported"),
    "engine": ({"engine": "0"}, "environment_unsupported"),
    "batch": ({"batch_size": 15}, "spec_mismatch"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_spec_that_this_machine_cannot_train(tmp_path: Path, name: str):
    change, reason = OTHERS[name]
    agreed = read_spec_file(dumps({**PLAIN, **change}), "spec.json")
    with pytest.raises(SpecError, match=reason):
        trainer_from_spec(agreed, str(tmp_path / "store"), "r", tmp_path, None, "cpu")
    assert not (tmp_path / "store").exists(), "nothing was begun"


def test_the_trainer_is_built_from_the_spec_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("job: {reference: 'no.such:Job'}\ntrain: {seed: 9, steps: 99}\nstore: ./s\n")
    (tmp_path / "spec.json").write_bytes(SPEC + b"\n")
    trainer = open_trainer(tmp_path / "params.yaml", run_id="r", spec="spec.json")
    assert trainer.published.to_bytes() == trainer.session.spec.to_bytes() == SPEC
    assert trainer.run.store.url.endswith("/s") and trainer.agreement is None and trainer.key is None
    with pytest.raises(SpecError, match="no store"):
        open_trainer(tmp_path / "nothing.yaml", spec="spec.json")
    with pytest.raises(SpecError, match="cannot read the parameters"):
        open_trainer(tmp_path / "nothing.yaml")


def test_a_signed_spec_is_published_with_its_signatures(tmp_path: Path):
    envelope = sign_spec(SPEC, [CLIENT, TRAINER])
    agreed = read_spec_file(envelope, "spec.json")
    trainer = trainer_from_spec(agreed, str(tmp_path / "store"), "r", tmp_path, None, "cpu", TRAINER)
    with trainer.open():
        assert trainer.begin() == 0
        found = trainer.run.commitments()
        assert (found.spec, found.agreement) == (SPEC, envelope)
    other = read_spec_file(sign_spec(SPEC, [TRAINER]), "spec.json")
    second = trainer_from_spec(other, str(tmp_path / "store"), "r", tmp_path, None, "cpu", TRAINER)
    with second.open(), pytest.raises(SpecError, match="other signatures"):
        second.begin()


def test_a_malformed_spec_is_no_training(tmp_path: Path):
    with pytest.raises(EvidenceError, match="grid"):
        trainer_from_spec(
            read_spec_file(dumps({**PLAIN, "grid": 7}), "spec.json"), str(tmp_path / "s"), "r", tmp_path, None, "cpu"
        )
