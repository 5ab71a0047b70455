"""A whole installation of services in a folder of its own, for tests; see ``flows.services``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.config import Config

from flows.services import processes
from flows.services.layout import Layout, open_layout
from tasks.store import Store, open_store

ROOT = Path(__file__).resolve().parents[2]
SMALL_JOB = {"reference": "vt_core.jobs.digits:DigitsJob", "args": {"batch_size": 32, "width": 8}}


@dataclass
class Services:
    """Running services in ``folder``; commands run in ``cwd``, which is no checkout."""

    folder: Path
    cwd: Path

    @property
    def layout(self) -> Layout:
        return open_layout(self.folder)

    def control(self, command: str, *arguments: str) -> str:
        """Run ``python -m flows.services COMMAND`` and return what it prints; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.services", command, "--folder", str(self.folder), *arguments],
            cwd=self.cwd, env=clean_environment(), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pids(self) -> dict[str, int | None]:
        """Return the pid of each service, None if it does not run."""
        return {p.stem: processes.running(self.folder, p.stem) for p in sorted(self.folder.glob("*.pid"))}

    def environment(self, party: str) -> dict[str, str]:
        """Return the environment of a shell that uses the services with the keys of ``party``."""
        home = {"PREFECT_HOME": str(self.cwd / "prefect-home"), "COLUMNS": "200"}
        return {**clean_environment(), **self.layout.environment(party), **home}

    def run(self, party: str, *command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run ``python -m COMMAND`` with the keys of ``party``."""
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.cwd, env=self.environment(party), capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def vt(self, party: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``vt``; the store comes from the environment."""
        return self.run(party, "flows.cli.main", *arguments)

    def deployment(self, name: str, watch: bool = True, **parameters: Any) -> subprocess.CompletedProcess[str]:
        """Run a deployment as a client does, by ``prefect deployment run``."""
        given = [a for k, v in parameters.items() for a in ("--param", f"{k}={json.dumps(v)}")]
        return self.run("client", "prefect", "deployment", "run", name, *given, *(["--watch"] if watch else []))

    def store(self, party: str, patch: Any) -> Store:
        """Return the store with the keys of ``party``, which are put into this process's environment by ``patch``."""
        for name, value in self.layout.environment(party).items():
            patch.setenv(name, value)
        return open_store(self.layout.store)

    def client(self, party: str) -> Any:
        """Return a raw S3 client with the keys of ``party``."""
        access, secret = self.layout.keys[party]
        return boto3.session.Session().client(
            "s3", endpoint_url=self.layout.endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
            region_name="us-east-1", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}),
        )  # fmt: skip

    def write_params(self, name: str, **train: Any) -> str:
        """Write a small training's parameters; returns the file's absolute path."""
        path = self.cwd / name
        plain = {"job": SMALL_JOB, "train": {"seed": 3, "steps": 6, "segment_steps": 3, **train}}
        path.write_text(yaml.safe_dump(plain), encoding="utf-8")
        return str(path)

    def json(self, party: str, *arguments: str) -> dict[str, Any]:
        """Run ``vt ... --json`` and return the object it prints."""
        done = self.vt(party, *arguments, "--json")
        assert done.stdout.strip(), done.stderr
        plain: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return plain

    def row(self, run_id: str) -> dict[str, Any]:
        """Return the run's row of ``vt runs``."""
        rows = {row["run_id"]: row for row in self.json("client", "runs")["runs"]}
        return rows[run_id]


def clean_environment() -> dict[str, str]:
    """Return this process's environment without keys and addresses, able to import the checkout."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_", "VT_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "PASSIVE"}


def wait_for(condition: Callable[[], Any], seconds: float, what: str, pause: float = 0.3) -> Any:
    """Return the first true value of ``condition``; AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    raise AssertionError(f"after {seconds} s still waiting: {what}")
