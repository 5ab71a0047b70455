"""What each party's keys can do to the evidence, tried against a real S3 server with the services' identities."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from flows.services import processes, s3
from flows.services.layout import BUCKET, PREFIX, Layout, open_layout
from tasks.artifacts import ArtifactStore
from tasks.buckets import prepare_bucket
from tasks.store import Store, open_store
from tasks.store_s3 import S3Commitments
from vt_core.errors import AlreadyExists, StoreError

COMMITMENT = "runs/r/spec.json"
KEY = f"{PREFIX}/commitments/{COMMITMENT}"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """The S3 part of the services alone: same command, same identities, same bucket."""
    layout = open_layout(tmp_path_factory.mktemp("keys") / "s", prefect_port=0)
    folder = layout.path
    processes.start(folder, "s3", s3.command(layout), {**os.environ, "GOMEMLIMIT": "400MiB", "HOME": str(folder)})
    try:
        s3.wait_and_prepare(layout)
        deadline = time.monotonic() + 60
        while True:  # the bucket exists before volumes can be written to
            try:
                client(layout, "admin").put_object(Bucket=BUCKET, Key="ready", Body=b"")
                break
            except ClientError:
                assert time.monotonic() < deadline
                time.sleep(0.3)
        yield layout
    finally:
        processes.stop(folder, "s3")


@pytest.fixture
def as_party(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    def store(party: str) -> Store:
        for name, value in layout.environment(party).items():
            monkeypatch.setenv(name, value)
        opened = open_store(layout.store)
        opened.commitments.list("runs/")  # connects now, while these keys are in the environment
        opened.verdicts.list("runs/")
        return opened

    return store


@pytest.fixture
def committed(as_party: Callable[[str], Store]) -> bytes:
    data = b'{"first":true}'
    with suppress(AlreadyExists):
        as_party("trainer").commitments.create(COMMITMENT, data)
    return data


def client(layout: Layout, party: str) -> Any:
    access, secret = layout.keys[party]
    return boto3.session.Session().client(
        "s3", endpoint_url=layout.endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
    )  # fmt: skip


def denied(call: Callable[..., Any], **arguments: Any) -> bool:
    """Tell whether the server refuses a call for lack of permission; another error is none of the expected."""
    try:
        call(Bucket=BUCKET, **arguments)
    except ClientError as error:
        assert error.response["Error"]["Code"] in ("AccessDenied", "403"), error
        return True
    return False


def test_a_commitment_that_is_overwritten_still_reads_as_the_first(layout, as_party, committed):
    trainer = client(layout, "trainer")
    with pytest.raises(AlreadyExists):
        as_party("trainer").commitments.create(COMMITMENT, b'{"first":false}')
    # A plain write, without our condition, makes a newer version ...
    trainer.put_object(Bucket=BUCKET, Key=KEY, Body=b'{"first":false}')
    assert trainer.get_object(Bucket=BUCKET, Key=KEY)["Body"].read() == b'{"first":false}'
    # ... which no reader of ours takes, whoever reads.
    for party in ("trainer", "auditor", "client"):
        assert as_party(party).commitments.read(COMMITMENT) == committed
    with pytest.raises(AlreadyExists):  # and a restarted trainer still meets the first
        as_party("trainer").commitments.create(COMMITMENT, b'{"first":false}')


@pytest.mark.parametrize("party", ["trainer", "auditor", "client"])
def test_nobody_deletes_or_loosens_the_bucket(layout, committed, party):
    keys = client(layout, party)
    version = client(layout, "admin").list_object_versions(Bucket=BUCKET, Prefix=KEY)["Versions"][-1]["VersionId"]
    assert version != "null"
    assert denied(keys.delete_object, Key=KEY)
    assert denied(keys.delete_object, Key=KEY, VersionId=version)
    assert denied(keys.put_bucket_policy, Policy=json.dumps({"Version": "2012-10-17", "Statement": []}))
    assert denied(keys.delete_bucket_policy)
    assert denied(keys.put_bucket_versioning, VersioningConfiguration={"Status": "Suspended"})
    answer: dict[str, Any] = {}
    try:
        answer = keys.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": KEY, "VersionId": version}]})
    except ClientError as error:
        assert error.response["Error"]["Code"] == "AccessDenied"
    assert not answer.get("Deleted"), answer
    kept = keys.get_object(Bucket=BUCKET, Key=KEY, VersionId=version)
    assert kept["Body"].read() == committed
    assert client(layout, "admin").get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"


@pytest.mark.parametrize(
    ("party", "may_write"),
    [("trainer", {"commitments", "artifacts"}), ("auditor", {"verdicts"}), ("client", set())],
)
def test_each_party_writes_its_own_part_only(layout, party, may_write):
    keys = client(layout, party)
    for part in ("commitments", "artifacts", "verdicts"):
        refused = denied(keys.put_object, Key=f"{PREFIX}/{part}/probe-{party}.json", Body=b"{}")
        assert refused == (part not in may_write), part
    assert denied(keys.put_object, Key=f"{PREFIX}/elsewhere", Body=b"")
    assert denied(keys.put_object, Key="other/commitments/x.json", Body=b"")
    assert keys.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/commitments/")["KeyCount"] >= 1


def test_errors_of_our_store_name_the_permission(as_party):
    with pytest.raises(StoreError, match="access denied"):
        as_party("trainer").verdicts.create("runs/r/forged.json", b'{"verdict":"verified"}')
    with pytest.raises(StoreError, match="access denied"):
        as_party("auditor").commitments.create("runs/r/seal.json", b"{}")
    as_party("auditor").verdicts.create("runs/r/v.json", b"{}")
    assert as_party("client").verdicts.list("runs/r/") == ["runs/r/v.json"]


def test_nobody_at_all_without_keys(layout):
    nobody = boto3.session.Session().client(
        "s3", endpoint_url=layout.endpoint, aws_access_key_id="NOBODY", aws_secret_access_key="x" * 40,
        region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
    )  # fmt: skip
    with pytest.raises(ClientError):
        nobody.list_objects_v2(Bucket=BUCKET)
    # The filer's HTTP port, which would list and delete for anybody, serves nothing.
    for method in ("GET", "DELETE"):
        url = f"http://127.0.0.1:{layout.s3_ports['filer.port']}/buckets/{BUCKET}/ready"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError):
            opener.open(urllib.request.Request(url, method=method), timeout=5)
    assert client(layout, "client").head_object(Bucket=BUCKET, Key="ready")["ContentLength"] == 0


@pytest.mark.slow
def test_the_trainers_keys_are_enough_for_artifacts_and_the_auditors_only_fetch(layout, as_party, tmp_path):
    folder = tmp_path / "w" / "segment-00000"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(os.urandom(1000))
    with ArtifactStore(tmp_path / "w", as_party("trainer").dvc_remote()) as artifacts:
        artifacts.init()
        pointer = artifacts.publish(folder)
    with ArtifactStore(tmp_path / "v", as_party("auditor").dvc_remote()) as fetched:
        fetched.init()
        fetched.fetch({"segment-00000": pointer})
        assert (tmp_path / "v/segment-00000/file").read_bytes() == (folder / "file").read_bytes()
        (tmp_path / "v/other").mkdir()
        (tmp_path / "v/other/file").write_bytes(b"an auditor writes no evidence")
        with pytest.raises(StoreError):
            fetched.publish(tmp_path / "v/other")


def test_preparing_a_bucket_needs_the_administrator(layout):
    with pytest.raises(StoreError, match="cannot prepare the bucket"):
        prepare_bucket(layout.endpoint, *layout.keys["trainer"], BUCKET)
    prepare_bucket(layout.endpoint, *layout.keys["admin"], BUCKET)  # again is harmless


class _Versions:
    """Stands for a client that lists the given versions, newest first, as S3 does."""

    def __init__(self, versions: list[tuple[str, str]], error: str | None = None) -> None:
        self._versions, self._error = versions, error

    def get_paginator(self, name: str) -> _Versions:
        assert name == "list_object_versions"
        return self

    def paginate(self, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        if self._error:
            raise ClientError({"Error": {"Code": self._error}}, "ListObjectVersions")
        for key, version in self._versions:  # one page each
            if key.startswith(Prefix):
                yield {"Versions": [{"Key": key, "VersionId": version}]}
        yield {}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], {}),
        ([("k", "null")], {}),  # a bucket without versions
        ([("k", "v2"), ("k", "v1")], {"VersionId": "v1"}),
        ([("k", "v1"), ("k0", "v9"), ("k/x", "v8")], {"VersionId": "v1"}),  # other keys that begin alike
        # Written before versions were switched on, overwritten after that: the first one is called null.
        ([("k", "v2"), ("k", "null")], {"VersionId": "null"}),
    ],
)
def test_first_version(versions, expected):
    store = S3Commitments("bucket", "", None, None)
    store._made = _Versions(versions)
    assert store._first_version("k") == expected


def test_first_version_where_versions_cannot_be_listed():
    store = S3Commitments("bucket", "", None, None)
    for code in ("NotImplemented", "MethodNotAllowed"):
        store._made = _Versions([], code)
        assert store._first_version("k") == {}
    for code in ("SlowDown", "NoSuchBucket"):
        store._made = _Versions([], code)
        with pytest.raises(ClientError):
            store._first_version("k")


def test_the_key_files_of_a_layout_can_be_sourced(tmp_path: Path):
    layout = open_layout(tmp_path / "s", prefect_port=0)
    done = subprocess.run(
        ["sh", "-c", f". {layout.path}/client.env && env"], capture_output=True, text=True, check=True, env={}
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {k: seen[k] for k in layout.environment("client")} == layout.environment("client")
