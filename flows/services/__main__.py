"""``python -m flows.services start|stop|status [--folder .vt/services]``: a whole installation on loopback."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from flows import settings
from flows.cli.server import Server
from flows.services import processes, s3
from flows.services.layout import Layout, open_layout
from vt_core.errors import VtError

# pool -> whose keys its workers get. Replays have a pool of their own: in the auditor pool, audits that wait for
# their replays could take all the workers that should do them.
POOLS = {"trainer": "trainer", "auditor": "auditor", "replayer": "auditor"}
NAMES = ("worker-trainer", "worker-auditor", "prefect", "s3")


def main() -> int:
    """Run one command; errors are one line and exit code 3."""
    parser = argparse.ArgumentParser(prog="python -m flows.services", description=__doc__)
    parser.add_argument("command", choices=("start", "stop", "status"))
    parser.add_argument(
        "--folder", type=Path, default=Path(".vt/services"), help="data, logs and keys (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=1, help="workers of the auditor pool (default: %(default)s)")
    parser.add_argument(
        "--replayers", type=int, default=0,
        help="workers for audits that fan out with replay_deployment=replay/default (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--prefect-port", type=int, default=None,
        help="of a new folder: Prefect's port, 0 for any free one (default: 4200 if it is free)",
    )  # fmt: skip
    given = parser.parse_args()
    settings.apply()
    folder = given.folder.absolute()
    try:
        if given.command == "start":
            return start(folder, given.workers, given.replayers, given.prefect_port)
        return stop(folder) if given.command == "stop" else status(folder)
    except (VtError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


def start(folder: Path, workers: int = 1, replayers: int = 0, prefect_port: int | None = None) -> int:
    """Start what does not run yet: S3, Prefect, pools, deployments, workers. Safe to call again."""
    layout = open_layout(folder, prefect_port)
    start_s3(layout)
    start_prefect(layout)
    _say("waiting for the Prefect server (10 to 30 s) and SeaweedFS")
    Server(layout.api_url, None, folder / "prefect.log", None).wait()
    s3.wait_and_prepare(layout)
    for name in ("s3", "prefect"):
        processes.check_alive(folder, name)
    _deploy(layout)
    counts = {"trainer": 1, "auditor": workers, "replayer": replayers}
    for pool in POOLS:
        for n in range(1, counts[pool] + 1):
            start_worker(layout, pool, n)
    _point_prefect_here(layout)
    return status(folder)


def start_s3(layout: Layout) -> None:
    """Start the S3 server unless it runs."""
    environment = {**_clean(), "GOMEMLIMIT": "400MiB", "HOME": layout.folder}
    processes.start(layout.path, "s3", s3.command(layout), environment)


def start_worker(layout: Layout, pool: str, number: int = 1) -> None:
    """Start a worker of ``pool`` unless it runs; its environment holds the keys of that pool's party only."""
    name = f"worker-{pool}" + (f"-{number}" if number > 1 else "")
    command = ["-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", "--name", name]
    limit = ["--limit", "1", "--install-policy", "never"]
    environment = _prefect(layout, layout.environment(POOLS[pool]))
    processes.start(layout.path, name, [sys.executable, *command, *limit], environment)


def start_prefect(layout: Layout) -> None:
    """Start the Prefect server unless it runs; its state is in SQLite, or where VT_DATABASE_URL says."""
    (layout.path / "prefect-home").mkdir(exist_ok=True)
    server = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(layout.prefect_port)]
    processes.start(layout.path, "prefect", [sys.executable, *server], _prefect(layout, {}))


def stop(folder: Path) -> int:
    """End just the processes that this folder started, workers first."""
    saved = sorted((p.stem for p in folder.glob("*.pid")), key=lambda n: (not n.startswith("worker"), n == "s3", n))
    for name in saved:
        _say(f"{name}: {'stopped' if processes.stop(folder, name) else 'was not running'}")
    if (folder / "services.json").exists():
        _point_prefect_away(open_layout(folder))
    return 0


def status(folder: Path) -> int:
    """Say what runs and how to use it; exit code 3 if something does not run."""
    if not (folder / "services.json").exists():
        _say(f"no services in {folder}; start them with: make services")
        return 3
    layout = open_layout(folder)
    names = sorted({*NAMES, *(p.stem for p in folder.glob("*.pid"))})
    down = [name for name in names if processes.running(folder, name) is None]
    for name in names:
        _say(f"{name}: {'down, see ' + str(folder / (name + '.log')) if name in down else 'running'}")
    _say(
        f"Prefect: {layout.api_url.removesuffix('/api')}   store: {layout.store} at {layout.endpoint}\n"
        f"to use them from this shell:  . {os.path.relpath(folder)}/client.env\n"
        f"then: prefect deployment run 'train/default' --watch;  vt runs --store {layout.store}"
    )
    return 3 if down else 0


def _deploy(layout: Layout) -> None:
    """Make pools, the automation and deployments; existing deployments are brought up to date."""
    root = Path(__file__).parents[2]
    environment = {
        **_prefect(layout, {}),
        "VT_HOME": str(root),
        "VT_STORE": layout.store,
        "VT_WORKSPACE": layout.workspace,
    }
    program = [sys.executable, "-m", "prefect", "--no-prompt"]
    _run([sys.executable, "-m", "flows.services.pools", *POOLS], environment, root)
    _run([*program, "deploy", "--all"], environment, root)


def _run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VtError(f"{' '.join(command[2:])} failed:\n{(done.stdout + done.stderr)[-1500:]}")


def _point_prefect_here(layout: Layout) -> None:
    """Let the prefect command find this server when it is called in this folder, unless it has settings already."""
    settings_file = Path("prefect.toml")
    if not settings_file.exists():
        settings_file.write_text(_settings(layout), encoding="utf-8")


def _point_prefect_away(layout: Layout) -> None:
    """Remove the settings that :func:`_point_prefect_here` wrote: they would send `vt train` to a dead server."""
    settings_file = Path("prefect.toml")
    if settings_file.exists() and settings_file.read_text(encoding="utf-8") == _settings(layout):
        settings_file.unlink()


def _settings(layout: Layout) -> str:
    return f'# written by make services\n[api]\nurl = "{layout.api_url}"\n'


def _clean() -> dict[str, str]:
    """This process's environment without anybody's keys: each service gets its own and no others."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PREFECT_API", "VT_STORE", "VT_KEY"))}


def _prefect(layout: Layout, extra: dict[str, str]) -> dict[str, str]:
    database = {}
    url = os.environ.get("VT_DATABASE_URL")  # PostgreSQL: postgresql+asyncpg://...
    if url:
        database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}
    return {
        **_clean(),
        "PREFECT_API_URL": layout.api_url,
        "PREFECT_HOME": str(layout.path / "prefect-home"),
        "PREFECT_LOGGING_LEVEL": "INFO",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # see pools.py
        **database,
        **extra,
    }


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
