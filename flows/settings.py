"""Settings of Prefect that our commands need; import this before ``prefect``."""

from __future__ import annotations

import os


def apply(verbose: bool = False) -> None:
    """Set defaults in the environment; what a user has set already stays as it is."""
    defaults = {
        # A fresh home takes up to 32 s to the first flow; the default limit of 20 s fails.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "1",
        # Threads that spin while they wait steal the core from those that work.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if not verbose:
        defaults |= {"PREFECT_LOGGING_LEVEL": "CRITICAL", "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
