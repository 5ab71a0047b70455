"""The threads that the compiled kernels share (their loops release the interpreter lock)."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

_Result = TypeVar("_Result")

_helpers: SimpleQueue[Callable[[], None]] = SimpleQueue()
_helper_count = 0
_lock = threading.Lock()


def worker_count() -> int:
    """Return the number of threads: the processors this process may use."""
    return len(os.sched_getaffinity(0))


def share(work: Callable[[int], _Result], count: int, workers: int) -> list[_Result]:
    """Return ``[work(0), ..., work(count - 1)]``, computed by up to ``workers`` threads.

    The calling thread is one of them and never waits for a task that nobody has begun: where the others are late, it
    does all the work. Raises what ``work`` raises, once no task is running any more. When this returns, no other
    thread holds a reference to ``work`` or to what it returned: PyTorch copies a gradient that somebody else holds,
    and a late thread would so decide which operations a step has.
    """
    waiting = deque(range(count))
    shared: list[Callable[[int], _Result]] = [work]
    results: dict[int, _Result] = {}
    errors: list[BaseException] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def take_part() -> None:
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            try:
                if not errors:
                    results[task] = shared[0](task)
            except BaseException as error:
                errors.append(error)
            ended.put(None)

    helpers = _started(workers - 1)
    for _ in range(min(workers, count) - 1):
        helpers.put(take_part)
    take_part()
    for _ in range(count):
        ended.get()
    # Helpers that are late, or about to leave, still have this frame's cells, but nothing is in them any more.
    found, failed = [results.get(task) for task in range(count)], list(errors)
    for held in (shared, results, errors):
        held.clear()
    if failed:
        raise failed[0]
    return cast(list[_Result], found)


def _started(count: int) -> SimpleQueue[Callable[[], None]]:
    """Return the queue that at least ``count`` threads serve."""
    global _helper_count
    if _helper_count < count:
        with _lock:
            while _helper_count < count:
                threading.Thread(target=_serve, args=(_helpers,), name="vt-kernel", daemon=True).start()
                _helper_count += 1
    return _helpers


def _serve(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()


def _forget() -> None:
    # A forked child has the queue but not its threads: work given to them would wait for ever.
    global _helpers, _helper_count, _lock
    _helpers, _helper_count, _lock = SimpleQueue(), 0, threading.Lock()


os.register_at_fork(after_in_child=_forget)
