"""DVC pointers and the directory listings behind them, checked before DVC may act on them.

A pointer names the MD5 of a listing (``<md5>.dir``), a JSON list of ``{"md5", "relpath"}``. DVC joins those
paths to the target directory *without any check*: a listing with ``../../x`` makes ``dvc pull`` write outside
the workspace. Listings come from the other party, so they are read and checked here first
(``check_listing``).

MD5 only says where an object is. What the files contain is decided by the SHA-256 digests of the signed
chain.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tasks.store import CommitmentStore
from vt_core.errors import EvidenceError, NotFound

MAX_FILES = 10_000
MAX_LISTING_BYTES = 4 * 1024 * 1024

_MD5 = re.compile(r"[0-9a-f]{32}")
_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_LIMIT = 2**53


@dataclass(frozen=True)
class Pointer:
    """The content of a ``.dvc`` file for one directory: what is needed to find it again in the remote.

    ``md5`` is the listing's address (32 hex digits and ``.dir``), ``size`` the sum of the files' sizes in
    bytes, ``nfiles`` their number, ``path`` the directory's name when it was published.
    """

    md5: str
    size: int
    nfiles: int
    path: str

    def to_json(self) -> dict[str, Any]:
        """Return the pointer as a dict that canonical JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Pointer:
        """Return the pointer that :meth:`to_json` gave; raise ``evidence_malformed`` for anything else."""
        if not isinstance(value, Mapping) or set(value) != {"md5", "size", "nfiles", "path"}:
            raise _malformed("it must hold md5, size, nfiles and path, and nothing else")
        md5, size, nfiles, path = value["md5"], value["size"], value["nfiles"], value["path"]
        if not isinstance(md5, str) or not md5.endswith(".dir") or not _MD5.fullmatch(md5[:-4]):
            raise _malformed(f"{str(md5)[:80]!r} is not the address of a directory")
        # bool is an int in Python, and true would pass for 1.
        if type(size) is not int or not 0 <= size < _LIMIT:
            raise _malformed("size is not a number of bytes")
        if type(nfiles) is not int or not 0 < nfiles <= MAX_FILES:
            raise _malformed(f"nfiles is not a number from 1 to {MAX_FILES}")
        if not isinstance(path, str) or not _COMPONENT.fullmatch(path):
            raise _malformed(f"{str(path)[:80]!r} is not a plain directory name")
        return cls(md5, size, nfiles, path)


def object_name(md5: str) -> str:
    """Return where a DVC 3 remote or cache keeps the object ``md5`` (32 hex digits, perhaps with
    ``.dir``).
    """
    return f"files/md5/{md5[:2]}/{md5[2:]}"


def read_listing(pointer: Pointer, remote: CommitmentStore, what: str) -> bytes:
    """Return the listing that ``pointer`` names, whole and with the right MD5.

    Raises :class:`EvidenceError` ``artifact_missing`` or ``artifact_corrupt``; a remote that cannot be
    reached is a :class:`StoreError`.
    """
    try:
        data = remote.read(object_name(pointer.md5), max_bytes=MAX_LISTING_BYTES)
    except NotFound as error:
        raise EvidenceError(
            "artifact_missing", f"{what}: its listing {pointer.md5} is not in {remote.url}", artifact=what
        ) from error
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != pointer.md5[:-4]:
        raise EvidenceError(
            "artifact_corrupt",
            f"{what}: its listing {pointer.md5} in {remote.url} has MD5 {found}",
            artifact=what,
        )
    return data


def check_listing(data: bytes, pointer: Pointer, what: str) -> dict[str, str]:
    """Return the MD5 of each file of a listing, by its path relative to the directory.

    Raises :class:`EvidenceError` ``evidence_malformed`` unless every path is made of plain names (none
    hidden, no ``..``), no path occurs twice or lies below another file, and the number of files is the
    pointer's.
    """
    try:
        entries = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _malformed(f"the listing of {what} is not JSON") from error
    if not isinstance(entries, list) or len(entries) != pointer.nfiles:
        raise _malformed(f"the listing of {what} does not hold the {pointer.nfiles} files that the pointer says")
    files: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != {"md5", "relpath"}:
            raise _malformed(f"the listing of {what} holds something that is not a file")
        md5, path = entry["md5"], entry["relpath"]
        if not isinstance(md5, str) or not _MD5.fullmatch(md5):
            raise _malformed(f"the listing of {what} holds an invalid MD5")
        if not isinstance(path, str) or not all(_COMPONENT.fullmatch(part) for part in path.split("/")):
            raise _malformed(f"the listing of {what} holds the unsafe path {str(path)[:200]!r}")
        if path in files:
            raise _malformed(f"the listing of {what} holds {path!r} twice")
        files[path] = md5
    for path in files:
        parts = path.split("/")
        if any("/".join(parts[:n]) in files for n in range(1, len(parts))):
            raise _malformed(f"the listing of {what} holds {path!r} below another file")
    return files


def check_sizes(files: Mapping[str, str], pointer: Pointer, remote: CommitmentStore, what: str, whole: bool) -> int:
    """Return the bytes that fetching ``files`` of a listing takes; nothing is read.

    DVC copies whatever lies at an address: a sparse file of terabytes, a named pipe that never answers. Raises
    :class:`EvidenceError`: ``artifact_missing`` for an object that is not there, ``artifact_corrupt`` if the sizes
    do not add up to what the pointer says (``whole``: if ``files`` are all of the listing; else if they are more).
    A link, pipe or device in an object's place is a :class:`StoreError`.
    """

    def measure(item: tuple[str, str]) -> int:
        path, md5 = item
        try:
            size = remote.size(object_name(md5))
        except NotFound as error:
            raise _missing(path, md5, remote, what) from error
        if size > pointer.size:
            message = f"{what}: {path} in {remote.url} has {size} bytes, the evidence says {pointer.size} for all files"
            raise EvidenceError("artifact_corrupt", message, artifact=what, file=path)
        return size

    with ThreadPoolExecutor(max_workers=16) as pool:  # the time goes into waiting for the store
        total = sum(pool.map(measure, sorted(files.items())))
    if total > pointer.size or (whole and total != pointer.size):
        if total <= 2 * pointer.size:  # so much can be read to find out which
            check_objects(files, remote, what)
        raise EvidenceError(
            "artifact_corrupt",
            f"{what}: its {len(files)} files in {remote.url} have {total} bytes, the evidence says {pointer.size}",
            artifact=what,
        )
    return total


def check_objects(files: Mapping[str, str], remote: CommitmentStore, what: str) -> None:
    """Read every file of a listing from the remote; raise ``artifact_missing`` or ``artifact_corrupt`` for
    the first that is not there or has another MD5.
    """
    for path, md5 in sorted(files.items()):
        try:
            found = remote.hash(object_name(md5), "md5")
        except NotFound as error:
            raise _missing(path, md5, remote, what) from error
        if found != md5:
            raise EvidenceError(
                "artifact_corrupt",
                f"{what}: {path} in {remote.url} has MD5 {found} at the address of {md5}",
                artifact=what,
                file=path,
            )


def _missing(path: str, md5: str, remote: CommitmentStore, what: str) -> EvidenceError:
    message = f"{what}: {path} (MD5 {md5}) is not in {remote.url}"
    return EvidenceError("artifact_missing", message, artifact=what, file=path)


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"a DVC pointer is malformed: {why}")
