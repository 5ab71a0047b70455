"""Local stores: paths, permissions, and a writer that is killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.store import open_store
from vt_core.errors import NotFound, StoreError

WRITER = """
import sys
from tasks.store import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    store.commitments.create(f"objects/{number:06}", b"%06d" % number * 100_000)
    number += 1
"""


def test_a_killed_writer_leaves_whole_objects_or_none(tmp_path: Path) -> None:
    """Kill at three different moments; the objects are 600 kB, so a kill mostly lands in a write."""
    store = open_store(str(tmp_path / "store"), create=True)
    seen = 0
    for delay in (0.05, 0.11, 0.23):
        url = str(tmp_path / "store" / f"run-{delay}")
        process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        written = open_store(url).commitments
        names = written.list()
        for number, name in enumerate(names):
            assert name == f"objects/{number:06}"
            assert written.read(name) == b"%06d" % number * 100_000
        seen += len(names)
        # The next writer is not blocked by what was left behind.
        written.create(f"objects/{len(names):06}", b"next")
    assert seen > 0, "no object was ever written: the test proved nothing"
    assert store.commitments.list() == []


def test_a_leftover_of_a_killed_writer_is_not_an_object(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.commitments.create("a", b"x")
    (tmp_path / "commitments" / ".0123.tmp").write_bytes(b"half")
    assert store.commitments.list() == ["a"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))

    def full_disk(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    (tmp_path / "commitments").mkdir()
    with pytest.raises(StoreError, match="No space left on device"):
        store.commitments.create("a", b"x")
    assert list((tmp_path / "commitments").iterdir()) == []


def test_a_missing_store_is_not_an_empty_store(tmp_path: Path) -> None:
    """A mistyped path must be an error of the caller, never 'this evidence has no segments'."""
    commitments = open_store(str(tmp_path / "typo")).commitments
    for attempt in (
        commitments.list,
        lambda: commitments.read("a"),
        lambda: commitments.exists("a"),
    ):
        with pytest.raises(StoreError, match=r"there is no store at .*typo") as caught:
            attempt()
        assert not isinstance(caught.value, NotFound)
    open_store(str(tmp_path / "typo"), create=True)
    assert commitments.list() == []
    assert not commitments.exists("a")


@pytest.mark.parametrize("name", ["with space", "größe", "100%", "a#b?c", "plus+and&"])
def test_file_urls_are_percent_decoded(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    by_url, by_path = open_store(path.as_uri(), create=True), open_store(str(path))
    by_url.commitments.create("x", b"data")
    assert path.is_dir()
    assert by_path.commitments.read("x") == b"data"
    assert by_path.url == by_url.url == path.as_uri()


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("evidence", create=True)
    monkeypatch.chdir("/")
    store.commitments.create("x", b"data")
    assert (tmp_path / "evidence" / "commitments" / "x").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("file://host/path", "three slashes"),
        ("file:///a?b=c", "%3F"),
        ("file:///a%ff", "not valid UTF-8"),
        ("file:///a%00b", "absolute path"),
        ("gs://bucket", "not supported"),
        ("http://host/x", "not supported"),
    ],
)
def test_unusable_urls(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        open_store(url)


def test_links_do_not_lead_out_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    store = open_store(str(tmp_path / "store"), create=True)
    store.commitments.create("a", b"x")
    (tmp_path / "store" / "commitments" / "file").symlink_to(tmp_path / "secret")
    (tmp_path / "store" / "commitments" / "folder").symlink_to(tmp_path)
    for name in ("file", "folder/secret"):
        with pytest.raises(StoreError, match=r"link|inside the store"):
            store.commitments.read(name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_permissions_are_reported(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    store.commitments.create("a", b"x")
    directory = tmp_path / "store" / "commitments"
    directory.chmod(0o000)
    try:
        for attempt in (lambda: store.commitments.read("a"), lambda: store.commitments.create("b", b"x")):
            with pytest.raises(StoreError, match=r"Permission denied; check .* permissions"):
                attempt()
        with pytest.raises(StoreError, match="Permission denied"):
            store.commitments.list()
    finally:
        directory.chmod(0o755)


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot make the store's directory"):
        open_store(str(tmp_path / "store"), create=True)
    store = open_store(str(tmp_path))
    store.commitments.create("a", b"x")
    with pytest.raises(StoreError, match="cannot store a/b"):
        store.commitments.create("a/b", b"x")
