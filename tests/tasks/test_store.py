"""The contract of a commitment store, on a local directory and on a real S3 server alike."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.store import Store, open_store
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, StoreError


@pytest.fixture(params=["local", "s3"])
def make_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Return a function that gives the URL of a new store below a name."""
    if request.param == "local":
        (tmp_path / "stores").mkdir()
        return lambda name: (tmp_path / "stores" / name).as_uri()
    seaweed = request.getfixturevalue("s3_env")
    run = uuid.uuid4().hex
    return lambda name: f"s3://{seaweed.bucket}/runs/{run}/{name}"


@pytest.fixture
def store(make_url: Callable[[str], str]) -> Store:
    return open_store(make_url("one"), create=True)


def test_what_was_created_is_read(store: Store) -> None:
    data = bytes(range(256)) * 100
    store.commitments.create("run/segments/000001.json", data)
    store.commitments.create("run/empty", b"")
    assert store.commitments.read("run/segments/000001.json") == data
    assert store.commitments.read("run/empty") == b""
    assert store.commitments.exists("run/empty")
    assert not store.commitments.exists("run/empt")
    assert not store.commitments.exists("run/segments")
    assert store.commitments.hash("run/segments/000001.json", "sha256") == hashlib.sha256(data).hexdigest()


def test_a_commitment_is_never_overwritten(store: Store) -> None:
    store.commitments.create("seal.json", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(AlreadyExists, match=r"seal\.json exists already"):
            store.commitments.create("seal.json", data)
    assert store.commitments.read("seal.json") == b"first"
    assert store.commitments.list() == ["seal.json"]


def test_missing_objects_are_not_found(store: Store) -> None:
    store.commitments.create("a/b", b"x")
    for name in ("c", "a", "a/b/c", "a/c", "a/bb"):
        with pytest.raises(NotFound, match="there is no"):
            store.commitments.read(name)
        with pytest.raises(NotFound):
            store.commitments.hash(name, "md5")
        assert not store.commitments.exists(name)


def test_the_size_limit_is_exact(store: Store) -> None:
    store.commitments.create("big", b"x" * 1000)
    assert len(store.commitments.read("big", max_bytes=1000)) == 1000
    with pytest.raises(EvidenceError, match="more than 999 bytes") as caught:
        store.commitments.read("big", max_bytes=999)
    assert caught.value.reason == "evidence_malformed"


def test_list_is_sorted_and_takes_any_string_as_prefix(store: Store) -> None:
    names = ["a/2", "a/10", "a/1", "ab", "b/c/d", "Z", "a-b"]
    for name in names:
        store.commitments.create(name, name.encode())
    assert store.commitments.list() == sorted(names)
    assert store.commitments.list("a/") == ["a/1", "a/10", "a/2"]
    assert store.commitments.list("a/1") == ["a/1", "a/10"]
    assert store.commitments.list("a") == ["a-b", "a/1", "a/10", "a/2", "ab"]
    assert store.commitments.list("b/c/") == ["b/c/d"]
    assert store.commitments.list("nothing/here/") == []


def test_stores_with_a_common_prefix_do_not_mix(make_url: Callable[[str], str]) -> None:
    one, other = open_store(make_url("s"), create=True), open_store(make_url("s2"), create=True)
    one.commitments.create("x", b"1")
    other.commitments.create("y", b"2")
    assert one.commitments.list() == ["x"]
    assert other.commitments.list() == ["y"]


BAD_NAMES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a//b",
    "a/",
    ".hidden",
    "a/.b",
    "a b",
    "a\\b",
]
BAD_NAMES += ["ä", "a\n", "a\0", "a?b", "a%2fb", "x" * 201, "/".join(["x" * 100] * 8)]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_the_store_are_refused(store: Store, name: str) -> None:
    for attempt in (
        lambda: store.commitments.create(name, b"x"),
        lambda: store.commitments.read(name),
        lambda: store.commitments.exists(name),
        lambda: store.commitments.hash(name, "md5"),
    ):
        with pytest.raises(StoreError, match="cannot name an object"):
            attempt()
    if name and not name.endswith("/"):
        with pytest.raises(StoreError, match="cannot name an object"):
            store.commitments.list(name)


def test_sixteen_writers_one_winner(store: Store) -> None:
    start = threading.Barrier(16)
    won: list[bytes] = []
    lost: list[AlreadyExists] = []

    def write(number: int) -> None:
        data = f"writer {number:02} ".encode() * 5000
        start.wait()
        try:
            store.commitments.create("race/seal.json", data)
            won.append(data)
        except AlreadyExists as error:
            lost.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 15)
    assert store.commitments.read("race/seal.json") == won[0]
    assert store.commitments.list("race/") == ["race/seal.json"]


def test_urls_name_the_store_and_the_artifacts_lie_beside_the_commitments(
    make_url: Callable[[str], str],
) -> None:
    url = make_url("named")
    store = open_store(url)
    assert store.url == url
    assert store.commitments.url == f"{url}/commitments"
    assert store.dvc_remote().url == url.removeprefix("file://") + "/artifacts"
    store.dvc_remote().objects().create("files/md5/ab/cd.dir", b"[]")
    assert store.dvc_remote().objects().hash("files/md5/ab/cd.dir", "md5") == hashlib.md5(b"[]").hexdigest()
