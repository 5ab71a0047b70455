"""Append-only commitments in an S3 bucket, by conditional create (``If-None-Match: *``).

Any S3 server that honours conditional writes will do. Botocore's errors are turned into :class:`StoreError`
with the bucket, the key, the endpoint and what to do.
"""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config
from urllib3.exceptions import HTTPError

from tasks.store import MAX_COMMITMENT_BYTES, MAX_LISTED, check_name, check_prefix, is_name
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, StoreError

_CONFLICT_TRIES = 6
_WRITER = "vt-writer"

_ADVICE = {
    "NoSuchBucket": "the bucket does not exist; make it first",
    "AccessDenied": "access denied; check that this identity may do it",
    "InvalidAccessKeyId": "the server does not know the access key; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; sign in again",
    "403": "access denied; check the credentials and that this identity may do it",
}


class S3Commitments:
    """The objects of ``bucket`` whose keys begin with ``prefix``; the connection is made by the first
    call.
    """

    def __init__(self, bucket: str, prefix: str, endpoint: str | None, region: str | None) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = endpoint
        self._region = region
        self._made: Any = None
        self._versions: dict[str, str] = {}

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``, without the endpoint."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def create(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``; see :class:`tasks.store.CommitmentStore`."""
        key = self._prefix + check_name(name)
        if len(data) > MAX_COMMITMENT_BYTES:
            raise StoreError(f"cannot store {name}: {len(data)} bytes exceed {MAX_COMMITMENT_BYTES}")
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        writer = uuid.uuid4().hex
        with self._errors(f"store {key}"):
            for attempt in range(_CONFLICT_TRIES):
                try:
                    self._client.put_object(
                        Bucket=self._bucket,
                        Key=key,
                        Body=data,
                        IfNoneMatch="*",
                        ChecksumSHA256=checksum,
                        ContentType="application/json",
                        Metadata={_WRITER: writer},
                    )
                    return
                except botocore.exceptions.ClientError as error:
                    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
                    if status == 412:
                        if self._is_ours(key, writer):
                            return
                        raise AlreadyExists(
                            f"{name} exists already in {self.url}; commitments are never overwritten"
                        ) from error
                    # 409: another write to this key is under way; who won is known only after a retry.
                    if status != 409 or attempt == _CONFLICT_TRIES - 1:
                        raise
                    time.sleep(0.1 * 2**attempt)

    def read(self, name: str, max_bytes: int = MAX_COMMITMENT_BYTES) -> bytes:
        """Return the object ``name``; see :class:`tasks.store.CommitmentStore`."""
        with self._open(name, first=True) as body:
            data: bytes = body.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise EvidenceError("evidence_malformed", f"{name} has more than {max_bytes} bytes", object=name)
        return data

    def version(self, name: str) -> str | None:
        """Return the version that was read of ``name``; see :class:`tasks.store.CommitmentStore`."""
        return self._versions.get(name)

    def exists(self, name: str) -> bool:
        """Tell whether the object ``name`` is there; see :class:`tasks.store.CommitmentStore`."""
        key = self._prefix + check_name(name)
        # Not HEAD: its 404 has no body, so a missing bucket would look like a missing object.
        with self._errors(f"look for {key}"):
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
            return any(entry["Key"] == key for entry in page.get("Contents", []))

    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted names that begin with ``prefix``; see :class:`tasks.store.CommitmentStore`."""
        full = self._prefix + check_prefix(prefix)
        names: list[str] = []
        with self._errors(f"list {full}"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=full)
            for page in pages:
                listed = (entry["Key"][len(self._prefix) :] for entry in page.get("Contents", []))
                # Not objects of ours: folder markers of other tools ('a/'), and keys that no check_name lets pass.
                names += [name for name in listed if is_name(name)]
                if len(names) > MAX_LISTED:
                    raise StoreError(f"cannot list {full} in bucket {self._bucket}: more than {MAX_LISTED} names")
        return sorted(names)

    def hash(self, name: str, algorithm: str) -> str:
        """Return the hex digest of the object ``name``; see :class:`tasks.store.CommitmentStore`."""
        digest = hashlib.new(algorithm, usedforsecurity=False)
        with self._open(name) as body:
            for chunk in body.iter_chunks(1 << 20):
                digest.update(chunk)
        return digest.hexdigest()

    def size(self, name: str) -> int:
        """Return the size of the object ``name`` in bytes; see :class:`tasks.store.CommitmentStore`."""
        key = self._prefix + check_name(name)
        # Not HEAD: its 404 has no body, so a missing bucket would look like a missing object.
        with self._errors(f"look for {key}"):
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key, MaxKeys=1)
            sizes = [int(entry["Size"]) for entry in page.get("Contents", []) if entry["Key"] == key]
        if not sizes:
            raise NotFound(f"there is no {name} in {self.url}")
        return sizes[0]

    @property
    def _client(self) -> Any:
        if self._made is None:
            # A session of its own: boto3's default session is not safe to share between threads.
            self._made = boto3.session.Session().client(
                "s3",
                endpoint_url=self._endpoint,
                region_name=self._region or (_default_region() if self._endpoint else None),
                config=Config(
                    s3={"addressing_style": "path"},
                    retries={"mode": "standard", "total_max_attempts": 5},
                    connect_timeout=10,
                    read_timeout=60,
                ),
            )
        return self._made

    def _is_ours(self, key: str, writer: str) -> bool:
        """Tell whether the object is the one this call wrote: a retry after a lost answer meets its own
        object.
        """
        head = self._client.head_object(Bucket=self._bucket, Key=key)
        return bool(head.get("Metadata", {}).get(_WRITER) == writer)

    def _first_version(self, key: str) -> dict[str, str]:
        """Return the arguments that name the object's oldest version, none in a bucket without versions.

        Whoever may write may also put a newer version over an object (Object Lock does not prevent that), so the
        first one counts: with versions kept and deletion denied, a commitment cannot be replaced.
        """
        try:
            pages = self._client.get_paginator("list_object_versions").paginate(Bucket=self._bucket, Prefix=key)
            versions = [v for page in pages for v in page.get("Versions", []) if v["Key"] == key]
        except botocore.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("AccessDenied", "NotImplemented", "MethodNotAllowed"):
                return {}  # not told: read what a plain request gives
            raise
        if not versions or (len(versions) == 1 and versions[0]["VersionId"] == "null"):
            return {}
        # An object from before versioning was switched on is named "null", and can be asked for by that name.
        return {"VersionId": versions[-1]["VersionId"]}  # S3 lists the newest first

    @contextmanager
    def _open(self, name: str, first: bool = False) -> Iterator[Any]:
        key = self._prefix + check_name(name)
        with self._errors(f"read {key}"):
            try:
                version = self._first_version(key) if first else {}
                found = self._client.get_object(Bucket=self._bucket, Key=key, **version)
            except self._client.exceptions.NoSuchKey as error:
                raise NotFound(f"there is no {name} in {self.url}") from error
            given = version.get("VersionId") or found.get("VersionId")
            if given:
                self._versions[name] = given
            body = found["Body"]
            with body:  # not "as": that would give the connection underneath, which cannot tell a body cut short
                yield body

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        where = f"bucket {self._bucket} at {self._endpoint or 'AWS'}"
        try:
            yield
        except botocore.exceptions.ClientError as error:
            details = error.response.get("Error", {})
            code = str(details.get("Code", "unknown"))
            advice = _ADVICE.get(code, f"the server answered {code}: {details.get('Message', '')}")
            raise StoreError(f"cannot {doing} in {where}: {advice}") from error
        except (
            botocore.exceptions.NoCredentialsError,
            botocore.exceptions.PartialCredentialsError,
            botocore.exceptions.ProfileNotFound,
        ) as error:
            raise StoreError(
                f"cannot {doing} in {where}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            ) from error
        except (botocore.exceptions.BotoCoreError, HTTPError, OSError) as error:
            raise StoreError(
                f"cannot {doing} in {where}: {error}; check that the server runs and that the endpoint is right"
            ) from error


def _default_region() -> str | None:
    """Return a region for servers that ignore it: botocore refuses to sign without one."""
    return None if boto3.session.Session().region_name else "us-east-1"
