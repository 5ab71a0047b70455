"""SHA-256 digests of bytes and files: the only authority on what an artifact contains.

Storage locations (DVC's MD5 addresses, S3 ETags) say where bytes are, never what they are. A file is checked
here before anything parses it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from vt_core.errors import EvidenceError, NotFound, StoreError

CHUNK_BYTES = 1 << 20
_SHARED_FROM = 1 << 17  # bytes; handing less to another thread costs more than hashing it

_SHA256 = re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int], None]
"""Called with the number of bytes hashed since the last call."""


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_sha256(text: object) -> bool:
    """Tell whether ``text`` is a digest in the only form we write: 64 lower-case hex digits."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def sha256_file(path: str | os.PathLike[str], progress: Progress | None = None) -> str:
    """Return the SHA-256 of the regular file ``path`` as 64 lower-case hex digits; memory use is constant.

    Raises :class:`NotFound` if there is no such file, and :class:`StoreError` if it is a symbolic link, not a
    regular file, or cannot be read: on the writing side these are faults of the machine, not findings.
    """
    try:
        with _open_regular(path) as file:
            return _hash(file, progress)[0]
    except FileNotFoundError as error:
        raise NotFound(f"cannot hash {os.fspath(path)}: there is no such file") from error
    except OSError as error:
        raise StoreError(f"cannot hash {os.fspath(path)}: {error.strerror or error}") from error


def write_hashed(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Write ``parts`` one after the other into a new file ``path``; return its SHA-256 (hex) and its size in bytes.

    A large part (memoryviews: of bytes) is hashed by another thread while this one writes it, so that the file is
    neither read again nor waited for twice. Parts of some MiB serve best. Raises OSError, and what the iterable raises.
    """
    hasher, size = hashlib.sha256(), 0
    if os.path.isfile(path):
        os.unlink(path)  # not truncated: the parts may be mapped from the old file
    with open(path, "wb") as file, ThreadPoolExecutor(1, thread_name_prefix="vt-file-hash") as other:
        for part in parts:
            if len(part) < _SHARED_FROM:
                hasher.update(part)
                file.write(part)
            else:
                hashed = other.submit(hasher.update, part)
                file.write(part)
                hashed.result()
            size += len(part)
    return hasher.hexdigest(), size


def check_file(
    path: str | os.PathLike[str], sha256: str, size: int, what: str, progress: Progress | None = None
) -> None:
    """Check that ``path`` is a regular file of ``size`` bytes whose digest is ``sha256`` (64 lower-case hex
    digits).

    Raises :class:`EvidenceError`: ``artifact_missing`` if there is no such file, ``artifact_corrupt`` if the
    size or the digest differs or if it is a symbolic link or no regular file, ``evidence_malformed`` if
    ``sha256`` is no digest. An unreadable disk is a :class:`StoreError`. Only the last component is checked
    for symbolic links.
    """
    name = Path(path).name
    if not is_sha256(sha256):
        raise EvidenceError(
            "evidence_malformed", f"{what}: {sha256!r} is not a SHA-256 digest in lower-case hex", file=name
        )
    try:
        with _open_regular(path) as file:
            # Size first: it costs nothing and spares hashing a file that cannot be right.
            found_size = os.fstat(file.fileno()).st_size
            if found_size == size:
                found, found_size = _hash(file, progress)
            else:
                found = ""
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EvidenceError("artifact_missing", f"{what}: the file {name} is missing", file=name) from error
    except _NotRegular as error:
        raise EvidenceError("artifact_corrupt", f"{what}: {name} {error.strerror}", file=name) from error
    except OSError as error:
        raise StoreError(f"{what}: cannot read {os.fspath(path)}: {error.strerror or error}") from error
    if found_size != size:
        raise EvidenceError(
            "artifact_corrupt",
            f"{what}: {name} has {found_size} bytes, the evidence says {size}",
            file=name,
            expected_size=size,
            found_size=found_size,
        )
    if found != sha256:
        raise EvidenceError(
            "artifact_corrupt",
            f"{what}: {name} has SHA-256 {found}, the evidence says {sha256}",
            file=name,
            expected=sha256,
            found=found,
        )


def read_bounded(path: str | os.PathLike[str], max_bytes: int, what: str) -> bytes:
    """Return the content of the regular file ``path``, which may have at most ``max_bytes`` bytes.

    Never allocates more than that, whatever the file claims to be. Raises :class:`EvidenceError`:
    ``artifact_missing`` if there is no such file, ``artifact_corrupt`` if it is no regular file,
    ``evidence_malformed`` if it is larger. An unreadable disk is a :class:`StoreError`.
    """
    name = Path(path).name
    try:
        with _open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(max_bytes + 1) if size <= max_bytes else b""
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EvidenceError("artifact_missing", f"{what}: the file {name} is missing", file=name) from error
    except _NotRegular as error:
        raise EvidenceError("artifact_corrupt", f"{what}: {name} {error.strerror}", file=name) from error
    except OSError as error:
        raise StoreError(f"{what}: cannot read {os.fspath(path)}: {error.strerror or error}") from error
    if size > max_bytes or len(data) > max_bytes:  # it may have grown since
        found = max(size, len(data))
        raise EvidenceError(
            "evidence_malformed", f"{what}: {name} has {found} bytes, the limit is {max_bytes}", file=name
        )
    return data


class _NotRegular(OSError):
    """The path names a symbolic link, a directory, a device or a pipe."""


def _open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open ``path`` for reading without following a link; the check is made on the open file, so no race."""
    flags = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
    flags |= getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotRegular(errno.ELOOP, "is a symbolic link, which is not accepted") from error
        if error.errno == errno.ENXIO:  # a socket
            raise _NotRegular(errno.ENXIO, "is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _NotRegular(errno.EINVAL, "is not a regular file")
    return os.fdopen(fd, "rb")


def _hash(file: BinaryIO, progress: Progress | None) -> tuple[str, int]:
    """Return the SHA-256 of ``file`` and the number of bytes that went into it."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK_BYTES))
    total = 0
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        digest.update(buffer[:count])
        total += count
        if progress is not None:
            progress(count)
    return digest.hexdigest(), total
