"""A store in which somebody has put whatever a file system or a bucket can hold."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.records import judge, make_run

from flows.cli.show import run_summary, runs_summary
from tasks.artifacts import ArtifactStore
from tasks.coverage import coverage
from tasks.dvc_objects import Pointer, check_sizes
from tasks.runs import MAX_RUN_BYTES, RunStore, list_runs
from tasks.store import MAX_COMMITMENT_BYTES, CommitmentStore, Store, open_store
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, StoreError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes

TERABYTES = 10 << 40


def sparse(path: Path, size: int = TERABYTES) -> None:
    """Make a file that claims ``size`` bytes and takes none; as large as this file system lets it be."""
    while True:
        try:
            with path.open("wb") as file:
                file.truncate(size)
            return
        except OSError:
            size //= 2


def _socket(path: Path) -> None:
    place = Path("/tmp") / f"vt-fuzz-{os.getpid()}"  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
    place.rename(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


ODD: dict[str, Callable[[Path], Any]] = {
    "pipe": lambda p: os.mkfifo(p),
    "link-to-a-file": lambda p: p.symlink_to("/etc/passwd"),
    "link-to-a-device": lambda p: p.symlink_to("/dev/zero"),
    "link-to-nothing": lambda p: p.symlink_to("/nowhere"),
    "link-to-itself": _loop,
    "directory": lambda p: p.mkdir(),
    "socket": _socket,
    "sparse-file": sparse,
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


@pytest.mark.parametrize("how", ODD)
@pytest.mark.timeout(30)
def test_odd_thing_in_the_place_of_an_object(how: str, store: Store, tmp_path: Path) -> None:
    """Every operation ends at once, with an error that has a type, and gives nothing from outside the store."""
    run = make_run(store, "run", 3)
    place = tmp_path / "store" / "commitments" / "runs" / "run" / "segments" / "00001.json"
    place.unlink()
    ODD[how](place)
    name = "runs/run/segments/00001.json"
    for attempt in (
        lambda: store.commitments.read(name), run.commitments, lambda: run_summary(store, "run"),
    ):  # fmt: skip
        try:
            found = attempt()
        except (StoreError, EvidenceError):
            continue
        assert how == "directory", found  # then it is no object, and the run ends before it
    if how != "sparse-file":
        with pytest.raises(StoreError):
            store.commitments.size(name)
    with pytest.raises((StoreError, AlreadyExists)):
        store.commitments.create(name, b"x")
    assert [c.run_id for c in coverage(store)] == ["run"]


@pytest.mark.parametrize("how", ODD)
@pytest.mark.timeout(30)
def test_odd_thing_among_the_verdicts_hides_no_run(how: str, store: Store, tmp_path: Path) -> None:
    make_run(store, "a", 2)
    run = make_run(store, "b", 2, sealed=False)
    judge(run, "rejected", [0])
    ODD[how](tmp_path / "store" / "verdicts" / "runs" / "b" / "20990101T000000Z-0123456789abcdef.json")
    assert [(c.run_id, c.verdict) for c in coverage(store)] == [("a", None), ("b", "rejected")]
    assert [row["run_id"] for row in runs_summary(store)["runs"]] == ["a", "b"]


ODD_NAMES = [
    "a b", "new\nline", "\x1b[2J", "größe", b"\xff\xfe".decode("utf-8", "surrogateescape"), "..x", "-", "x" * 250,
    "a%2f", "\u202egnp", "con:", "a\\b",
]  # fmt: skip


def test_names_that_no_object_has_are_left_out(store: Store, tmp_path: Path) -> None:
    """One such name must not stop anybody from listing runs, and none reaches a message or the terminal."""
    run = make_run(store, "run", 3)
    before = store.commitments.list(), store.verdicts.list()
    for part in ("commitments", "verdicts"):
        for name in ODD_NAMES:
            folder = tmp_path / "store" / part / "runs"
            (folder / "run").mkdir(parents=True, exist_ok=True)
            (folder / "run" / name).write_bytes(b"x")
            (folder / f"{name[:200]}-").mkdir()
            (folder / f"{name[:200]}-" / "spec.json").write_bytes(b"x")
    kept = {"runs/run/-", "runs/--/spec.json"}  # a dash alone is a name; no run is called so
    assert set(store.commitments.list()) - set(before[0]) == kept
    assert list_runs(store) == ["run"] == [c.run_id for c in coverage(store)]
    assert len(run.commitments().segments) == 3
    assert run_summary(store, "run")["problem"] is None


def test_deep_folders_are_listed_without_recursion(store: Store, tmp_path: Path) -> None:
    """Names have at most 700 characters, so what lies 2000 folders down has none."""
    make_run(store, "run", 2)
    here = os.open(tmp_path / "store" / "commitments" / "runs", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        assert list_runs(store) == ["run"]
    finally:
        _remove_deep(tmp_path / "store" / "commitments" / "runs" / "d")


def _remove_deep(path: Path) -> None:
    """Remove a chain of folders that is longer than a path may be: move the rest up, one after the other."""
    while (path / "d").exists():
        (path / "d").rename(path.with_name("e"))
        path.rmdir()
        path.with_name("e").rename(path)
    path.rmdir()


def test_records_that_fit_one_by_one_but_not_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.runs.MAX_RUN_BYTES", 40_000)
    for index in range(40):
        store.commitments.create(f"runs/run/segments/{index:05d}.json", b"x" * 2000)
    with pytest.raises(EvidenceError, match="more than 40000 bytes") as caught:
        RunStore(store, "run").commitments()
    assert caught.value.reason == "evidence_malformed" and MAX_RUN_BYTES >= MAX_COMMITMENT_BYTES


# Artifacts


def put(objects: Path, data: bytes) -> str:
    md5 = hashlib.md5(data).hexdigest()
    (objects / md5[:2]).mkdir(parents=True, exist_ok=True)
    (objects / md5[:2] / md5[2:]).write_bytes(data)
    return md5


@pytest.fixture
def artifact(store: Store, tmp_path: Path) -> tuple[Pointer, Path]:
    """A pointer to two files in the remote, and where the second of them lies."""
    objects = Path(store.dvc_remote().url) / "files" / "md5"
    md5s = [put(objects, b"first"), put(objects, b"second one")]
    listing = json.dumps([{"md5": md5s[0], "relpath": "a"}, {"md5": md5s[1], "relpath": "b"}]).encode()
    md5 = hashlib.md5(listing).hexdigest()
    (objects / md5[:2]).mkdir(exist_ok=True)
    (objects / md5[:2] / f"{md5[2:]}.dir").write_bytes(listing)
    return Pointer(f"{md5}.dir", 15, 2, "x"), objects / md5s[1][:2] / md5s[1][2:]


def fetch(store: Store, workspace: Path, pointer: Pointer) -> None:
    with ArtifactStore(workspace, store.dvc_remote()) as artifacts:
        workspace.mkdir()
        artifacts.fetch({"x": pointer})


@pytest.mark.parametrize("how", ODD)
@pytest.mark.timeout(60)
def test_odd_thing_in_the_place_of_an_artifact_is_not_fetched(
    how: str, store: Store, artifact: tuple[Pointer, Path], tmp_path: Path
) -> None:
    """DVC would wait for the pipe for ever, and copy the ten terabytes: it is not even started."""
    pointer, place = artifact
    place.unlink()
    ODD[how](place)
    with pytest.raises((EvidenceError, StoreError)) as caught:
        fetch(store, tmp_path / "work", pointer)
    assert "dvc" not in str(caught.value)
    if how in ("sparse-file", "directory"):
        assert isinstance(caught.value, EvidenceError)
        assert caught.value.reason == {"sparse-file": "artifact_corrupt", "directory": "artifact_missing"}[how]


def test_sizes_are_those_of_the_pointer(store: Store, artifact: tuple[Pointer, Path]) -> None:
    pointer, place = artifact
    objects = store.dvc_remote().objects()
    files = {"a": hashlib.md5(b"first").hexdigest(), "b": hashlib.md5(b"second one").hexdigest()}
    assert check_sizes(files, pointer, objects, "x", whole=True) == 15
    assert check_sizes({"a": files["a"]}, pointer, objects, "x", whole=False) == 5
    for size in (14, 16):
        with pytest.raises(EvidenceError, match="have 15 bytes, the evidence says"):
            check_sizes(files, Pointer(pointer.md5, size, 2, "x"), objects, "x", whole=True)
    with pytest.raises(EvidenceError):
        check_sizes(files, Pointer(pointer.md5, 14, 2, "x"), objects, "x", whole=False)
    with pytest.raises(EvidenceError, match=r"a in .* has 5 bytes, the evidence says 0"):
        check_sizes(files, Pointer(pointer.md5, 0, 2, "x"), objects, "x", whole=True)
    place.unlink()
    with pytest.raises(EvidenceError, match="is not in"):
        check_sizes(files, pointer, objects, "x", whole=True)


def test_artifacts_that_the_disk_cannot_hold(store: Store, tmp_path: Path) -> None:
    """A trainer may commit to any size. What the disk has no room for is an error of this side, before DVC starts."""
    objects = Path(store.dvc_remote().url) / "files" / "md5"
    (objects / "0a").mkdir(parents=True)
    place = objects / "0a" / ("b" * 30)
    sparse(place)
    size = place.stat().st_size
    if 2 * size < shutil.disk_usage(tmp_path).free:
        pytest.skip("this disk has room for the largest file that it allows")
    listing = json.dumps([{"md5": "0a" + "b" * 30, "relpath": "a"}]).encode()
    md5 = hashlib.md5(listing).hexdigest()
    (objects / md5[:2]).mkdir(exist_ok=True)
    (objects / md5[:2] / f"{md5[2:]}.dir").write_bytes(listing)
    with pytest.raises(StoreError, match="bytes are free there"):
        fetch(store, tmp_path / "work", Pointer(f"{md5}.dir", size, 1, "x"))


# The same in a bucket


def test_keys_that_no_object_has(s3_env: Any) -> None:
    import boto3

    url = s3_env.url(f"hostile-{os.getpid()}")
    store = open_store(url)
    run = make_run(store, "run", 2, sealed=False)
    judge(run, "rejected", [0])
    client = boto3.client("s3", endpoint_url=s3_env.endpoint)
    prefix = url.removeprefix("s3://").partition("/")[2].partition("?")[0]
    for name in ("a b", "größe", "quote\"'", "amp&lt;", "\u202egnp", "tab\there", "x" * 220):
        for part in ("commitments", "verdicts"):
            for key in (f"{prefix}/{part}/runs/run/{name}", f"{prefix}/{part}/runs/{name}/spec.json"):
                client.put_object(Bucket=s3_env.bucket, Key=key, Body=b"x")
    assert list_runs(store) == ["run"]
    assert [(c.run_id, c.verdict) for c in coverage(store)] == [("run", "rejected")]
    assert run_summary(store, "run")["problem"] is None


def test_objects_are_measured_before_they_are_read(s3_env: Any) -> None:
    store = open_store(s3_env.url(f"sizes-{os.getpid()}"))
    store.commitments.create("a", b"x" * 1000)
    store.commitments.create("ab", b"y")
    objects: CommitmentStore = store.commitments
    assert (objects.size("a"), objects.size("ab")) == (1000, 1)
    with pytest.raises(NotFound):
        objects.size("missing")
    with pytest.raises(EvidenceError, match="more than 999 bytes"):
        objects.read("a", max_bytes=999)


def test_a_record_of_the_largest_size_is_still_an_answer(store: Store) -> None:
    """64 MiB of brackets: refused by counting them, long before a parser makes objects of them."""
    run = make_run(store, "run", 2, sealed=False)
    data = b"[" + b"[]," * ((MAX_COMMITMENT_BYTES - 4) // 3) + b"[]]"
    store.commitments.create("runs/run/segments/00002.json", data)
    assert run_summary(store, "run")["problem"].startswith("evidence_malformed")
    name = f"runs/run/20990101T000000Z-{sha256_bytes(data)[:16]}.json"
    store.verdicts.create(name, data)
    assert coverage(store)[0].verdict is None
    assert run.commitments().segments[-1] == data
    assert dumps([]) == b"[]"
