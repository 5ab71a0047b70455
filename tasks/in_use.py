"""A mark on a workspace that a process works in; the kernel takes it away with the process, however that ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MARK = ".in-use"


@contextmanager
def in_use(workspace: Path) -> Iterator[None]:
    """Mark ``workspace`` (made if it is missing) as in use; several processes may do so at once."""
    workspace.mkdir(parents=True, exist_ok=True)
    fd = os.open(workspace / _MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@contextmanager
def claimed(workspace: Path) -> Iterator[bool]:
    """Tell whether nobody works in ``workspace``, and keep it so until this context ends.

    A workspace without a mark counts as in use: nobody knows who made it.
    """
    try:
        fd = os.open(workspace / _MARK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
