"""The threads that the compiled kernels share (their loops release the interpreter lock)."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def worker_count() -> int:
    """Return the number of threads: the processors this process may use."""
    return len(os.sched_getaffinity(0))


def pool() -> ThreadPoolExecutor:
    """Return this process's pool of :func:`worker_count` threads."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(worker_count(), thread_name_prefix="vt-rounding")
        return _pool


def _forget() -> None:
    # A forked child has the pool's object but not its threads: work given to it would wait for ever.
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
