"""One Prefect server for all tests of flows and of the command line, and a way to run ``vt`` as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.server import prefect_server

# At the end of the path: tests/flows must not be found before the package of the same name.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.services import Services


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def prefect_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as server:
        server.wait()
        yield server.environment


@pytest.fixture
def vt_environment(prefect_environment: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_", "VT_"))}
    return {**kept, **prefect_environment, "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "200"}


@pytest.fixture
def vt(tmp_path: Path, vt_environment: dict[str, str]) -> Callable[..., Done]:
    def run(*arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli.main", *arguments],
            cwd=cwd or tmp_path,
            env={**vt_environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def params(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "params.yaml", **train: Any) -> Path:
        plain = {
            "job": {"reference": "vt_core.jobs.digits:DigitsJob", "args": {"batch_size": 32, "width": 8}},
            "train": {"seed": 3, "steps": 6, "segment_steps": 3, **train},
            "store": str(tmp_path / "store"),
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(plain))
        return path

    return write


@pytest.fixture(scope="session")
def started_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("services")
    services = Services(folder / "s", folder)
    try:
        yield services
    finally:
        services.control("stop")


@pytest.fixture(scope="module")
def services(started_services: Services) -> Services:
    """Running services (those of an earlier module if they still run), with two workers for replays."""
    pids = started_services.pids()
    if not pids or None in pids.values():
        started_services.control("start", "--replayers", "2", "--prefect-port", "0")
    return started_services
