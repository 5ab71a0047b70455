"""``vt`` needs no network, no writable home and no plain names: each test trains and audits under such conditions."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.services import SMALL_JOB, clean_environment

pytestmark = pytest.mark.slow

PYTHON = shlex.quote(sys.executable)
TRAIN = f"{PYTHON} -m flows.cli.main train --params params.yaml --run-id lonely --json"
AUDIT = f"{PYTHON} -m flows.cli.main audit lonely --segments 1 --json"


def can_unshare() -> str | None:
    """Return why network namespaces cannot be made here, None if they can."""
    try:
        done = subprocess.run(
            ["unshare", *NAMESPACE, "sh", "-c", "ip link set lo up"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "there is no unshare program"
    return done.stderr.strip() or "unshare failed" if done.returncode else None


# A user who is not root may make a network of his own in a user namespace of his own, where the kernel allows it.
NAMESPACE = ["--net"] if os.geteuid() == 0 else ["--net", "--user", "--map-root-user"]


def write(folder: Path, store: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"job": SMALL_JOB, "train": {"seed": 3, "steps": 2, "segment_steps": 2}, "store": store}
    (folder / "params.yaml").write_text(yaml.safe_dump(plain, allow_unicode=True), encoding="utf-8")


def last_json(text: str) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(text.splitlines()[-1])
    return plain


def test_train_and_audit_without_a_network(tmp_path: Path):
    reason = can_unshare()
    if reason:
        pytest.skip(f"no network namespace: {reason}")
    write(tmp_path, str(tmp_path / "store"))
    # The sockets of everything that runs in there are seen by strace in no need: the namespace has loopback only,
    # and a connection to any other address fails at once with "Network is unreachable".
    probe = (
        "import socket\n"
        "try: socket.create_connection(('192.0.2.1', 80), 2)\n"
        "except OSError as error: print('unreachable', error.errno)"
    )
    script = (
        f"ip link set lo up && {PYTHON} -c {shlex.quote(probe)} && ip route show && {TRAIN} && {AUDIT} && "
        "cat /proc/net/snmp | grep '^Ip:' | tail -1"
    )
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        ["unshare", *NAMESPACE, "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**clean_environment(), "HOME": str(home)}, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("unreachable"), lines[0]
    trained, audited, counters = json.loads(lines[1]), json.loads(lines[2]), lines[3].split()
    assert audited["verdict"] == "verified" and audited["state"] == trained["state_digest"]
    # OutNoRoutes: packets that had nowhere to go. The probe is one; nothing of ours adds to it beyond DNS-less retries.
    assert int(counters[12]) <= 4, f"something wanted to leave this machine: {counters}"


def test_strange_paths_read_only_home_and_a_store_that_moves(tmp_path: Path):
    trainer, auditor = tmp_path / "Trainer's Ordner ü", tmp_path / "審計 #1"
    home = tmp_path / "home ~"
    home.mkdir()
    home.chmod(0o555)
    write(trainer, "Speicher $HOME %41")
    auditor.mkdir()
    environment = {**clean_environment(), "HOME": str(home)}
    environment.pop("PREFECT_HOME", None)
    run: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    # Root may write everywhere: without its capabilities it is like anybody else.
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--inh-caps", "-dac_override"]
    prefix = drop if os.geteuid() == 0 else []
    train = [*prefix, "sh", "-c", TRAIN]
    done = subprocess.run(train, cwd=trainer, env=environment, **run)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = last_json(done.stdout)
    assert not list(home.iterdir()), "nothing can have been written to the home"

    moved = tmp_path / "anderswo" / "Zeugnisse – ñ"
    moved.parent.mkdir()
    (trainer / "Speicher $HOME %41").rename(moved)
    audit = [*prefix, "sh", "-c", f"{AUDIT} --store {shlex.quote(str(moved))}"]
    done = subprocess.run(audit, cwd=auditor, env=environment, **run)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = last_json(done.stdout)
    assert verdict["verdict"] == "verified" and verdict["state"] == trained["state_digest"]
    # The trainer's workspace is told of the new place by the next call: nothing is left to do there, and all is found.
    url = moved.as_uri()
    again = [*prefix, "sh", "-c", f"{TRAIN} --store {shlex.quote(url)}"]
    done = subprocess.run(again, cwd=trainer, env=environment, **run)
    assert done.returncode == 0 and last_json(done.stdout)["root"] == trained["root"], done.stdout + done.stderr
    assert not (trainer / "Speicher $HOME %41").exists(), "the old place is not made again"
