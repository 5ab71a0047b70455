"""File digests: right against hashlib, and typed errors for all that is not the agreed regular file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from vt_core.errors import EvidenceError, NotFound, StoreError
from vt_core.evidence import digests

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1


def test_known_digest(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert digests.sha256_bytes(b"abc") == ABC
    assert digests.sha256_file(tmp_path / "abc") == ABC
    digests.check_file(tmp_path / "abc", ABC, 3, "test")


@pytest.mark.parametrize("size", [0, 1, digests.CHUNK_BYTES, digests.CHUNK_BYTES + 1, 3 * digests.CHUNK_BYTES])
def test_streaming_and_progress(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    path = tmp_path / "data"
    path.write_bytes(data)
    seen: list[int] = []
    assert digests.sha256_file(path, seen.append) == hashlib.sha256(data).hexdigest()
    assert sum(seen) == size


@pytest.mark.parametrize("sizes", [[], [0], [5, 0, 7], [1 << 17, 3, (1 << 17) - 1, 1 << 20, 1 << 20]])
def test_written_and_hashed_at_once(tmp_path: Path, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    found = digests.write_hashed(tmp_path / "x", (memoryview(p) if i % 2 else p for i, p in enumerate(parts)))
    whole = b"".join(parts)
    assert (tmp_path / "x").read_bytes() == whole
    assert found == (hashlib.sha256(whole).hexdigest(), len(whole))


def test_writing_fails_as_the_disk_or_the_source_does(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        digests.write_hashed("/dev/full", [bytes(1 << 20)])
    with pytest.raises(ZeroDivisionError):
        digests.write_hashed(tmp_path / "x", (bytes(1 << 20 // n) for n in (1, 0)))


def reason_of(path: Path, sha256: str, size: int) -> str:
    with pytest.raises(EvidenceError, match="the checkpoint") as caught:
        digests.check_file(path, sha256, size, "the checkpoint")
    return caught.value.reason


def test_missing_wrong_size_and_wrong_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert reason_of(path, ABC, 3) == "artifact_missing"
    assert reason_of(tmp_path / "no" / "model", ABC, 3) == "artifact_missing"
    path.write_bytes(b"abc")
    assert reason_of(path / "below-a-file", ABC, 3) == "artifact_missing"
    assert reason_of(path, ABC, 4) == "artifact_corrupt"
    path.write_bytes(b"abd")
    assert reason_of(path, ABC, 3) == "artifact_corrupt"


@pytest.mark.parametrize("digest", ["", ABC.upper(), ABC[:-1], ABC + "0", ABC[:-1] + "\n", "g" * 64])
def test_a_digest_in_another_form_is_malformed(tmp_path: Path, digest: str) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert reason_of(tmp_path / "abc", digest, 3) == "evidence_malformed"


def test_links_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")  # a plain open() of a pipe would hang here
    for name in ("link", "dangling", "directory", "pipe"):
        assert reason_of(tmp_path / name, ABC, 3) == "artifact_corrupt"
        with pytest.raises(StoreError):
            digests.sha256_file(tmp_path / name)


def test_the_writing_side_gets_store_errors(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such file"):
        digests.sha256_file(tmp_path / "nothing")
