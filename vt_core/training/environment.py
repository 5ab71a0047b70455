"""What a replay was computed on: recorded beside the evidence of both sides, never decisive."""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Any

import torch

from vt_core import __version__
from vt_core.training.spec import ENGINE, libraries

MAX_ENVIRONMENT_BYTES = 1 << 16  # of a record that goes into a verdict; ours have about 700 bytes
_VARIABLES = (
    "MKL_CBWR",
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VT_PROFILE",
)


def is_flat(record: Any) -> bool:
    """Tell whether ``record`` has the form that :func:`environment` writes: scalars, and objects of scalars."""
    if not isinstance(record, dict):
        return False
    inner = [v for value in record.values() for v in (value.values() if isinstance(value, dict) else (value,))]
    return not any(isinstance(value, (dict, list)) for value in inner)


def environment(device: str) -> dict[str, Any]:
    """Return hardware, library versions and the settings that select code paths, as plain JSON."""
    record: dict[str, Any] = {
        "verifiable-training": __version__,
        "engine": ENGINE,
        "libraries": libraries(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "device": device,
    }
    if device.startswith("cuda") and torch.cuda.is_available():
        record["gpu"] = torch.cuda.get_device_name(torch.device(device))
        record["cuda"] = str(torch.version.cuda)
    return record


@cache
def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
