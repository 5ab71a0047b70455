"""Sizes, retention and deletion of the objects behind a DVC remote; only ``vt gc`` uses it.

Stores have no way to delete, on purpose (see ``tasks.store``); it is here, apart, for objects that are no evidence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import boto3
import botocore.exceptions
from botocore.config import Config

from tasks.store import DvcRemote
from vt_core.errors import StoreError

_FILES = "files/md5"
# What AWS and SeaweedFS answer for an object, or a bucket, without retention or legal hold.
_NO_LOCK = {
    "NoSuchObjectLockConfiguration",
    "NoSuchObjectLegalHold",
    "ObjectLockConfigurationNotFoundError",
    "InvalidRequest",
}
_UNKNOWN_TO_SERVER = {"NotImplemented", "MethodNotAllowed"}


class Bin(Protocol):
    """Objects of one remote, by names as :func:`tasks.dvc_objects.object_name` gives them."""

    def sizes(self) -> dict[str, int]:
        """Return name -> bytes (of all versions together) of every object."""

    def retained(self, name: str) -> bool:
        """Tell whether a retention or a legal hold protects any version of the object."""

    def delete(self, name: str) -> None:
        """Delete the object with all its versions. Raises StoreError."""


def open_bin(remote: DvcRemote) -> Bin:
    """Return the objects of ``remote``."""
    return _S3Bin(remote) if remote.is_s3 else _LocalBin(Path(remote.url))


class _LocalBin:
    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self) -> dict[str, int]:
        """See :class:`Bin`."""
        found: dict[str, int] = {}
        for base, _, files in os.walk(self._root / _FILES):
            for name in files:
                path = Path(base) / name
                if not path.is_symlink():
                    found[path.relative_to(self._root).as_posix()] = path.stat().st_size
        return found

    def retained(self, name: str) -> bool:
        """Directories know no retention."""
        return False

    def delete(self, name: str) -> None:
        """See :class:`Bin`."""
        try:
            (self._root / name).unlink()
        except OSError as error:
            raise StoreError(f"cannot delete {name} in {self._root}: {error.strerror}") from error


class _S3Bin:
    def __init__(self, remote: DvcRemote) -> None:
        self._bucket, _, prefix = remote.url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/"
        endpoint = remote.options.get("endpointurl")
        session = boto3.session.Session()
        self._client: Any = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=remote.options.get("region") or session.region_name or ("us-east-1" if endpoint else None),
            config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard"}),
        )
        self._versions: dict[str, list[str]] = {}

    def sizes(self) -> dict[str, int]:
        """See :class:`Bin`."""
        found: dict[str, int] = {}
        self._versions = {}
        with self._errors("list the objects"):
            pages = self._client.get_paginator("list_object_versions").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{_FILES}/"
            )
            for page in pages:
                for entry in page.get("Versions", []):
                    name = entry["Key"][len(self._prefix) :]
                    found[name] = found.get(name, 0) + int(entry["Size"])
                    self._versions.setdefault(name, []).append(entry["VersionId"])
        return found

    def retained(self, name: str) -> bool:
        """See :class:`Bin`; without the permission to ask, an object counts as protected."""
        return any(self._protected(name, version) for version in self._versions[name])

    def delete(self, name: str) -> None:
        """See :class:`Bin`."""
        if name not in self._versions:
            self.sizes()
        with self._errors(f"delete {name}"):
            for version in self._versions.get(name, []):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name, VersionId=version)

    def _protected(self, name: str, version: str) -> bool:
        at = {"Bucket": self._bucket, "Key": self._prefix + name, "VersionId": version}
        hold = self._ask(self._client.get_object_legal_hold, at)
        kept = self._ask(self._client.get_object_retention, at)
        if hold is None or kept is None:
            return True
        return hold.get("LegalHold", {}).get("Status") == "ON" or bool(kept.get("Retention", {}).get("RetainUntilDate"))

    def _ask(self, call: Any, at: dict[str, str]) -> dict[str, Any] | None:
        """Return the answer, {} where there is no lock, None if it may not be known."""
        try:
            answer: dict[str, Any] = call(**at)
            return answer
        except botocore.exceptions.ClientError as error:
            code = error.response.get("Error", {}).get("Code")
            return {} if code in _NO_LOCK | _UNKNOWN_TO_SERVER else None

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, OSError) as error:
            raise StoreError(f"cannot {doing} in bucket {self._bucket}: {error}") from error
