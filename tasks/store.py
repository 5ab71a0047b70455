"""The evidence store: small append-only commitments, and the place where DVC keeps the large artifacts.

A store is a directory (``file:///data/evidence`` or a plain path) or a prefix of a bucket
(``s3://bucket/prefix``). Below it, ``commitments/`` and ``verdicts/`` hold JSON documents that are created once and
never overwritten, and ``artifacts/`` is a DVC remote. Storage alone does not make a log append-only (a deleted
object can be created anew): each commitment also names the digest of its predecessor.

Endpoint of S3: ``?endpoint_url=`` of the URL, else ``AWS_ENDPOINT_URL_S3``, else ``AWS_ENDPOINT_URL``, else
AWS itself. Credentials come from the environment or an AWS profile, never from a URL: URLs end up in logs and
evidence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

from vt_core.errors import StoreError

MAX_COMMITMENT_BYTES = 64 * 1024 * 1024
"""Largest commitment that is read or written, in bytes."""

MAX_LISTED = 5_000_000
"""Most names of one listing; a run of a million segments has as many. More is a :class:`StoreError`."""

_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PARTS = ("commitments", "verdicts")
_MAX_NAME = 700  # S3 allows 1024 bytes for the whole key, the store's own prefix included


class CommitmentStore(Protocol):
    """Named byte strings that are created once. All methods raise :class:`StoreError` if the store fails."""

    @property
    def url(self) -> str:
        """Where the objects are, for messages and evidence; never holds credentials."""

    def create(self, name: str, data: bytes) -> None:
        """Store ``data`` as ``name``; raise :class:`AlreadyExists`, changing nothing, if the name is taken.

        A reader sees the whole object or none, whatever happens to the writer, and of several writers one
        wins.
        """

    def read(self, name: str, max_bytes: int = MAX_COMMITMENT_BYTES) -> bytes:
        """Return the object ``name``.

        Raises :class:`NotFound`, or :class:`EvidenceError` ``evidence_malformed`` if it has more than
        ``max_bytes``.
        """

    def version(self, name: str) -> str | None:
        """Return the store's own id of the version that :meth:`read` last gave of ``name``, None if it keeps none."""

    def exists(self, name: str) -> bool:
        """Tell whether the object ``name`` is there."""

    def list(self, prefix: str = "") -> list[str]:
        """Return the names that begin with the string ``prefix``, sorted by code point.

        What could not be read under its name (a hidden file, ``a b``, bytes that are no UTF-8) is no object and is
        left out: one odd file that somebody puts there must not stop everybody from listing. Raises
        :class:`StoreError` for more than ``MAX_LISTED`` names.
        """

    def hash(self, name: str, algorithm: str) -> str:
        """Return the hex digest of the object ``name`` by a ``hashlib`` algorithm, in constant memory.

        Raises :class:`NotFound`.
        """

    def size(self, name: str) -> int:
        """Return the size of the object ``name`` in bytes, without reading it. Raises :class:`NotFound`."""


@dataclass(frozen=True)
class DvcRemote:
    """Where DVC pushes to: ``url`` as DVC's configuration wants it, and further ``options`` of the remote.

    ``url`` is an absolute path or ``s3://bucket/prefix``; ``options`` never hold credentials.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_s3(self) -> bool:
        """Tell whether the remote is a bucket; else it is a local directory."""
        return self.url.startswith("s3://")

    def objects(self) -> CommitmentStore:
        """Return direct access to the remote's objects, used to find out why a pull failed."""
        return _backend(self.url, self.options.get("endpointurl"), self.options.get("region"))


@dataclass(frozen=True)
class Store:
    """One evidence store: its ``url``, the trainer's commitments, the auditors' verdicts, and its DVC remote.

    Verdicts lie apart, so that permissions by prefix can let a trainer write evidence and no verdict, and an
    auditor the other way round.
    """

    url: str
    commitments: CommitmentStore
    verdicts: CommitmentStore
    _remote: DvcRemote

    def dvc_remote(self) -> DvcRemote:
        """Return the DVC remote for this store's artifacts."""
        return self._remote


