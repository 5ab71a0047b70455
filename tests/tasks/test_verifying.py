"""Verifying a run's evidence without a replay, and the keys of a training; on runs made of records alone."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.services import clean_environment
from support.signed import AUDITOR, CLIENT, STRANGER, TRAINER, make_commitments, make_spec, publish

from tasks.coverage import coverage
from tasks.runs import RunStore, signature_name
from tasks.signing import read_spec, sign_run, trainer_key
from tasks.store import Store, open_store
from tasks.verifying import verify_run
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.agreement import read_spec_file, sign_spec
from vt_core.evidence.canonical import dumps
from vt_core.evidence.judgement import sign_verdict
from vt_core.evidence.keys import SignerKey, write_key_pair
from vt_core.evidence.records import Commitments
from vt_core.evidence.signatures import PartyKeys, open_evidence

RUN = make_commitments()
BOTH = PartyKeys(TRAINER.verifier, CLIENT.verifier)
VERDICT = {"run_id": "run", "verdict": "verified", "reason": None, "segments": [], "time": "20260101T000000Z"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def result(store: Store, found: Commitments, keys: PartyKeys, **more: Any) -> dict[str, Any]:
    return verify_run(publish(store, found), keys, **more)


def test_signed_evidence_is_verified(store: Store):
    plain = result(store, RUN, BOTH)
    assert (plain["result"], plain["reason"]) == ("verified-evidence", None)
    assert plain["segments"] == 4 and plain["leaves"] == 11 and plain["artifacts"] is None
    assert plain["signed_by"]["seal"] == [TRAINER.keyid] and CLIENT.keyid in plain["keys_checked"]


UNDECIDED: dict[str, tuple[Commitments, PartyKeys, str]] = {
    "no key was given": (RUN, PartyKeys(), "not_signed"),
    "only the client's key was given": (RUN, PartyKeys(None, CLIENT.verifier), "not_signed"),
    "nobody has signed the seal": (
        dataclasses.replace(RUN, note=None, model=None), PartyKeys(TRAINER.verifier), "not_signed",
    ),
    "no attestation": (dataclasses.replace(RUN, model=None), PartyKeys(TRAINER.verifier), "not_signed"),
    "no agreement": (dataclasses.replace(RUN, agreement=None), BOTH, "not_signed"),
    "not sealed": (
        dataclasses.replace(RUN, seal=None, note=None, model=None, segments=RUN.segments[:2]), BOTH, "not_sealed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_leaves_it_open(store: Store, name: str):
    found, keys, reason = UNDECIDED[name]
    plain = result(store, found, keys)
    assert (plain["result"], plain["reason"]) == ("inconclusive", reason)


def test_a_run_of_a_stranger_is_rejected(store: Store):
    plain = result(store, make_commitments(key=STRANGER), PartyKeys(TRAINER.verifier))
    assert (plain["result"], plain["reason"]) == ("rejected", "signature_invalid")


@pytest.mark.parametrize("name", ["seal.note", "agreement.json", "model.dsse.json", "seal.json", "segments/00002.json"])
def test_any_flipped_bit_is_rejected(store: Store, tmp_path: Path, name: str):
    run = publish(store, RUN)
    path = tmp_path / "store" / "commitments" / "runs" / "run" / name
    data = bytearray(path.read_bytes())
    path.chmod(0o644)
    for place in range(0, len(data), 7):
        spoilt = bytearray(data)
        spoilt[place] ^= 1
        path.write_bytes(bytes(spoilt))
        plain = verify_run(run, BOTH)
        assert plain["result"] == "rejected", (place, plain)


def test_verdicts_and_their_signatures(store: Store):
    run = publish(store, RUN)
    unsigned = run.publish_verdict({**VERDICT, "nonce": "1"}, "20260101T000001Z")
    signed = run.publish_verdict({**VERDICT, "nonce": "2"}, "20260101T000002Z", AUDITOR)
    strange = run.publish_verdict({**VERDICT, "nonce": "3"}, "20260101T000003Z", STRANGER)
    assert run.verdicts() == [unsigned, signed, strange], "signatures are no verdicts"
    assert [c.run_id for c in coverage(store)] == ["run"]
    rows = {row["name"]: row for row in verify_run(run, BOTH, AUDITOR.verifier)["verdicts"]}
    assert [rows[n]["signature"] for n in (unsigned, signed, strange)] == ["absent", "valid", "other_key"]
    assert rows[signed]["signed_by"] == [AUDITOR.keyid] and rows[signed]["verdict"] == "verified"
    plain = verify_run(run, BOTH)
    assert [row["signature"] for row in plain["verdicts"]] == ["absent", "unchecked", "unchecked"]
    assert plain["result"] == "verified-evidence"


def test_a_verdict_that_borrows_a_signature_is_found(store: Store):
    run = publish(store, RUN)
    genuine = run.publish_verdict({**VERDICT, "nonce": "1"}, "20260101T000001Z", AUDITOR)
    envelope = run.verdict_signature(genuine)
    assert envelope is not None
    false = run.publish_verdict({**VERDICT, "nonce": "2"}, "20260101T000002Z")
    store.verdicts.create(signature_name(false), envelope)
    rows = verify_run(run, BOTH, AUDITOR.verifier)["verdicts"]
    assert [row["signature"] for row in rows] == ["valid", "malformed"] and "another verdict" in rows[1]["problem"]


def test_a_verdict_under_a_false_signature_of_the_auditor_rejects(store: Store):
    run = publish(store, RUN)
    name = run.publish_verdict(VERDICT, "20260101T000001Z")
    forger = SignerKey("auditor", STRANGER._private)
    file = name.rpartition("/")[2]
    forged = sign_verdict(file, dumps(VERDICT), [forger]).replace(forger.keyid.encode(), AUDITOR.keyid.encode())
    store.verdicts.create(signature_name(name), forged)
    plain = verify_run(run, BOTH, AUDITOR.verifier)
    assert (plain["result"], plain["reason"]) == ("rejected", "signature_invalid")
    assert plain["verdicts"][0]["signature"] == "invalid"


def test_a_verdict_that_was_changed_is_told(store: Store, tmp_path: Path):
    run = publish(store, RUN)
    name = run.publish_verdict({**VERDICT, "verdict": "rejected"}, "20260101T000001Z", AUDITOR)
    path = tmp_path / "store" / "verdicts" / name
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"rejected", b"verified"))
    row = verify_run(run, BOTH, AUDITOR.verifier)["verdicts"][0]
    assert row["signature"] == "malformed" and "changed" in row["problem"] and row["verdict"] is None


def test_sealing_later(store: Store):
    run = publish(store, dataclasses.replace(RUN, note=None, model=None))
    assert verify_run(run, BOTH)["reason"] == "not_signed"
    for _ in range(2):  # again with the same key: nothing changes
        assert sign_run(run, TRAINER)["signed_by"] == TRAINER.keyid
    assert verify_run(run, BOTH)["result"] == "verified-evidence"
    assert run.commitments().note == RUN.note
    with pytest.raises(SpecError, match="not by stranger"):
        sign_run(run, STRANGER)
    with pytest.raises(SpecError, match="another key"):  # the client has signed the agreement, but not this seal
        sign_run(run, CLIENT)


def test_a_forged_agreement_is_not_sealed_over(store: Store):
    forger = SignerKey("trainer", STRANGER._private)
    forged = sign_spec(RUN.spec or b"", [forger]).replace(forger.keyid.encode(), TRAINER.keyid.encode())
    run = publish(store, dataclasses.replace(RUN, note=None, model=None, agreement=forged))
    with pytest.raises(EvidenceError) as found:
        sign_run(run, TRAINER)
    assert found.value.reason == "signature_invalid" and run.commitments().note is None


def test_what_is_not_sealed_cannot_be_signed(store: Store):
    run = publish(store, dataclasses.replace(RUN, seal=None, note=None, model=None))
    with pytest.raises(SpecError, match="--run-id run"):
        sign_run(run, TRAINER)


def test_broken_evidence_is_not_signed(store: Store):
    run = publish(store, dataclasses.replace(RUN, note=None, model=None, spec=make_spec(10, seed="1"), agreement=None))
    with pytest.raises(EvidenceError):
        sign_run(run, TRAINER)
    assert run.commitments().note is None


def test_the_key_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    own, other = write_key_pair(tmp_path / "keys", "trainer"), write_key_pair(tmp_path / "elsewhere", "other")
    signed = read_spec_file(sign_spec(RUN.spec or b"", [CLIENT, own]), "spec.json")
    bare = read_spec_file(RUN.spec or b"", "spec.json")

    def keyid(*given: Any) -> str | None:
        key = trainer_key(*given)
        return None if key is None else key.keyid

    assert keyid(None, None) is None and keyid(bare, None) is None, "keys/trainer has not signed that"
    assert keyid(None, "elsewhere/other") == keyid(bare, "elsewhere/other") == other.keyid
    assert keyid(signed, None) == keyid(signed, "keys/trainer") == own.keyid
    with pytest.raises(SpecError, match="--add-signature"):
        trainer_key(signed, "elsewhere/other")
    with pytest.raises(SpecError, match="--key FILE or VT_KEY"):
        trainer_key(read_spec_file(sign_spec(RUN.spec or b"", [CLIENT, other]), "spec.json"), None)
    forger = SignerKey("trainer", STRANGER._private)
    document = sign_spec(RUN.spec or b"", [forger]).replace(forger.keyid.encode(), own.keyid.encode())
    with pytest.raises(SpecError, match="changed after"):
        trainer_key(read_spec_file(document, "spec.json"), None)


def test_a_spec_is_read_from_a_path_or_a_url(tmp_path: Path):
    (tmp_path / "s.json").write_bytes((RUN.agreement or b"") + b"\n")
    assert read_spec(tmp_path / "s.json") == read_spec(f"file://{tmp_path}/s.json")
    with pytest.raises(SpecError, match="cannot read the run spec"):
        read_spec(tmp_path / "nothing.json")


def test_a_spec_is_read_from_a_bucket(s3_env: Any):
    url = f"s3://{s3_env.bucket}/specs"
    store = open_store(url)
    store.commitments.create("agreed.json", RUN.agreement or b"")
    for query in ("", f"?endpoint_url={s3_env.endpoint}"):
        assert read_spec(f"{url}/commitments/agreed.json{query}").envelope == RUN.agreement
    with pytest.raises(SpecError, match="cannot read the run spec"):
        read_spec(f"{url}/commitments/nothing.json")


def vt(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys; from flows.cli.main import main\n"
        "try:\n main()\n"
        "finally:\n"
        " print(sorted({'torch', 'numba', 'dvc', 'prefect', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**clean_environment(), "COLUMNS": "150"}, timeout=100,
    )  # fmt: skip


def test_a_thousand_segments_are_checked_in_three_seconds():
    """Processor time: other work on the machine must not count."""
    large = make_commitments("large", 4 * 999)
    assert len(large.segments) == 1000
    began = time.process_time()
    open_evidence(large, BOTH)
    assert time.process_time() - began < 3


def test_vt_verify_loads_no_torch(store: Store, tmp_path: Path):
    run = publish(store, RUN)
    run.publish_verdict(VERDICT, "20260101T000001Z", AUDITOR)
    keys = (
        "--key",
        TRAINER.verifier.text,
        "--client-key",
        CLIENT.verifier.text,
        "--auditor-key",
        AUDITOR.verifier.text,
    )
    done = vt(tmp_path, "verify", "run", "--store", store.url, *keys, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["result"] == "verified-evidence", done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("key", "code", "says"),
    [(TRAINER.verifier.text, 0, "verified-evidence"), (STRANGER.verifier.text, 1, "signature_invalid"),
     (None, 2, "not_signed"), ("no key", 3, "cannot read the key")],
    ids=["trainer", "stranger", "none", "no-key"],
)  # fmt: skip
def test_exit_codes_of_vt_verify(store: Store, tmp_path: Path, key: str | None, code: int, says: str):
    publish(store, RUN)
    done = vt(tmp_path, "verify", "run", "--store", store.url, *(() if key is None else ("--key", key)))
    assert done.returncode == code and says in done.stdout + done.stderr


def test_a_run_that_is_not_there(store: Store):
    from vt_core.errors import NotFound

    with pytest.raises(NotFound, match="vt show"):
        verify_run(RunStore(store, "nobody"), BOTH)
