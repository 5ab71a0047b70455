"""``vt gc``: what may go, and above all what may not."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from support.records import make_run
from support.services import SMALL_JOB, clean_environment

from tasks.artifacts import ArtifactStore, Pointer
from tasks.garbage import Garbage, find_garbage, named_objects, remove
from tasks.in_use import in_use
from tasks.params import load_params
from tasks.runs import RunStore, fetch_segments
from tasks.store import Store, open_store
from tasks.training import trainer_from_params
from vt_core.errors import EvidenceError, StoreError


def train(store: str, workspace: Path, run_id: str, seal: bool = True) -> None:
    workspace.mkdir(parents=True, exist_ok=True)
    path = workspace / f"{run_id}.yaml"
    path.write_text(json.dumps({"job": SMALL_JOB, "train": {"seed": 1, "steps": 2, "segment_steps": 1}}))
    trainer = trainer_from_params(load_params(path), store, run_id, workspace)
    with trainer.open():
        for index in range(trainer.begin(), trainer.published.segment_count):
            trainer.publish(trainer.train(index))
        if seal:
            trainer.seal()


def stray(store: Store, folder: Path, text: bytes = b"pushed, and never committed to") -> Pointer:
    """Push something that no commitment names."""
    (folder / "stray").mkdir(parents=True, exist_ok=True)
    (folder / "stray" / "file").write_bytes(text)
    with ArtifactStore(folder, store.dvc_remote()) as artifacts:
        artifacts.init()
        return artifacts.publish(folder / "stray")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a workspace: one sealed run and one stray artifact of a listing and a file."""
    folder = tmp_path_factory.mktemp("garbage")
    train(str(folder / "store"), folder / "work", "good")
    stray(open_store(str(folder / "store")), folder / "elsewhere")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy, symlinks=True)
    link = copy / "work/train/good/.dvc/store"  # a copy is in another place; resuming there would set it anew
    link.unlink()
    link.symlink_to(copy / "store/artifacts")
    return copy


@pytest.fixture
def look(place: Path) -> Callable[..., Garbage]:
    return lambda **more: find_garbage(open_store(str(place / "store")), place / "work", **more)


def kinds(garbage: Garbage) -> list[str]:
    return sorted(item.kind for item in garbage.items)


def files(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_size for p in folder.rglob("*") if p.is_file()}


def check_evidence(store: Store, workspace: Path, run_id: str = "good") -> None:
    """Everything that the run's commitments name can be fetched."""
    run = RunStore(store, run_id)
    with ArtifactStore(workspace, store.dvc_remote()) as artifacts:
        artifacts.init()
        folders, errors = fetch_segments(artifacts, workspace, run.published(), "all")
    assert not errors and len(folders) == 3


def test_looking_deletes_nothing(place, look):
    before = files(place)
    found = look()
    assert kinds(found) == ["artifact", "artifact", "workspace"]
    assert all(item.size > 0 for item in found.items)
    assert found.to_json()["bytes"] == sum(item.size for item in found.items)
    assert files(place) == before


def test_what_goes_and_what_stays(place, look, tmp_path):
    store = open_store(str(place / "store"))
    named = named_objects(store, store.dvc_remote().objects())
    assert len(named) > 3
    done = remove(look(), store, place / "work")
    assert kinds(done) == ["artifact", "artifact", "workspace"]
    assert not (place / "work/train/good").exists()
    assert {p.relative_to(place / "store/artifacts").as_posix() for p in (place / "store/artifacts").rglob("*")
            if p.is_file()} == named  # fmt: skip
    check_evidence(store, tmp_path / "audit")
    assert look().items == []
    # The trainer finds its finished run in the store alone.
    train(str(place / "store"), place / "work", "good")


def test_a_workspace_in_use_stays(place, look):
    with in_use(place / "work/train/good"):
        assert "workspace" not in kinds(look())
        before = look()
    found = look()
    assert "workspace" in kinds(found) and "workspace" not in kinds(before)
    with in_use(place / "work/train/good"):  # it came into use after the look
        done = remove(found, open_store(str(place / "store")), place / "work")
    assert "workspace" not in kinds(done) and (place / "work/train/good").exists()


def test_workspaces_of_unsealed_and_unknown_runs_stay(place, look):
    (place / "work/train/nobody").mkdir()
    make_run(open_store(str(place / "store")), "going", 2, sealed=False)
    with in_use(place / "work/train/going"), in_use(place / "work/train/nobody"):
        pass
    assert [i.name for i in look().items if i.kind == "workspace"] == [str(place / "work/train/good")]


def test_a_workspace_of_a_namesake_in_another_store_stays(place, tmp_path):
    other = open_store(str(tmp_path / "other"), create=True)
    make_run(other, "good", 2)
    found = find_garbage(other, place / "work", [])
    assert found.items == [] and any("another store" in reason for reason in found.kept)


