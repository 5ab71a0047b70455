"""Keys, agreed spec, signed seal, attestations and proofs, with the commands as a user types them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.signed import make_commitments, publish

from tasks.store import open_store
from vt_core.evidence.agreement import read_spec_file
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.keys import read_verifier_key

PARAMS = {
    "job": {"reference": "vt_core.jobs.digits:DigitsJob", "args": {"batch_size": 32, "width": 8}},
    "train": {"seed": 3, "steps": 8, "segment_steps": 3, "commit_interval": 2},
}

# The commands of README and docs/signatures.md, in a folder with params.yaml and nothing else.
STORY = """
set -e
vt() { "$PYTHON" -m flows.cli.main "$@"; }
vt keygen --out keys && vt spec --params params.yaml --sign keys/client --sign keys/trainer > spec.json
vt train --spec spec.json --store "$URL" --run-id RUN && vt verify RUN --store "$URL" --key keys/trainer.pub
vt prove RUN --step 7 > p && vt check p --key keys/trainer.pub
"""


@dataclass(frozen=True)
class Signed:
    folder: Path
    url: str
    said: str


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, prefect_environment: dict[str, str]) -> Signed:
    """Run the story once."""
    from support.services import clean_environment

    folder = tmp_path_factory.mktemp("signed")
    url = f"file://{folder}/store"
    (folder / "params.yaml").write_text(yaml.safe_dump({**PARAMS, "store": url}))
    done = subprocess.run(
        ["bash", "-c", STORY], cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**clean_environment(), **prefect_environment, "PYTHON": sys.executable, "URL": url, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Signed(folder, url, done.stdout)


@pytest.fixture
def copy(signed: Signed, tmp_path: Path) -> Signed:
    """Return a copy of the folder that a test may spoil."""
    folder = tmp_path / "copy"
    shutil.copytree(signed.folder, folder)
    (folder / "params.yaml").write_text(yaml.safe_dump({**PARAMS, "store": f"file://{folder}/store"}))
    return Signed(folder, f"file://{folder}/store", signed.said)


def commitments(found: Signed) -> Path:
    return found.folder / "store" / "commitments" / "runs" / "RUN"


def test_the_story_as_it_is_told(signed: Signed):
    assert "sealed: run RUN" in signed.said and signed.said.count("verified-evidence") == 2
    names = {path.name for path in commitments(signed).iterdir()}
    assert names == {"spec.json", "agreement.json", "segments", "seal.json", "seal.note", "model.dsse.json"}
    agreed = read_spec_file((signed.folder / "spec.json").read_bytes(), "spec.json")
    assert (commitments(signed) / "spec.json").read_bytes() == agreed.spec
    assert (commitments(signed) / "agreement.json").read_bytes() == agreed.envelope
    assert "commits to a state at step 8" in signed.said, "the first leaf at or after step 7"


def test_a_proof_needs_nothing_but_itself_and_the_key(signed: Signed, vt: Callable[..., Any], tmp_path: Path):
    shutil.copy(signed.folder / "p", tmp_path / "mailed")
    key = (signed.folder / "keys" / "trainer.pub").read_text().strip()
    done = vt("check", "mailed", "--key", key, "--json")
    assert done.code == 0 and done.json["run_id"] == "RUN" and done.json["leaf_step"] == 8
    plain = loads_strict((tmp_path / "mailed").read_bytes().rstrip(), "it")
    plain["leaf"]["state"] = "0" * 64
    (tmp_path / "forged").write_bytes(dumps(plain))
    done = vt("check", "forged", "--key", key, "--json")
    assert done.code == 1 and done.json["reason"] == "chain_broken"
    stranger = (signed.folder / "keys" / "client.pub").read_text().strip()
    assert vt("check", "mailed", "--key", stranger, "--json").json["reason"] == "signature_invalid"
    assert vt("check", "nothing", "--key", key).code == 3


def test_steps_that_cannot_be_proven(signed: Signed, vt: Callable[..., Any]):
    done = vt("prove", "RUN", "--step", "9", cwd=signed.folder)
    assert done.code == 3 and "steps 0" in done.err and done.out == ""
    done = vt("prove", "RUN", "--step", "0", "--out", "first", cwd=signed.folder)
    assert done.code == 0 and done.out == ""
    assert vt("check", "first", "--key", "keys/trainer.pub", "--json", cwd=signed.folder).json["leaf_step"] == 0


def test_the_model_and_its_attestation(copy: Signed, vt: Callable[..., Any]):
    arguments = (
        "verify-model",
        "model",
        "--attestation",
        "model/model.dsse.json",
        "--key",
        "keys/trainer.pub",
        "--json",
    )
    done = vt("fetch-model", "RUN", "--out", "model", "--json", cwd=copy.folder)
    assert done.code == 0 and done.json["step"] == 8, done.err
    done = vt(*arguments, cwd=copy.folder)
    seal = loads_strict((commitments(copy) / "seal.json").read_bytes(), "it")
    assert done.code == 0 and done.json["state"] == seal["state"] and done.json["root"] == seal["root"]
    file = ("verify-model", "model/checkpoint.safetensors", *arguments[2:])
    assert vt(*file, cwd=copy.folder).code == 0
    assert vt("fetch-model", "RUN", "--out", "model", cwd=copy.folder).code == 3, "nothing is overwritten"
    path = copy.folder / "model" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    done = vt(*arguments, cwd=copy.folder)
    assert done.code == 1 and done.json["reason"] == "artifact_corrupt"
    other = (*arguments[:-2], "keys/client.pub", "--json")
    assert vt(*other, cwd=copy.folder).json["reason"] == "signature_invalid"


def test_files_are_checked_if_asked(copy: Signed, vt: Callable[..., Any]):
    done = vt("verify", "RUN", "--key", "keys/trainer.pub", "--artifacts", "--json", cwd=copy.folder)
    assert done.code == 0 and done.json["artifacts"]["files"] == 4 * 6, done.out
    record = loads_strict((commitments(copy) / "segments" / "00002.json").read_bytes(), "it")
    size = record["files"]["checkpoint.safetensors"]["size"]
    objects = [p for p in (copy.folder / "store" / "artifacts").rglob("*") if p.is_file() and p.stat().st_size == size]
    for path in objects:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    done = vt("verify", "RUN", "--key", "keys/trainer.pub", "--artifacts", "--json", cwd=copy.folder)
    assert done.code == 1 and done.json["reason"] == "artifact_corrupt", done.out
    assert vt("verify", "RUN", "--key", "keys/trainer.pub", cwd=copy.folder).code == 0, "that needs no file"


def test_a_signed_audit_and_the_policy_file(copy: Signed, vt: Callable[..., Any]):
    limits = {"trainer_key": "keys/trainer.pub", "client_key": "keys/client.pub", "min_sample": 2}
    policy = {**PARAMS, "store": copy.url, "audit": {"segments": "1,2", "limits": limits}}
    (copy.folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    arguments = ("audit", "RUN", "--params", "policy.yaml", "--key", "keys/auditor", "--json")
    done = vt(*arguments, cwd=copy.folder)
    assert done.code == 0 and done.json["verdict"] == "verified", done.out + done.err
    names = {path.suffix for path in (copy.folder / "store" / "verdicts" / "runs" / "RUN").iterdir()}
    assert names == {".json", ".dsse"}
    shown = vt(
        "verify", "RUN", "--key", "keys/trainer.pub", "--auditor-key", "keys/auditor.pub", "--json", cwd=copy.folder
    )
    assert [(row["verdict"], row["signature"]) for row in shown.json["verdicts"]] == [("verified", "valid")]
    assert len(vt("show", "RUN", "--json", cwd=copy.folder).json["verdicts"]) == 1, "a signature is no verdict"
    assert vt("runs", "--json", cwd=copy.folder).json["runs"][0]["verdict"] == "verified"

    done = vt(*arguments, "--segments", "1", cwd=copy.folder)
    assert done.code == 3 and "min_sample" in done.json["error"], "too small a sample is refused before any replay"
    policy["audit"]["limits"]["trainer_key"] = "keys/client.pub"
    (copy.folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    done = vt(*arguments, cwd=copy.folder)
    assert done.code == 1 and done.json["reason"] == "signature_invalid"
    assert done.json["coverage"]["replayed"] == 0


def test_a_run_for_another_spec_is_rejected(copy: Signed, vt: Callable[..., Any]):
    """The trainer swaps the spec that both have signed for one with another seed."""
    (copy.folder / "other.yaml").write_text(yaml.safe_dump({**PARAMS, "train": {**PARAMS["train"], "seed": 4}}))
    signing = ("--sign", "keys/client", "--sign", "keys/trainer", "--out", "other.json")
    assert vt("spec", "--params", "other.yaml", *signing, cwd=copy.folder).code == 0
    agreement = commitments(copy) / "agreement.json"
    agreement.chmod(0o644)
    agreement.write_bytes((copy.folder / "other.json").read_bytes().rstrip())
    done = vt("verify", "RUN", "--key", "keys/trainer.pub", "--json", cwd=copy.folder)
    assert done.code == 1 and done.json["reason"] == "spec_mismatch"


def test_what_the_trainer_refuses(copy: Signed, vt: Callable[..., Any]):
    def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
        done = vt("train", *arguments, "--json", cwd=copy.folder, env=env)
        assert done.code == 3, done.out
        text: str = done.json["error"]
        return text

    assert "has not signed the spec" in refused("--spec", "spec.json", "--key", "keys/referee")
    assert "has not signed the spec" in refused("--spec", "spec.json", env={"VT_KEY": "keys/referee"})
    (copy.folder / "keys" / "trainer").rename(copy.folder / "hidden")
    assert "--key FILE or VT_KEY" in refused("--spec", "spec.json")
    assert "is a public key" in refused("--spec", "spec.json", "--key", "keys/trainer.pub")
    assert "cannot read" in refused("--spec", "nothing.json")
    assert sorted(p.name for p in (copy.folder / "store" / "commitments" / "runs").iterdir()) == ["RUN"]


def test_the_flow_takes_a_spec_and_the_path_of_a_key(copy: Signed, vt_environment: dict[str, str]):
    """As a deployment runs it: no parameter file there, the key by VT_KEY."""
    (copy.folder / "params.yaml").unlink()
    program = (
        "import json, sys; from flows import settings; settings.apply(); from flows.train import train;"
        "print(json.dumps(train(spec='spec.json', store=sys.argv[1], run_id='second', workspace='w')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, copy.url], cwd=copy.folder, capture_output=True, text=True, timeout=300,
        check=False, env={**vt_environment, "VT_KEY": "keys/trainer"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    key = read_verifier_key(str(copy.folder / "keys" / "trainer.pub"))
    assert summary["signed_by"] == key.keyid
    first = loads_strict((commitments(copy) / "seal.json").read_bytes(), "it")
    assert summary["state_digest"] == first["state"] and summary["spec"] == first["spec"]


def test_two_parties_sign_one_after_the_other(signed: Signed, vt: Callable[..., Any]):
    def run(*arguments: str) -> Any:
        return vt(*arguments, cwd=signed.folder)

    assert run("spec", "--facts", "--out", "bare.json").code == 0
    assert run("spec", "bare.json", "--sign", "keys/trainer", "--out", "once.json").code == 0
    done = run("spec", "--add-signature", "keys/client", "once.json")
    assert done.code == 0 and done.out == (signed.folder / "spec.json").read_text()
    both = ("--key", "keys/client.pub", "--key", "keys/trainer.pub", "--json")
    assert run("spec", "--check", "spec.json", *both).code == 0
    done = run("spec", "--check", "once.json", *both)
    assert done.code == 1 and done.json["reason"] == "signature_invalid"
    assert run("spec", "--add-signature", "keys/client", "spec.json").code == 3, "signed already"
    done = run("spec", "--show", "spec.json", "--json")
    assert done.json["reference"] == "vt_core.jobs.digits:DigitsJob" and done.json["segments"] == 4
    assert "digits:DigitsJob" in run("spec", "--show", "spec.json").out
    assert run("spec", "--check").code == 3 and run("spec", "--key", "keys/client.pub").code == 3


def test_keygen(vt: Callable[..., Any], tmp_path: Path):
    done = vt("keygen", "--out", "k", "--name", "bank", "--json")
    assert done.code == 0 and [row["name"] for row in done.json["keys"]] == ["bank"]
    assert (tmp_path / "k" / "bank").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in done.out + done.err
    before = (tmp_path / "k" / "bank").read_bytes()
    done = vt("keygen", "--out", "k", "--name", "other", "--name", "bank")
    assert done.code == 3 and "not overwritten" in done.err and not (tmp_path / "k" / "other").exists()
    assert (tmp_path / "k" / "bank").read_bytes() == before


def test_seal_signs_a_finished_run(vt: Callable[..., Any], tmp_path: Path):
    import dataclasses

    store = open_store(str(tmp_path / "store"), create=True)
    publish(store, dataclasses.replace(make_commitments(), note=None, model=None, agreement=None))
    assert vt("keygen", "--out", "keys").code == 0
    verify = ("verify", "run", "--store", store.url, "--key", "keys/trainer.pub", "--json")
    assert vt(*verify).code == 2
    done = vt("prove", "run", "--step", "1", "--store", store.url)
    assert done.code == 3 and "vt seal run" in done.err
    assert vt("seal", "run", "--store", store.url, "--key", "keys/trainer").code == 0
    assert vt("seal", "run", "--store", store.url, env={"VT_KEY": "keys/trainer"}).code == 0, "again, by VT_KEY"
    done = vt(*verify)
    assert done.code == 0 and done.json["signed_by"]["seal"] == done.json["keys_checked"]
    done = vt("seal", "run", "--store", store.url, "--key", "keys/client")
    assert done.code == 3 and "another key" in done.err
    path = tmp_path / "store" / "commitments" / "runs" / "run" / "segments" / "00001.json"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"index":1', b'"index":2'))
    for command in (("seal", "run", "--key", "keys/trainer"), ("prove", "run", "--step", "1"),
                    ("fetch-model", "run", "--out", "m")):  # fmt: skip
        done = vt(*command, "--store", store.url)
        assert done.code == 1 and "rejected" in done.err and done.out == ""


def test_services_do_not_hand_a_signing_key_on(monkeypatch: pytest.MonkeyPatch):
    from flows.services.__main__ import _clean

    monkeypatch.setenv("VT_KEY", "keys/trainer")
    assert "VT_KEY" not in _clean()


@pytest.mark.parametrize("name", ["keygen", "spec", "seal", "verify", "prove", "check", "verify-model", "fetch-model"])
def test_every_command_explains_itself(vt: Callable[..., Any], name: str):
    done = vt(name, "--help")
    assert done.code == 0 and "Example: vt" in done.out and "--json" in done.out
