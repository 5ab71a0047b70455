"""Artifacts through DVC, on a local store and on a real S3 server: round trips, damage, kills and attacks."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tasks.artifacts import ArtifactStore, Pointer
from tasks.dvc_objects import object_name
from tasks.dvc_process import DvcProcess
from tasks.store import DvcRemote, open_store
from vt_core.errors import EvidenceError, StoreError

FILES = {"model.safetensors": b"m" * 50_000, "log.bin": b"l" * 777, "metrics.json": b"{}"}


class Place:
    """A store, and the power to damage the objects in it as whoever keeps the storage could."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.remote = open_store(url, create=True).dvc_remote()

    def overwrite(self, md5: str, data: bytes | None) -> None:
        """Replace the object ``md5`` by other bytes, or delete it."""
        if self.kind == "local":
            path = Path(self.remote.url) / object_name(md5)
            if path.exists():
                path.chmod(0o644)
                path.unlink()
            if data is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            return
        bucket, _, prefix = self.remote.url.removeprefix("s3://").partition("/")
        client: Any = boto3.client("s3")
        key = f"{prefix}/{object_name(md5)}"
        if data is None:
            client.delete_object(Bucket=bucket, Key=key)
        else:
            client.put_object(Bucket=bucket, Key=key, Body=data)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "local":
        return Place("local", str(tmp_path / "store"))
    seaweed = request.getfixturevalue("s3_env")
    monkeypatch.delenv("AWS_DEFAULT_REGION")  # most S3 servers know no regions, and users set none
    return Place("s3", f"s3://{seaweed.bucket}/artifacts-tests/{uuid.uuid4().hex}")


Opener = Callable[[str], ArtifactStore]


@pytest.fixture(scope="module")
def children() -> Iterator[dict[str, DvcProcess]]:
    """One DVC child for each kind of store; it keeps the environment of the test that starts it."""
    with DvcProcess() as local, DvcProcess() as s3:
        yield {"local": local, "s3": s3}


@pytest.fixture
def workspace(place: Place, tmp_path: Path, children: dict[str, DvcProcess]) -> Opener:
    """Return a function that makes an initialised workspace of a given name."""

    def open_one(name: str) -> ArtifactStore:
        store = ArtifactStore(tmp_path / name, place.remote, children[place.kind])
        store.init()
        return store

    return open_one


