"""What a flow tells those who watch it: tags, its name, and structured log lines.

Log lines of training and replay are ``key=value`` pairs and carry the same fields in ``record.vt`` for handlers that
want structure. With ``VT_LOG_JSON=FILE`` every line is also appended to FILE as one JSON object.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from prefect import get_client, runtime, tags
from prefect.logging import get_run_logger

from tasks.reporter import Silent, reporter

STORE_LIMIT = "vt-store"
"""Tag of the tasks that move data to or from the store: a concurrency limit for this tag on the server bounds how many
run at once (``make services`` makes one; ``prefect concurrency-limit create vt-store N``)."""

_EVERY_S = 10.0


@contextmanager
def observed(run_id: str, what: str) -> Iterator[None]:
    """Tag what runs inside with the run, name the flow run, and log progress unless somebody listens already."""
    name_flow_run(f"{what}-{run_id}")
    listens = not isinstance(reporter.get(), Silent)
    token = None if listens else reporter.set(LogReporter(run_id, _logger()))
    try:
        with _tagged(f"run:{run_id}"):
            yield
    finally:
        if token is not None:
            reporter.reset(token)


def segment_tags(index: int) -> AbstractContextManager[Any]:
    """Return a context in which task runs carry the segment's tag."""
    return _tagged(f"segment:{index}")


def store_tags() -> AbstractContextManager[Any]:
    """Return a context in which task runs count against the store's limit."""
    return _tagged(STORE_LIMIT)


def _tagged(tag: str) -> AbstractContextManager[Any]:
    """Tag task runs of deployed flows only: Prefect asks the server about each tag, about a second a task run."""
    return tags(tag) if runtime.deployment.id else nullcontext()


def name_flow_run(name: str) -> None:
    """Give the current flow run a name that says which run it is about (known only once it has begun)."""
    flow_run_id = runtime.flow_run.id
    if flow_run_id is None or runtime.flow_run.name == name:
        return
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(flow_run_id, name=name)
    except Exception as error:  # a name is for people: never a reason to stop
        logging.getLogger("vt").warning("the flow run could not be named %s: %s", name, error)


class LogReporter:
    """A reporter for workers: a line when a part starts and ends, and every ten seconds in between."""

    def __init__(self, run_id: str, logger: Any) -> None:
        """Log to ``logger``, and to the file that VT_LOG_JSON names."""
        self._run, self._logger = run_id, logger
        self._file = os.environ.get("VT_LOG_JSON")
        self._label, self._total, self._done, self._said = "", 0, 0, 0.0
        self._first = 1
        self._segment: int | None = None

    def start(self, label: str, total: int, first: int = 1, segment: int | None = None) -> None:
        """Start a part."""
        self._label, self._total, self._done, self._said = label, total, 0, time.monotonic()
        self._first, self._segment = first, segment
        self._say("started", steps=total)

    def advance(self, note: str = "") -> None:
        """One step is done."""
        self._done += 1
        if self._done == self._total or time.monotonic() - self._said >= _EVERY_S:
            self._said = time.monotonic()
            event = "done" if self._done == self._total else "running"
            self._say(event, step=self._first + self._done - 1, done=self._done, steps=self._total, note=note)

    def message(self, text: str) -> None:
        """Log one line."""
        self._say("note", note=text)

    def _say(self, event: str, **fields: Any) -> None:
        known = {"segment": self._segment, "part": self._label or None, "event": event, **fields}
        record = {"run": self._run, **{k: v for k, v in known.items() if v is not None and v != ""}}
        self._logger.info(" ".join(f"{k}={v!r}" for k, v in record.items()), extra={"vt": record})
        if self._file:
            line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **record})
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(line + "\n")


def _logger() -> Any:
    try:
        return get_run_logger()
    except RuntimeError:  # outside a flow run
        return logging.getLogger("vt")
