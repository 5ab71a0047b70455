"""S3 stores: URLs, credentials, and errors that say what to do. A real server answers, except where noted."""

from __future__ import annotations

import base64
import http.server
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

import boto3
import pytest

from tasks.store import open_store
from tasks.store_s3 import S3Commitments
from vt_core.errors import AlreadyExists, NotFound, StoreError


class Seaweed(Protocol):
    endpoint: str
    bucket: str

    def url(self, prefix: str) -> str: ...


def prefix() -> str:
    return f"t/{uuid.uuid4().hex}"


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:topsecret@bucket/prefix",
        "s3://topsecret@bucket",
        "s3://AKIAKEY:topsecret/with/slash@bucket/prefix",
        "s3://bucket/prefix?secret_access_key=topsecret",
        "s3://bucket?endpoint_url=http://user:topsecret@127.0.0.1:1",
        "s3://bucket/prefix#topsecret",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://Bad_Bucket",
        "s3://bucket/a/../b",
        "s3://bucket/a b",
        "s3://bucket//a//b",
    ],
)
def test_unusable_urls(url: str) -> None:
    with pytest.raises(StoreError):
        open_store(url)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8333", "ftp://host", "http://"])
def test_unusable_endpoints(endpoint: str) -> None:
    with pytest.raises(StoreError, match="not an http"):
        open_store(f"s3://bucket?endpoint_url={endpoint}")


def test_the_endpoint_of_the_url_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_store("s3://bucket/p").dvc_remote().options == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert open_store("s3://bucket/p").dvc_remote().options == {"endpointurl": "http://127.0.0.1:1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:2")
    assert open_store("s3://bucket/p").dvc_remote().options == {"endpointurl": "http://127.0.0.1:2"}
    remote = open_store("s3://bucket/p?endpoint_url=http://127.0.0.1:3&region=eu-x").dvc_remote()
    assert remote.options == {"endpointurl": "http://127.0.0.1:3", "region": "eu-x"}
    assert remote.url == "s3://bucket/p/artifacts"


def test_the_endpoint_may_be_in_the_url(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    store = open_store(s3_env.url(prefix()))
    store.commitments.create("a", b"x")
    assert store.commitments.read("a") == b"x"


def test_list_reads_every_page(s3_env: Seaweed) -> None:
    """S3 gives 1000 names a page; the objects are put directly, a conditional create each would take
    longer.
    """
    store = open_store(s3_env.url(prefix()))
    client: Any = boto3.client("s3")
    key = store.url.removeprefix(f"s3://{s3_env.bucket}/") + "/commitments"
    names = [f"leaf/{n:05}" for n in range(1005)]
    for name in names:
        client.put_object(Bucket=s3_env.bucket, Key=f"{key}/{name}", Body=b"")
    assert store.commitments.list("leaf/") == names


def test_the_stored_object_carries_its_checksum(s3_env: Seaweed) -> None:
    store = open_store(s3_env.url(prefix()))
    store.commitments.create("a", b"abc")
    client: Any = boto3.client("s3")
    key = store.url.removeprefix(f"s3://{s3_env.bucket}/") + "/commitments/a"
    head = client.head_object(Bucket=s3_env.bucket, Key=key, ChecksumMode="ENABLED")
    assert base64.b64decode(head["ChecksumSHA256"]).hex().startswith("ba7816bf")


def test_a_missing_bucket_is_not_an_empty_store(s3_env: Seaweed) -> None:
    commitments = open_store("s3://no-such-bucket-here/p").commitments
    for attempt in (
        commitments.list,
        lambda: commitments.read("a"),
        lambda: commitments.exists("a"),
        lambda: commitments.create("a", b""),
    ):
        with pytest.raises(StoreError, match=r"bucket no-such-bucket-here at http.*does not exist") as caught:
            attempt()
        assert not isinstance(caught.value, NotFound)


def test_wrong_credentials_say_what_to_do(s3_env: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    name = s3_env.url(prefix())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=r"cannot read .*/a in bucket .*AWS_SECRET_ACCESS_KEY"):
        open_store(name).commitments.read("a")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "UNKNOWN")
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID"):
        open_store(name).commitments.list()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreError, match="set AWS_ACCESS_KEY_ID"):
        open_store(name).commitments.exists("a")
    monkeypatch.setenv("AWS_PROFILE", "absent")
    with pytest.raises(StoreError, match="AWS_PROFILE"):
        open_store(name).commitments.create("a", b"")


def test_an_unreachable_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    store = open_store("s3://bucket/p?endpoint_url=http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9.*check that the server runs") as caught:
        store.commitments.read("a")
    assert not isinstance(caught.value, NotFound)


# No real server can be told to fail at a chosen moment, so these tests script the answers over real HTTP.


class Script(http.server.BaseHTTPRequestHandler):
    """Answers PUT with the next status of the list; HEAD gives the metadata of the first PUT if ``ours``."""

    protocol_version = "HTTP/1.1"  # boto3 waits for "100 Continue"
    statuses: list[int]
    writers: list[str]
    ours: bool

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).writers.append(self.headers["x-amz-meta-vt-writer"])
        self.send_response(type(self).statuses.pop(0))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.send_response(200)
        writer = type(self).writers[0] if type(self).ours else "somebody-else"
        self.send_header("x-amz-meta-vt-writer", writer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Script], S3Commitments]]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the tries
    handler = type("ThisScript", (Script,), {"statuses": [], "writers": [], "ours": True})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield handler, S3Commitments("bucket", "p", f"http://127.0.0.1:{server.server_address[1]}", None)
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_conflict_is_tried_again(scripted: tuple[type[Script], S3Commitments]) -> None:
    handler, commitments = scripted
    handler.statuses = [409, 409, 200]
    commitments.create("a", b"x")
    assert len(handler.writers) == 3


def test_a_lasting_conflict_is_an_error(scripted: tuple[type[Script], S3Commitments]) -> None:
    handler, commitments = scripted
    handler.statuses = [409] * 20
    with pytest.raises(StoreError, match="409") as caught:
        commitments.create("a", b"x")
    assert not isinstance(caught.value, AlreadyExists)


def test_a_retry_after_a_lost_answer_recognises_its_own_object(
    scripted: tuple[type[Script], S3Commitments],
) -> None:
    """The first PUT was stored but answered 500; the automatic retry meets 412 from its own object."""
    handler, commitments = scripted
    handler.statuses = [500, 412]
    commitments.create("a", b"x")
    assert handler.writers[0] == handler.writers[1]


def test_a_retry_that_meets_another_writer_has_lost(scripted: tuple[type[Script], S3Commitments]) -> None:
    handler, commitments = scripted
    handler.statuses, handler.ours = [500, 412], False
    with pytest.raises(AlreadyExists):
        commitments.create("a", b"x")