def fill(directory: Path, files: dict[str, bytes] = FILES) -> Path:
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def content(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def md5_of(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_several_directories_come_back_in_one_pull(workspace: Opener, tmp_path: Path) -> None:
    trainer = workspace("trainer")
    pointers = {}
    for n in range(3):
        files = {**FILES, "own": b"%d" % n}
        pointer = trainer.publish(fill(tmp_path / "trainer" / "segments" / f"{n:06}", files))
        assert (pointer.nfiles, pointer.size) == (4, sum(map(len, files.values())))
        pointers[f"in/{n:06}"] = Pointer.from_json(json.loads(json.dumps(pointer.to_json())))
    auditor = workspace("auditor")
    auditor.fetch(pointers)
    for n in range(3):
        assert content(tmp_path / "auditor" / "in" / f"{n:06}") == {**FILES, "own": b"%d" % n}
    # What lies in the place is replaced, be it changed files or the directory of another segment.
    (tmp_path / "auditor" / "in" / "000000" / "log.bin").write_bytes(b"changed")
    auditor.fetch({"000000": pointers["in/000000"], "000001": pointers["in/000002"]}, tmp_path / "auditor" / "in")
    assert content(tmp_path / "auditor" / "in" / "000000") == {**FILES, "own": b"0"}
    assert content(tmp_path / "auditor" / "in" / "000001") == {**FILES, "own": b"2"}


def test_publishing_again_is_harmless_and_a_change_gives_another_pointer(workspace: Opener, tmp_path: Path) -> None:
    trainer = workspace("trainer")
    directory = fill(tmp_path / "trainer" / "segment")
    first = trainer.publish(directory)
    assert trainer.publish(directory) == first
    (directory / "log.bin").write_bytes(b"other")
    assert trainer.publish(directory) != first


DAMAGE: dict[str, tuple[Callable[[Place, Pointer], None], str]] = {
    "listing-missing": (lambda place, pointer: place.overwrite(pointer.md5, None), "artifact_missing"),
    "listing-corrupt": (lambda place, pointer: place.overwrite(pointer.md5, b"[]"), "artifact_corrupt"),
    "listing-truncated": (lambda place, pointer: place.overwrite(pointer.md5, b""), "artifact_corrupt"),
    "file-missing": (lambda place, _: place.overwrite(md5_of(FILES["log.bin"]), None), "artifact_missing"),
    "file-corrupt": (lambda place, _: place.overwrite(md5_of(FILES["log.bin"]), b"l" * 776 + b"x"), "artifact_corrupt"),
    "file-truncated": (lambda place, _: place.overwrite(md5_of(FILES["log.bin"]), b""), "artifact_corrupt"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_leaves_no_file_that_looks_right(
    place: Place, workspace: Opener, tmp_path: Path, name: str
) -> None:
    pointer = workspace("trainer").publish(fill(tmp_path / "trainer" / "segment"))
    damage, reason = DAMAGE[name]
    damage(place, pointer)
    auditor = workspace("auditor")
    with pytest.raises(EvidenceError, match=r"in/segment") as caught:
        auditor.fetch({"in/segment": pointer})
    assert caught.value.reason == reason
    if name.startswith("file"):
        assert caught.value.place["file"] == "log.bin"
    assert not (tmp_path / "auditor" / "in" / "segment" / "log.bin").exists()


def test_a_fetch_works_after_the_missing_object_has_come(place: Place, workspace: Opener, tmp_path: Path) -> None:
    """The same DVC child saw the object missing before: no stale listing may be used."""
    pointer = workspace("trainer").publish(fill(tmp_path / "trainer" / "segment"))
    place.overwrite(md5_of(FILES["log.bin"]), None)
    auditor = workspace("auditor")
    with pytest.raises(EvidenceError):
        auditor.fetch({"segment": pointer})
    place.overwrite(md5_of(FILES["log.bin"]), FILES["log.bin"])
    auditor.fetch({"segment": pointer})
    assert content(tmp_path / "auditor" / "segment") == FILES


def test_a_publish_that_dvc_skipped_is_an_error(place: Place, workspace: Opener, tmp_path: Path) -> None:
    """DVC takes a remote with the listing for complete; a file deleted there must not go unnoticed."""
    trainer = workspace("trainer")
    directory = fill(tmp_path / "trainer" / "segment")
    trainer.publish(directory)
    place.overwrite(md5_of(FILES["log.bin"]), None)
    try:
        trainer.publish(directory)
    except StoreError as error:
        assert "log.bin is missing" in str(error)
    else:
        assert place.remote.objects().exists(object_name(md5_of(FILES["log.bin"])))


def plant_listing(place: Place, entries: list[dict[str, str]]) -> Pointer:
    """Put a listing of the attacker's choice into the store, with right MD5s throughout."""
    data = json.dumps(entries, sort_keys=True).encode()
    place.overwrite(md5_of(b"evil"), b"evil")
    place.overwrite(f"{md5_of(data)}.dir", data)
    return Pointer(f"{md5_of(data)}.dir", 8, len(entries), "segment")


@pytest.mark.parametrize("path", ["../../escaped", "../.dvc/config", "/{outside}", "x/../../../escaped"])
def test_a_listing_cannot_write_outside_its_directory(
    place: Place, workspace: Opener, tmp_path: Path, path: str
) -> None:
    """DVC itself obeys such a listing; see ``test_dvc_obeys_a_listing_that_leaves_the_workspace``."""
    path = path.format(outside=(tmp_path / "escaped").as_posix().lstrip("/"))
    good = {"md5": md5_of(b"evil"), "relpath": "harmless"}
    pointer = plant_listing(place, [good, {"md5": md5_of(b"evil"), "relpath": path}])
    auditor = workspace("auditor")
    before = (tmp_path / "auditor" / ".dvc" / "config").read_bytes()
    with pytest.raises(EvidenceError) as caught:
        auditor.fetch({"segment": pointer})
    assert caught.value.reason == "evidence_malformed"
    assert not list(tmp_path.rglob("escaped"))
    assert (tmp_path / "auditor" / ".dvc" / "config").read_bytes() == before


def test_dvc_obeys_a_listing_that_leaves_the_workspace(tmp_path: Path) -> None:
    """Why listings are checked here. If this fails, DVC has learned to refuse them, and this test can go."""
    place = Place("local", str(tmp_path / "store"))
    pointer = plant_listing(place, [{"md5": md5_of(b"evil"), "relpath": "../../escaped"}])
    with ArtifactStore(tmp_path / "victim", place.remote) as victim:
        victim.init()
        victim._write_pointer("segment", pointer)
        victim._dvc.run(["pull", "segment.dvc"], tmp_path / "victim")
    assert (tmp_path / "escaped").read_bytes() == b"evil"


def test_dvc_pulls_the_listing_that_was_checked(place: Place, workspace: Opener, tmp_path: Path) -> None:
    """Between our check and DVC's pull the storage's keeper takes the listing away, or swaps it: no effect."""
    pointer = workspace("trainer").publish(fill(tmp_path / "trainer" / "segment"))
    auditor = workspace("auditor")
    honest_read = auditor._objects.read

    def read_then_swap(name: str, max_bytes: int) -> bytes:
        data = honest_read(name, max_bytes)
        place.overwrite(pointer.md5, None)
        return data

    auditor._objects.read = read_then_swap  # type: ignore[method-assign]
    auditor.fetch({"segment": pointer})
    assert content(tmp_path / "auditor" / "segment") == FILES
    assert not place.remote.objects().exists(object_name(pointer.md5))


def test_an_unreachable_store_is_not_a_finding(workspace: Opener, place: Place, tmp_path: Path) -> None:
    pointer = workspace("trainer").publish(fill(tmp_path / "trainer" / "segment"))
    if place.kind == "local":
        (tmp_path / "store").rename(tmp_path / "unplugged")
        lost = place.remote
    else:
        lost = DvcRemote(place.remote.url.replace("s3://vt-", "s3://no-"), place.remote.options)
    with ArtifactStore(tmp_path / "auditor", lost) as auditor:
        auditor.init()
        with pytest.raises(StoreError, match="cannot read"):
            auditor.fetch({"segment": pointer})


def test_dvcs_own_failure_carries_its_message(tmp_path: Path) -> None:
    place = Place("local", str(tmp_path / "store"))
    with ArtifactStore(tmp_path / "ws", place.remote) as store:
        directory = fill(tmp_path / "ws" / "segment")
        with pytest.raises(StoreError, match="not inside of a DVC repository"):
            store.publish(directory)  # init was forgotten


BAD_PATHS = ["../x", "/x", "a/../b", "-x", ".hidden/x", "a b", ".dvc", "", "a//b", "a\n"]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_fetch_refuses_paths_outside_the_workspace(tmp_path: Path, path: str) -> None:
    place = Place("local", str(tmp_path / "store"))
    with ArtifactStore(tmp_path / "ws", place.remote) as store, pytest.raises(StoreError):
        store.fetch({path: Pointer("0" * 32 + ".dir", 1, 1, "x")})


def test_publish_refuses_what_is_not_a_directory_of_the_workspace(tmp_path: Path) -> None:
    place = Place("local", str(tmp_path / "store"))
    fill(tmp_path / "outside")
    fill(tmp_path / "ws" / "-x")
    (tmp_path / "ws" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "ws" / "file").write_bytes(b"")
    with ArtifactStore(tmp_path / "ws", place.remote) as store:
        for name in ("../outside", "link", "file", "absent", "-x", "."):
            with pytest.raises(StoreError, match="cannot"):
                store.publish(tmp_path / "ws" / name)


@pytest.mark.parametrize("files", [{}, {"with space": b"x"}, {".hidden": b"x"}])
def test_publish_refuses_what_fetch_would_refuse(tmp_path: Path, files: dict[str, bytes]) -> None:
    place = Place("local", str(tmp_path / "store"))
    with ArtifactStore(tmp_path / "ws", place.remote) as store:
        store.init()
        with pytest.raises(StoreError, match="cannot publish"):
            store.publish(fill(tmp_path / "ws" / "segment", files))


def test_unusual_paths_work(tmp_path: Path) -> None:
    """DVC writes no path that is not ASCII into its configuration, and loses the file when asked to."""
    place = Place("local", str(tmp_path / "störe #1 $HOME ~"))
    for workspace in ("wörk spaces", "a,b'c"):
        with ArtifactStore(tmp_path / workspace, place.remote) as store:
            store.init()
            pointer = store.publish(fill(tmp_path / workspace / "segment"))
            store.fetch({"copy": pointer})
        assert content(tmp_path / workspace / "copy") == FILES


def test_init_again_changes_the_remote_and_keeps_the_cache(tmp_path: Path) -> None:
    first, second = (Place("local", str(tmp_path / name)) for name in ("first", "second"))
    with ArtifactStore(tmp_path / "ws", first.remote) as store:
        store.init()
        pointer = store.publish(fill(tmp_path / "ws" / "segment"))
    with ArtifactStore(tmp_path / "ws", second.remote) as store:
        store.init()
        store.init()
        assert store.publish(tmp_path / "ws" / "segment") == pointer
        assert (tmp_path / "ws" / ".dvc" / "cache" / object_name(pointer.md5)).exists()
    assert second.remote.objects().exists(object_name(pointer.md5))
    assert sorted(p.name for p in (tmp_path / "ws").iterdir()) == [".dvc", "segment", "segment.dvc"]


WORKER = """
import sys
from pathlib import Path
from tasks.artifacts import ArtifactStore
from tasks.store import open_store
store = ArtifactStore(Path(sys.argv[1]), open_store(sys.argv[2], create=True).dvc_remote())
print("ready", flush=True)
store.init()
print("initialised", flush=True)
store.publish(Path(sys.argv[1]) / "segment")
print("published", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ready", "initialised"])
def test_a_kill_at_any_moment_can_be_repaired_by_running_again(tmp_path: Path, stage: str) -> None:
    workspace, url = tmp_path / "ws", str(tmp_path / "store")
    fill(workspace / "segment", {f"f{n}": os.urandom(200_000) for n in range(20)})
    expected = content(workspace / "segment")
    for delay in (0.0, 0.15, 0.4):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(workspace), url], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        while worker.stdout.readline().strip() != stage:
            assert worker.poll() is None
        time.sleep(delay)
        worker.kill()
        worker.wait()
        worker.stdout.close()
        time.sleep(1.2)  # the DVC child ends a second after its parent
    with ArtifactStore(workspace, open_store(url, create=True).dvc_remote()) as store:
        store.init()
        pointer = store.publish(workspace / "segment")
        shutil.rmtree(workspace / ".dvc" / "cache")
        store.fetch({"copy": pointer})
    assert content(workspace / "copy") == expected


def test_a_busy_workspace_is_waited_for(tmp_path: Path) -> None:
    """DVC gives up on its repository lock after 3 s, unless it is told to wait."""
    place = Place("local", str(tmp_path / "store"))
    with ArtifactStore(tmp_path / "ws", place.remote) as store:
        store.init()
        directory = fill(tmp_path / "ws" / "segment")
        with (tmp_path / "ws" / ".dvc" / "tmp" / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            threading.Timer(5, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
            started = time.monotonic()
            pointer = store.publish(directory)
            assert time.monotonic() - started > 4, "the lock was not in the way: the test proved nothing"
    assert place.remote.objects().exists(object_name(pointer.md5))


def test_two_processes_share_a_workspace(tmp_path: Path) -> None:
    place = Place("local", str(tmp_path / "store"))
    with ArtifactStore(tmp_path / "ws", place.remote) as store:
        store.init()
    script = (
        "import sys; from pathlib import Path; from tasks.artifacts import ArtifactStore;"
        "from tasks.store import open_store; ws = Path(sys.argv[1]);"
        "store = ArtifactStore(ws, open_store(sys.argv[2]).dvc_remote());"
        "[store.publish(ws / sys.argv[3] / str(n)) for n in range(2)]; store.close()"
    )
    for who in ("a", "b"):
        for n in range(2):
            fill(tmp_path / "ws" / who / str(n), {"own": f"{who}{n}".encode()})
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "ws"), str(tmp_path / "store"), who], stderr=subprocess.PIPE
        )
        for who in ("a", "b")
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors.decode()
    for who in ("a", "b"):
        for n in range(2):
            assert place.remote.objects().exists(object_name(md5_of(f"{who}{n}".encode())))
