"""``vt doctor``: can this machine train and audit? Each check runs the real thing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.cli.output import out

Check = dict[str, Any]


def examine(store: str | None, device: str) -> list[Check]:
    """Run all checks and return their results: name, ok, detail (what was found, or what to do)."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("libraries", _libraries),
        ("device", lambda: _device(device)),
        ("exact operations", lambda: _exact_operations(device)),
        ("rounding kernels", _kernels),
        ("profiles", _profiles),
        ("DVC", _dvc),
    ]
    if store is not None:
        checks.append(("store", lambda: _store(store)))
    return [_run(name, check) for name, check in checks]


def print_checks(checks: list[Check]) -> None:
    """Print the checks for a person."""
    for check in checks:
        mark = "[green]ok[/]  " if check["ok"] else "[red]FAIL[/]"
        out.print(f"{mark} {check['name']:<18} {check['detail']}")


def _run(name: str, check: Callable[[], str]) -> Check:
    try:
        return {"name": name, "ok": True, "detail": check()}
    except Exception as error:  # a check that breaks in any way has failed, and the others still run
        return {"name": name, "ok": False, "detail": f"{type(error).__name__}: {error}"}


def _libraries() -> str:
    from vt_core.training.environment import environment

    record = environment("cpu")
    versions = ", ".join(f"{k} {v}" for k, v in record["libraries"].items())
    return f"{versions}; {record['processor']}, {record['cpu_capability']}, {record['threads']} threads"


def _device(device: str) -> str:
    from vt_core.engine.settings import resolve_device

    return f"{resolve_device(device)} is usable"


def _exact_operations(device: str) -> str:
    import torch

    from vt_core.engine.proof import check_device

    results = check_device(torch.device(device))
    bad = [f"{op} ({detail})" for op, ok, detail in results if not ok]
    if bad:
        raise ValueError(
            f"not correctly rounded on {device}: {'; '.join(bad)}. Runs on this device may not replay elsewhere."
        )
    return f"{len(results)} operations agree with correctly rounded references on {device}"


def _kernels() -> str:
    import torch

    from vt_core.numerics import DEFAULT, Grid, OpClass, kernels, reference

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1 << 16, generator=generator, dtype=torch.float64)
    x[:8] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 5e-324, 1e-45, 3.5e38])
    tolerance, grid = DEFAULT["float64"].tolerances[OpClass.CONTRACTION], Grid.parse("float32")
    a, b = x.clone(), x.clone()
    fast = kernels.trainer_round_(a, tolerance, grid, True)
    slow = reference.trainer_round_(b, tolerance, grid, True)
    if not torch.equal(a.view(torch.int64), b.view(torch.int64)) or fast.fingerprint != slow.fingerprint:
        raise ValueError("the compiled rounding kernels differ from the reference; set VT_REFERENCE_KERNELS=1")
    return "compiled kernels equal the reference to the bit"


def _profiles() -> str:
    import subprocess
    import sys

    from vt_core.engine.profiles import PROFILES, environment_for

    program = (
        "import torch, hashlib; g = torch.Generator().manual_seed(1);"
        "x = torch.randn(257, 300, generator=g, dtype=torch.float64);"
        "y = torch.cat([(x @ x.T).ravel(), torch.softmax(x, 1).ravel(), x.sum().reshape(1)]);"
        "print(hashlib.sha256(y.numpy().tobytes()).hexdigest()[:8])"
    )
    found: dict[str, list[str]] = {}
    for name in ("default", "mkl-compatible", "aten-scalar", "threads-1", "portable"):
        if name not in PROFILES:
            continue
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment_for(name), capture_output=True, text=True, check=True
        )
        found.setdefault(done.stdout.strip(), []).append(name)
    groups = " | ".join(", ".join(names) for names in found.values())
    return f"{len(found)} groups of equal bits among the CPU profiles: {groups}"


def _dvc() -> str:
    from tasks.artifacts import ArtifactStore
    from tasks.store import DvcRemote

    with tempfile.TemporaryDirectory(prefix="vt-doctor-") as folder:
        remote = Path(folder) / "remote"
        remote.mkdir()
        with ArtifactStore(Path(folder) / "work", DvcRemote(str(remote))) as artifacts:
            artifacts.init()
            directory = Path(folder) / "work" / "probe"
            directory.mkdir()
            (directory / "file").write_bytes(os.urandom(64))
            pointer = artifacts.publish(directory)
            artifacts.fetch({"again/probe": pointer})
            if (Path(folder) / "work" / "again" / "probe" / "file").read_bytes() != (directory / "file").read_bytes():
                raise ValueError("DVC gave back other bytes than it was given")
    return "add, push and pull work"


def _store(url: str) -> str:
    from tasks.runs import list_runs
    from tasks.store import open_store

    store = open_store(url)
    return f"{store.url} can be read and holds {len(list_runs(store))} runs"
