"""Settings of Prefect that our commands need; import this before ``prefect``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
    if "PREFECT_HOME" not in os.environ and not _can_write(Path("~/.prefect").expanduser()):
        # With a home that cannot be written Prefect's temporary server would be waited for in vain.
        defaults["PREFECT_HOME"] = str(_private_folder())
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _can_write(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)


def _private_folder() -> Path:
    """Return a folder of this user's among the temporary ones, the same each time unless somebody else has it."""
    folder = Path(tempfile.gettempdir()) / f"vt-prefect-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not private")
    except OSError:
        return Path(tempfile.mkdtemp(prefix="vt-prefect-"))
    return folder
