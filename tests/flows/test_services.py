"""The installation of ``make services`` as its users meet it: deployments, the audit that a seal starts, fan-out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from support.services import Services, clean_environment, wait_for

from flows.services.layout import free_ports, open_layout
from tasks.params import load_params
from tasks.training import trainer_from_params

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def trained(services: Services) -> str:
    """A run trained by the deployment; its seal starts an audit."""
    done = services.deployment("train/default", params=services.write_params("first.yaml"), run_id="first")
    assert done.returncode == 0 and "Flow run finished successfully" in done.stdout, done.stdout + done.stderr
    return "first"


@pytest.fixture(scope="module")
def verdict(services: Services, trained: str) -> dict[str, Any]:
    """The row of ``vt watch`` once the audit that the seal has started is through."""
    done = services.vt("client", "watch", trained, "--until", "verdict", "--json")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, (row, done.stderr)
    return row


def test_a_second_start_is_harmless(services: Services):
    before = services.pids()
    assert None not in before.values(), before
    said = services.control("start", "--replayers", "2")
    assert services.pids() == before and "down" not in said
    assert services.layout.store in services.control("status")


def test_nobody_else_can_read_the_keys(services: Services):
    assert services.folder.stat().st_mode & 0o077 == 0
    for name in ("services.json", "s3.json", "trainer.env", "auditor.env", "client.env"):
        assert (services.folder / name).stat().st_mode & 0o077 == 0, name
    layout = services.layout
    for party in ("trainer", "auditor"):  # a worker's environment holds its own keys and nobody else's
        pid = services.pids()[f"worker-{party}"]
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert layout.keys[party][1] in environment
        for other in set(layout.keys) - {party}:
            assert layout.keys[other][1] not in environment
    assert layout.keys["trainer"][1] not in repr(layout)


def test_the_seal_starts_the_audit(services: Services, verdict: dict[str, Any]):
    assert verdict["verdict"] == "verified" and verdict["audited"] == [0, 1, 2] and verdict["segments"] == 3
    row = services.row("first")
    assert (row["sealed"], row["published"], row["verdict"], row["audited_share"]) == (True, 3, "verified", 1.0)
    shown = services.vt("client", "runs").stdout
    assert "first" in shown and "DigitsJob" in shown and "100%" in shown and "verified" in shown
    # The verdict lies where only auditors write, and the workers left nothing in the checkout.
    names = services.json("client", "show", "first")["verdicts"]
    assert len(names) == 1 and names[0]["verdict"] == "verified"
    # It names the versions of the commitments it rests on: the first ones.
    with pytest.MonkeyPatch.context() as patch:
        rests_on = json.loads(services.store("client", patch).verdicts.read(names[0]["name"]))["versions"]
    base = "prod/commitments/runs/first/"
    listed = services.client("client").list_object_versions(Bucket="evidence", Prefix=base)["Versions"]
    kept = {v["Key"].removeprefix(base): v["VersionId"] for v in listed}
    assert rests_on == {name: kept[name] for name in ("spec.json", "seal.json")}
    assert (services.folder / "work" / "train" / "first").is_dir()
    assert not any((services.folder / "work" / "audit").iterdir()), "fetched evidence is removed after the audit"


def test_replays_in_other_workers_give_the_same_verdict(services: Services, verdict: dict[str, Any]):
    done = services.deployment("audit/default", run_id="first", segments="1,2", replay_deployment="replay/default")
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = services.json("client", "show", "first")["verdicts"]
    assert len(verdicts) == 2 and verdicts[1]["verdict"] == "verified"
    assert verdicts[1]["coverage"]["replayed"] == 2
    with pytest.MonkeyPatch.context() as patch:
        store = services.store("client", patch)
        whole, fanned = (json.loads(store.verdicts.read(v["name"])) for v in verdicts)
        board = store.verdicts.list("replays/first/")
    assert len(board) == 2, board
    same = ("spec", "root", "state", "verdict", "reason")
    assert [whole[k] for k in same] == [fanned[k] for k in same]
    own = ("seconds", "proof_of_replay")  # each audit opens other places
    plain = [
        [{k: v for k, v in row.items() if k not in own} for row in rows]
        for rows in (whole["segments"][1:], fanned["segments"])
    ]
    assert plain[0] == plain[1]
    assert all(row["proof_of_replay"]["path"] for row in fanned["segments"])
    assert fanned["state_checked"] and list(fanned["trainer_environments"]) == ["from_segment_1"]
    assert services.row("first")["unproven"] == 0
    # Two workers took part: each replayed one of the two segments.
    logs = [(services.folder / f"worker-replayer{n}.log").read_text(errors="replace") for n in ("", "-2")]
    assert all("Completed" in log or "exited cleanly" in log for log in logs), [log[-500:] for log in logs]


def test_the_sampler_audits_what_nobody_has_audited(services: Services, verdict: dict[str, Any]):
    # Whatever other tests have left unaudited would be drawn just as well.
    done = services.deployment("audit-sampler/default", segments=1000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(row["audited_share"] == 1.0 for row in services.json("client", "runs")["runs"] if row["sealed"])
    before = len(services.json("client", "show", "first")["verdicts"])
    with pytest.MonkeyPatch.context() as patch:
        services.store("trainer", patch)
        path = Path(services.write_params("second.yaml", steps=2, segment_steps=2))
        # Without Prefect: no event tells of this run, so nothing audits it by itself.
        trainer = trainer_from_params(load_params(path), services.layout.store, "second", services.cwd / "own")
        with trainer.open():
            for index in range(trainer.begin(), trainer.published.segment_count):
                trainer.publish(trainer.train(index))
            trainer.seal()
    assert services.row("second")["verdict"] is None
    done = services.deployment("audit-sampler/default", segments=1)
    assert done.returncode == 0, done.stdout + done.stderr
    row = services.row("second")
    assert row["verdict"] == "verified" and len(row["audited"]) == 1 and row["audited_share"] == 0.5
    assert len(services.json("client", "show", "first")["verdicts"]) == before, "an audited run is left alone"


def test_stop_ends_just_its_own_processes(services: Services):
    # A stranger whose pid stands in a stale pid file (the number was reused) must survive.
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        (services.folder / "stale.pid").write_text(json.dumps({"pid": stranger.pid, "began": "1"}))
        pids = [pid for pid in services.pids().values() if pid]
        assert len(pids) == 6, pids
        said = services.control("stop")
        assert said.count(": stopped") == 6 and "stale: was not running" in said
        assert stranger.poll() is None
        wait_for(lambda: not any(_runs(pid) for pid in pids), 10, "the services' processes")
        assert not list(services.folder.glob("*.pid")) and not (services.cwd / "prefect.toml").exists()
        done = services.run("client", "flows.services", "status", "--folder", str(services.folder))
        assert done.returncode == 3 and "down" in done.stdout
    finally:
        stranger.kill()
        stranger.wait()


def test_layout_is_kept_and_takes_any_free_port(tmp_path: Path):
    first = open_layout(tmp_path / "ä folder", prefect_port=0)
    assert first.prefect_port != 4200 and first.prefect_port not in first.s3_ports.values()
    assert open_layout(tmp_path / "ä folder", prefect_port=1) == first, "a saved layout keeps its ports and keys"
    assert len({key for pair in first.keys.values() for key in pair}) == 8


@pytest.mark.skipif(not Path("/usr/lib/postgresql").exists(), reason="PostgreSQL's server is not installed")
def test_prefect_on_postgresql(tmp_path: Path):
    """The server keeps its state in PostgreSQL if VT_DATABASE_URL says so."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not binaries:
        pytest.skip("PostgreSQL's server is not installed, only its client")
    bin_folder = binaries[-1].parent
    data = tmp_path / "pg"
    data.mkdir()
    user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        import pwd

        account = pwd.getpwnam("postgres")
        ours = [p for p in tmp_path.parents if p.is_relative_to(tempfile.gettempdir()) and p.stat().st_uid == 0]
        for folder in (data, tmp_path, *(p for p in ours if p != Path(tempfile.gettempdir()))):
            os.chmod(folder, folder.stat().st_mode | 0o011)
        os.chown(data, account.pw_uid, account.pw_gid)
        user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    (port, prefect_port) = free_ports(2)
    quiet: dict[str, Any] = {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **user}
    subprocess.run(
        [bin_folder / "initdb", "-D", data / "d", "-U", "prefect", "-A", "trust", "-E", "UTF8", "--no-sync"],
        check=True, **quiet,
    )  # fmt: skip
    server = ["-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={data}"]
    database = subprocess.Popen([bin_folder / "postgres", "-D", data / "d", *server], **quiet)
    try:
        ready = [bin_folder / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, 30, "PostgreSQL")
        url = f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
        # Only the Prefect part of the installation: the same environment that `start` gives it.
        code = (
            "import sys; from pathlib import Path; from flows.services import __main__ as m, processes\n"
            "from flows.services.layout import open_layout; from flows.cli.server import Server\n"
            f"folder = Path({str(tmp_path / 's')!r}); layout = open_layout(folder, {prefect_port})\n"
            "m.start_prefect(layout)\n"
            "Server(layout.api_url, None, folder / 'prefect.log', None).wait()\n"
        )
        environment = {**clean_environment(), "VT_DATABASE_URL": url}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=200)
        query = [
            bin_folder / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "-d", "postgres", "-tAc",
            "select count(*) from information_schema.tables where table_name = 'flow_run'",
        ]  # fmt: skip
        began = time.monotonic()
        found = wait_for(
            lambda: subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() == "1",
            30, "Prefect's tables in PostgreSQL",
        )  # fmt: skip
        assert found, time.monotonic() - began
        assert not list((tmp_path / "s" / "prefect-home").glob("*.db")), "no SQLite beside it"
    finally:
        subprocess.run(
            [sys.executable, "-m", "flows.services", "stop", "--folder", str(tmp_path / "s")],
            env=clean_environment(), cwd=tmp_path, check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        database.terminate()
        database.wait(timeout=20)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
