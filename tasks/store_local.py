"""Append-only commitments in a local directory, by exclusive create.

An object is written to a hidden temporary file of the same directory, synced, and then *linked* to its name:
``link`` fails if the name is taken, and it is atomic, so a reader sees the whole object or none even if the
writer is killed. What a killed writer leaves behind is one hidden file that nothing reads.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from urllib.parse import quote

from tasks.store import MAX_COMMITMENT_BYTES, MAX_LISTED, check_name, check_prefix, is_name
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, StoreError

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}


class LocalCommitments:
    """The objects below ``root``; ``root``'s parent must exist for reading, and both are made by the first
    write.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def url(self) -> str:
        """The directory as a ``file://`` URL."""
        return "file://" + quote(str(self._root))

    def create(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``, durably; see :class:`tasks.store.CommitmentStore`."""
        path = self._root / check_name(name)
        if len(data) > MAX_COMMITMENT_BYTES:
            raise StoreError(f"cannot store {name}: {len(data)} bytes exceed {MAX_COMMITMENT_BYTES}")
        with self._errors(f"store {name}"):
            _make_directory(path.parent)
            temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
            try:
                _write_synced(temporary, data)
                _link(temporary, path, name, self.url)
            finally:
                temporary.unlink(missing_ok=True)
            # The name itself must survive a power cut, or a later writer could take it.
            _sync_directory(path.parent)

    def read(self, name: str, max_bytes: int = MAX_COMMITMENT_BYTES) -> bytes:
        """Return the object ``name``; see :class:`tasks.store.CommitmentStore`."""
        with self._open(name) as file:
            # The size first: a sparse file of terabytes costs its owner nothing.
            too_large = os.fstat(file.fileno()).st_size > max_bytes
            data = b"" if too_large else file.read(max_bytes + 1)
        if too_large or len(data) > max_bytes:
            raise EvidenceError("evidence_malformed", f"{name} has more than {max_bytes} bytes", object=name)
        return data

    def version(self, name: str) -> str | None:
        """Return None: a directory keeps no versions."""
        return None

    def exists(self, name: str) -> bool:
        """Tell whether the object ``name`` is there; see :class:`tasks.store.CommitmentStore`."""
        try:
            with self._open(name):
                return True
        except NotFound:
            return False

    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted names that begin with ``prefix``; see :class:`tasks.store.CommitmentStore`."""
        check_prefix(prefix)
        start = self._root / prefix.rpartition("/")[0]
        names: list[str] = []
        base = start.relative_to(self._root).as_posix()
        # A stack of our own: os.walk recurses, and whoever writes here chooses how deep.
        pending = ["" if base == "." else f"{base}/"]
        with self._errors(f"list {prefix or 'all objects'}"):
            self._check_store("list")
            while pending:
                above = pending.pop()
                try:
                    entries = os.scandir(self._root / above)
                except FileNotFoundError:  # nothing stored yet
                    continue
                with entries:
                    for entry in entries:
                        name = f"{above}{entry.name}"
                        if not is_name(name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(f"{name}/")
                        elif name.startswith(prefix) and not _leads_to_directory(entry):
                            names.append(name)
                        if len(names) + len(pending) > MAX_LISTED:
                            raise StoreError(f"cannot list {prefix} in {self.url}: more than {MAX_LISTED} names")
        return sorted(names)

    def hash(self, name: str, algorithm: str) -> str:
        """Return the hex digest of the object ``name``; see :class:`tasks.store.CommitmentStore`."""
        with self._open(name) as file:
            return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()

    def size(self, name: str) -> int:
        """Return the size of the object ``name`` in bytes; see :class:`tasks.store.CommitmentStore`."""
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    @contextmanager
    def _open(self, name: str) -> Iterator[BufferedReader]:
        path = self._root / check_name(name)
        with self._errors(f"read {name}"):
            self._check_store(f"read {name}")
            try:
                # A link could lead out of the store, to any file that this process may read.
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"there is no {name} in {self.url}") from error
            try:
                mode = os.fstat(fd).st_mode
                if stat.S_ISDIR(mode):
                    raise NotFound(f"there is no {name} in {self.url}: it is a directory")
                # A linked directory on the way could lead out of the store as well.
                inside = path.parent.resolve().is_relative_to(self._root.resolve())
                if not stat.S_ISREG(mode) or not inside:
                    raise StoreError(f"{name} in {self.url} is not a regular file inside the store")
                with os.fdopen(fd, "rb", closefd=False) as file:
                    yield file
            finally:
                os.close(fd)

    def _check_store(self, doing: str) -> None:
        if not self._root.parent.is_dir():
            raise StoreError(
                f"cannot {doing}: there is no store at {self._root.parent} (no such directory); "
                "check the path, or make the directory for a new store"
            )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"cannot {doing} in {self.url}: it is a symbolic link") from error
            raise StoreError(
                f"cannot {doing} in {self.url}: {error.strerror or error}; check the directory's permissions "
                "and free space"
            ) from error


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _make_directory(directory: Path) -> None:
    """Make ``directory`` and its parents, each entry synced to the disk."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync_directory(directory.parent)


def _write_synced(path: Path, data: bytes) -> None:
    # Read-only: nobody has a reason to edit a commitment.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, path: Path, name: str, url: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise AlreadyExists(f"{name} exists already in {url}; commitments are never overwritten") from error
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise StoreError(
                f"cannot store {name} in {url}: the file system has no hard links, which exclusive "
                "creation needs; put the store on a native file system or use s3://"
            ) from error
        raise


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
