"""The auditor's own policy file: keys, libraries, sample size; and what an audit says about signatures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import SMALL_DIGITS, Trainer, audit, read_commitments
from support.signed import AUDITOR, CLIENT, STRANGER, TRAINER

from tasks.params import load_params
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.agreement import sign_spec
from vt_core.evidence.keys import write_key_pair
from vt_core.evidence.records import Commitments, parse_seal, parse_segment
from vt_core.evidence.signatures import sign_seal
from vt_core.verify.audit import check_agreement, open_run
from vt_core.verify.limits import AuditorLimits, portable_limits

KEYS = {"trainer_key": TRAINER.verifier.text, "client_key": CLIENT.verifier.text}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits") / "run"
    Trainer(SMALL_DIGITS, folder).run()
    return folder


def signed(folder: Path, key: Any = TRAINER) -> Commitments:
    found = read_commitments(folder)
    records = [parse_segment(data, "it") for data in found.segments]
    note, model = sign_seal(records, parse_seal(found.seal or b""), key)
    return dataclasses.replace(found, agreement=sign_spec(found.spec or b"", [CLIENT, TRAINER]), note=note, model=model)


def verdict_on(folder: Path, commitments: Commitments, **section: Any) -> tuple[str, str | None]:
    limits = AuditorLimits.from_params(section)
    try:
        open_run(commitments, limits.keys)
    except EvidenceError as error:
        return "rejected", error.reason
    plain = audit(folder, commitments=commitments, choice="1", limits=limits)
    return plain["verdict"], plain["reason"]


def test_a_signed_run_is_verified_with_keys_and_without(run: Path):
    assert verdict_on(run, signed(run), **KEYS) == ("verified", None)
    assert verdict_on(run, signed(run)) == ("verified", None)


def test_an_unsigned_run_is_fine_until_the_policy_has_a_key(run: Path):
    assert verdict_on(run, read_commitments(run)) == ("verified", None)
    for name, key in KEYS.items():
        assert verdict_on(run, read_commitments(run), **{name: key}) == ("rejected", "signature_invalid")


def test_another_signer_is_rejected(run: Path):
    assert verdict_on(run, signed(run, STRANGER), **KEYS) == ("rejected", "signature_invalid")
    wrong = {**KEYS, "client_key": AUDITOR.verifier.text}
    assert verdict_on(run, signed(run), **wrong) == ("rejected", "signature_invalid")


def test_what_is_signed_is_checked_without_any_key(run: Path):
    found = signed(run)
    other = sign_spec((found.spec or b"").replace(b'"seed":"', b'"seed":"1'), [CLIENT, TRAINER])
    assert verdict_on(run, dataclasses.replace(found, agreement=other)) == ("rejected", "spec_mismatch")
    assert verdict_on(run, dataclasses.replace(found, note=b"\n")) == ("rejected", "evidence_malformed")


def test_libraries_that_the_policy_does_not_accept(run: Path):
    opened = open_run(read_commitments(run))
    job, dataset, _ = SMALL_DIGITS.open()
    torch = opened.spec.libraries["torch"]
    major = torch.split(".")[0]
    for accepted in ([torch], [major], ["0.1", torch], [".".join(torch.split(".")[:2])]):
        check_agreement(opened.spec, job, dataset, AuditorLimits.from_params({"libraries": {"torch": accepted}}))
    for refused in (["0.1"], [torch[:-1] + "99"], [major + "9"], [torch + ".1"]):
        limits = AuditorLimits.from_params({"libraries": {"torch": refused}})
        with pytest.raises(EvidenceError, match=f"torch {torch}") as found:
            check_agreement(opened.spec, job, dataset, limits)
        assert found.value.reason == "environment_unsupported"
    with pytest.raises(EvidenceError, match="none named"):
        check_agreement(opened.spec, job, dataset, AuditorLimits.from_params({"libraries": {"cuda": ["12"]}}))


@pytest.mark.parametrize(
    ("accepted", "version", "fits"),
    [("2.13", "2.13.1", True), ("2.13.", "2.13.1", True), ("2", "2.13", True), ("2.1", "2.13", False),
     ("2.13.1", "2.13", False), ("2.13", "2.13", True), ("2.13", "", False)],
)  # fmt: skip
def test_a_version_covers_what_begins_with_it(accepted: str, version: str, fits: bool):
    limits = AuditorLimits.from_params({"libraries": {"torch": [accepted]}})
    assert limits.refused_libraries({"torch": version}) == ([] if fits else ["torch"])


def test_the_smallest_sample():
    limits = AuditorLimits.from_params({"min_sample": 3})
    limits.check_sample(3, 10)
    limits.check_sample(2, 2)  # there are no more
    with pytest.raises(SpecError, match="at least 3"):
        limits.check_sample(2, 10)
    AuditorLimits.default().check_sample(1, 10)


BAD: dict[str, dict[str, Any]] = {
    "a key that is none": {"trainer_key": "keys/nobody.pub"},
    "a key that is a number": {"client_key": 7},
    "a private key": {"trainer_key": "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"},
    "libraries as a list": {"libraries": ["torch"]},
    "one version without a list": {"libraries": {"torch": "2.13"}},
    "no version": {"libraries": {"torch": []}},
    "a version without quotes": {"libraries": {"torch": [2.13]}},
    "a sample of nothing": {"min_sample": 0},
    "a sample that is true": {"min_sample": True},
    "a sample that is text": {"min_sample": "3"},
    "an unknown key": {"referee_key": TRAINER.verifier.text},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_policy(name: str):
    with pytest.raises(SpecError, match=r"audit\.limits"):
        AuditorLimits.from_params(BAD[name])


def test_keys_by_path_are_taken_from_the_parameter_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    key = write_key_pair(tmp_path / "policy" / "keys", "trainer").verifier
    limits = {"trainer_key": "keys/trainer.pub", "client_key": CLIENT.verifier.text, "min_sample": 2}
    path = tmp_path / "policy" / "params.yaml"
    path.write_text(yaml.safe_dump({"job": {"reference": "a:B"}, "audit": {"limits": limits}}))
    monkeypatch.chdir(tmp_path)
    section = load_params(path).audit["limits"]
    found = AuditorLimits.from_params(section)
    assert found.keys.trainer == key and found.keys.client == CLIENT.verifier and found.min_sample == 2
    portable = portable_limits(section)
    assert portable == {"trainer_key": key.text, "client_key": CLIENT.verifier.text, "min_sample": 2}
    assert portable_limits(section, each=True) == {k: v for k, v in portable.items() if k != "min_sample"}
    assert portable_limits(None) is None