def open_store(url: str, create: bool = False) -> Store:
    """Return the store at ``url``; nothing is contacted yet.

    With ``create``, a local store's directory is made if it is missing (buckets are never made). Without it,
    reading from a directory that does not exist is a :class:`StoreError`, so that a mistyped path is never
    taken for an empty store and becomes a finding. Raises :class:`StoreError` for a URL that cannot be used.
    """
    if not url or "\0" in url:
        raise StoreError("the store's URL is empty or holds a NUL character; give file:///path or s3://bucket/prefix")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _local_store(Path(url), create)
    if scheme.lower() == "file":
        return _local_store(_file_url_path(url), create)
    if scheme.lower() == "s3":
        return _s3_store(url)
    raise StoreError(f"stores of the kind {scheme}:// are not supported; use file:///path or s3://bucket/prefix")


def check_name(name: str) -> str:
    """Return ``name`` if it may name an object: components of ``[A-Za-z0-9._-]`` joined by ``/``, none
    hidden.

    Raises :class:`StoreError`. A leading dot is refused, which covers ``..`` and leaves dot files to the
    backends.
    """
    if not is_name(name):
        raise StoreError(
            f"{name[:100]!r} cannot name an object: use components of letters, digits, '.', '_' and '-' that "
            f"do not begin with a dot, joined by '/', {_MAX_NAME} characters at most"
        )
    return name


def is_name(name: str) -> bool:
    """Tell whether :func:`check_name` accepts ``name``."""
    return 0 < len(name) <= _MAX_NAME and all(_COMPONENT.fullmatch(part) for part in name.split("/"))


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` if a valid name can begin with it, else raise :class:`StoreError`."""
    if prefix:
        check_name(prefix + "x" if prefix.endswith("/") else prefix)
    return prefix


def _file_url_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise StoreError(f"{url!r} names the host {parts.netloc!r}; a local path has three slashes: file:///path")
    if parts.query or parts.fragment:
        raise StoreError(f"{url!r}: write '?' as %3F and '#' as %23 in a file URL")
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError as error:
        raise StoreError(f"{url!r}: the percent-encoding is not valid UTF-8") from error
    if not path.startswith("/") or "\0" in path:
        raise StoreError(f"{url!r}: a file URL needs an absolute path")
    return Path(path)


def _local_store(path: Path, create: bool) -> Store:
    root = Path(os.path.abspath(path))
    if create:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the store's directory {root}: {error.strerror}") from error
    remote = DvcRemote(str(root / "artifacts"))
    return Store(
        "file://" + quote(str(root)),
        _backend(str(root / "commitments"), None, None),
        _backend(str(root / "verdicts"), None, None),
        remote,
    )


def _s3_store(url: str) -> Store:
    # Never repeat the URL in a message before it is known to hold no credentials.
    parts = urlsplit(url)
    if "@" in parts.netloc or ":" in parts.netloc:
        raise StoreError(
            "an S3 URL must not hold credentials or a port: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(or an AWS profile) in the environment, and give the server as ?endpoint_url=http://host:port"
        )
    query = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(set(query) - {"endpoint_url", "region"})
    if unknown or parts.fragment or any(len(values) != 1 for values in query.values()):
        raise StoreError("an S3 URL takes the query parameters endpoint_url and region, once each, and no others")
    if not _BUCKET.fullmatch(parts.netloc):
        raise StoreError(f"{parts.netloc!r} is not a bucket name; write s3://bucket/prefix")
    prefix = parts.path.strip("/")
    if prefix:
        check_name(prefix)
    endpoint = query.get("endpoint_url", [""])[0]
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3", "") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        _check_endpoint(endpoint)
    region = query.get("region", [""])[0]
    base = "/".join(filter(None, (f"s3://{parts.netloc}", prefix)))
    options = {}
    if endpoint:
        options["endpointurl"] = endpoint
    if region:
        options["region"] = region
    remote = DvcRemote(f"{base}/artifacts", options)
    commitments, verdicts = (_backend(f"{base}/{part}", endpoint or None, region or None) for part in _PARTS)
    return Store(base, commitments, verdicts, remote)


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise StoreError("the S3 endpoint must not hold credentials; set them in the environment")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise StoreError(f"the S3 endpoint {endpoint!r} is not an http:// or https:// address")


def _backend(url: str, endpoint: str | None, region: str | None) -> CommitmentStore:
    # Imported here: the backends need this module's checks, and boto3 takes a second that a local store need
    # not pay.
    if url.startswith("s3://"):
        from tasks.store_s3 import S3Commitments

        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return S3Commitments(bucket, prefix, endpoint, region)
    from tasks.store_local import LocalCommitments

    return LocalCommitments(Path(url))
