"""What this machine can do at most: the peaks that all other figures are held against."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from bench.timing import medians
from vt_core.numerics.threads import worker_count


def peaks(rounds: int = 5) -> dict[str, float]:
    """Return the peaks: ``copy`` and ``hash`` in bytes a second, ``mm64`` and ``mm32`` in operations a second.

    A copy's bytes are those it reads and those it writes; the hash is SHA-256 on all processors.
    """
    source = torch.zeros(1 << 24, dtype=torch.float64).uniform_()
    target = torch.empty_like(source)
    a = torch.randn(2048, 2048, dtype=torch.float64)
    b = a.float()
    block = memoryview(bytearray(1 << 20))
    cores = worker_count()
    with ThreadPoolExecutor(cores) as pool:
        runs: dict[str, Callable[[], Any]] = {
            "copy": lambda: target.copy_(source),
            "mm64": lambda: a @ a,
            "mm32": lambda: b @ b,
            "hash": lambda: list(pool.map(lambda _: hashlib.sha256(block).digest(), range(64 * cores))),
        }
        found = medians(rounds, runs)
    products = 2.0 * 2048**3
    return {
        "copy": 2.0 * source.numel() * 8 / found["copy"],
        "mm64": products / found["mm64"],
        "mm32": products / found["mm32"],
        "hash": 64.0 * cores * len(block) / found["hash"],
    }


def rows(found: dict[str, float]) -> list[dict[str, Any]]:
    """Return the peaks as rows of the results."""
    units = {"copy": "memory copy, GB/s read and written", "mm64": "float64 matrix product, GFLOP/s",
             "mm32": "float32 matrix product, GFLOP/s", "hash": "SHA-256 on all cores, GB/s"}  # fmt: skip
    return [
        {"workload": "machine", "figure": units[k], "value": v / 1e9, "baseline": None, "ratio": None}
        for k, v in found.items()
    ]
