"""One Prefect server for several processes: a start costs 10 to 30 s, so it is paid once and beside other work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.services.layout import free_ports
from vt_core.errors import VtError

_START_TIMEOUT_S = 180


class Server:
    """A server that is starting; ``environment`` makes a process use it."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None, log: Path | None, home: Path | None) -> None:
        self._url, self._process, self._log = url, process, log
        self.environment = {"PREFECT_API_URL": url}
        if home is not None:
            self.environment["PREFECT_HOME"] = str(home)

    def wait(self) -> float:
        """Wait until the server answers; returns the seconds waited. Raises VtError if it does not start."""
        began = time.perf_counter()
        while time.perf_counter() - began < _START_TIMEOUT_S:
            if self._process is not None and self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self._url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        tail = self._log.read_text(errors="replace")[-2000:] if self._log and self._log.exists() else ""
        raise VtError(f"the Prefect server at {self._url} does not answer\n{tail}")


@contextmanager
def prefect_server(home: Path, verbose: bool = False) -> Iterator[Server]:
    """Start a Prefect server on a free port of 127.0.0.1, or use the one that PREFECT_API_URL names.

    It keeps its database in ``home`` and ends with this context.
    """
    url = os.environ.get("PREFECT_API_URL")
    if url:
        yield Server(url.rstrip("/"), None, None, None)
        return
    home.mkdir(parents=True, exist_ok=True)
    port = free_ports(1)[0]
    log = home / "server.log"
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_LOGGING_SERVER_LEVEL": "WARNING"}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port), "--no-ui"],
            env=environment, stdin=subprocess.DEVNULL, stdout=None if verbose else sink,
            stderr=None if verbose else sink, start_new_session=True,
        )  # fmt: skip
    try:
        yield Server(f"http://127.0.0.1:{port}/api", process, log, home)
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