def test_audit_workspaces_go_when_their_process_is_dead(place, look):
    folder = place / "work/audit/audit-good-01234567"
    code = (
        "import sys, time; from pathlib import Path; from tasks.in_use import in_use\n"
        "with in_use(Path(sys.argv[1])): print('in', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, env=clean_environment(), text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        assert "audit-workspace" not in kinds(look())
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert "audit-workspace" in kinds(look())
    finally:
        process.kill()
        process.communicate()
    unmarked = place / "work/audit/audit-good-89abcdef"
    unmarked.mkdir()
    assert str(unmarked) not in [item.name for item in look().items]
    remove(look(), open_store(str(place / "store")), place / "work")
    assert unmarked.exists() and not folder.exists()


def test_an_unsealed_run_keeps_all_artifacts_until_it_is_given_up(place, look):
    make = open_store(str(place / "store"))
    make.commitments.create("runs/going/spec.json", b"{}")
    found = look()
    assert kinds(found) == ["workspace"] and any("going" in reason for reason in found.kept)
    assert kinds(look(abandoned=["going"])) == ["artifact", "artifact", "workspace"]
    assert kinds(look(abandoned=["good"])) == ["workspace"], "giving up another run does not help"


@pytest.mark.parametrize("name", ["runs/bad/segments/00000.json", "runs/good/segments/00009.json"])
def test_a_record_that_cannot_be_read_keeps_all_artifacts(place, look, name):
    open_store(str(place / "store")).commitments.create(name, b"{}")
    found = look(abandoned=["bad"])
    assert "artifact" not in kinds(found) and any("all artifacts" in reason for reason in found.kept)


def test_a_listing_that_is_lost_keeps_all_artifacts(place, look):
    record = RunStore(open_store(str(place / "store")), "good").published()[1]
    md5 = record.pointer["md5"]
    (place / "store/artifacts/files/md5" / md5[:2] / md5[2:]).unlink()
    assert "artifact" not in kinds(look())


def test_what_is_committed_to_after_the_look_stays(place, look, tmp_path):
    store = open_store(str(place / "store"))
    found = look()
    train(str(place / "store"), tmp_path / "w", "late", seal=False)
    pointer = stray(store, tmp_path / "again")
    record = json.loads(store.commitments.read("runs/late/segments/00002.json"))
    run = RunStore(store, "late")
    late = {**record, "index": 3, "pointer": pointer.to_json()}
    store.commitments.create(run._segment(3), json.dumps(late, sort_keys=True, separators=(",", ":")).encode())
    done = remove(found, store, place / "work")
    assert kinds(done) == ["workspace"] and any("names it by now" in reason for reason in done.kept)
    check_evidence(store, tmp_path / "audit")


def test_without_all_commitments_nothing_is_deleted(place, look):
    found = look()
    store = open_store(str(place / "store"))
    (place / "store").rename(place / "gone")
    with pytest.raises(StoreError):
        find_garbage(store, place / "work", [])
    found.items = [i for i in found.items if i.kind == "artifact"]
    with pytest.raises((StoreError, EvidenceError)):
        remove(found, store, place / "work")
    (place / "gone").rename(place / "store")
    assert [i for i in look().items if i.kind == "artifact"] == found.items


def test_the_command(place):
    def vt(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "flows.cli.main", "gc", "--store", str(place / "store"), "--workspace"]
        done = subprocess.run(
            [*command, str(place / "work"), *arguments], env=clean_environment(), capture_output=True, text=True,
            cwd=place, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else {"text": done.stdout}

    before = files(place)
    assert "nothing was deleted" in vt()["text"]
    plain = vt("--json")
    assert not plain["removed"] and len(plain["items"]) == 3 and files(place) == before
    gone = vt("--json", "--yes")
    assert gone["removed"] and gone["bytes"] == plain["bytes"] and len(files(place)) < len(before)
    assert "could go: 0.00 MB in 0 items" in vt()["text"]


@pytest.mark.slow
def test_s3_retention_and_a_bucket_that_denies_deletion(s3_env, tmp_path):
    bucket = f"gc-{os.getpid()}"
    client = boto3.client(
        "s3", endpoint_url=s3_env.endpoint, region_name="us-east-1", config=Config(s3={"addressing_style": "path"})
    )
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    store = open_store(f"s3://{bucket}/p")
    make_run(store, "seal-only", 1)
    # A sealed run whose artifacts are not there: which objects it names is not known.
    pointer = stray(store, tmp_path / "one")
    assert find_garbage(store, tmp_path / "w").items == []

    store = open_store(f"s3://{bucket}/q")
    train(f"s3://{bucket}/q", tmp_path / "work", "good")
    stray(store, tmp_path / "two")
    stray(store, tmp_path / "three", b"another")
    (key,) = [f"q/artifacts/files/md5/{pointer.md5[:2]}/{pointer.md5[2:]}"]
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    client.put_object_retention(Bucket=bucket, Key=key, Retention={"Mode": "GOVERNANCE", "RetainUntilDate": until})
    found = find_garbage(store, tmp_path / "work")
    assert kinds(found) == ["artifact"] * 3 + ["workspace"], found.kept
    assert any("under retention" in reason and pointer.md5[2:] in reason for reason in found.kept)

    deny = {"Effect": "Deny", "Principal": "*", "Action": ["s3:DeleteObject", "s3:DeleteObjectVersion"]}
    policy = {"Version": "2012-10-17", "Statement": [{**deny, "Resource": [f"arn:aws:s3:::{bucket}/*"]}]}
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    try:
        remove(found, store, tmp_path / "work")
        denied = False
    except StoreError as error:
        denied = "AccessDenied" in str(error)
    if denied:  # an administrator of SeaweedFS stands above the policy; AWS denies everybody
        assert kinds(find_garbage(store, tmp_path / "work")) == ["artifact"] * 3
    client.delete_bucket_policy(Bucket=bucket)
    remove(find_garbage(store, tmp_path / "work"), store, tmp_path / "work")
    left = find_garbage(store, tmp_path / "work")
    assert left.items == [] and any(pointer.md5[2:] in reason for reason in left.kept)
    check_evidence(store, tmp_path / "audit")
