"""One child process that serves many DVC commands: a start of ``dvc`` costs seconds, a command in it much
less.

DVC is used through its command line, the interface that it keeps stable. The child (``python -m
tasks.dvc_process``) reads one JSON object a line on its standard input, ``{"argv": [...], "cwd": "..."}``,
runs ``dvc.cli.main`` and answers ``{"code": n, "output": "..."}``. Whatever DVC prints goes to a file, never
into the protocol.

The child has its own settings: no analytics, no check for updates, no system-wide or user-wide DVC
configuration, and a state directory that ends with it. It ends when its parent does, even if the parent is
killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vt_core.errors import StoreError

START_TIMEOUT_S = 180.0
COMMAND_TIMEOUT_S = 6 * 3600.0
MAX_OUTPUT = 200_000
"""Characters of a command's output that are kept, counted from its end."""


class DvcProcess:
    """A DVC child process, started by the first command and restarted after a crash. Safe to share by
    threads.
    """

    def __init__(self, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._state: tempfile.TemporaryDirectory[str] | None = None
        self._pending = b""

    def __enter__(self) -> DvcProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, argv: Sequence[str], cwd: Path, timeout_s: float | None = None) -> str:
        """Run ``dvc ARGV`` in the directory ``cwd`` and return what it printed.

        Raises :class:`StoreError` with DVC's own message if it fails, if the child dies, or after
        ``timeout_s`` seconds (then the child is killed). Either way the next call works.
        """
        command = "dvc " + " ".join(argv)
        request = json.dumps({"argv": list(argv), "cwd": str(cwd.absolute())}).encode() + b"\n"
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(request)
                process.stdin.flush()
                answer = self._answer(process, timeout_s or self._timeout_s, command)
            except BrokenPipeError as error:
                raise self._died(command) from error
            except BaseException:
                # Also for KeyboardInterrupt: the answer to this command must not be taken for the next one's.
                self._kill()
                raise
        if answer["code"] != 0:
            raise StoreError(f"{command} failed in {cwd}: {_message(answer['output'])}")
        return str(answer["output"])

    def close(self) -> None:
        """End the child and remove its state; a later ``run`` starts a new one."""
        with self._lock:
            self._kill()
            if self._state is not None:
                self._state.cleanup()
                self._state = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        if self._state is None:
            self._state = tempfile.TemporaryDirectory(prefix="vt-dvc-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            # -P: modules of the working directory must not shadow the real ones.
            [sys.executable, "-P", "-m", "tasks.dvc_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(Path(self._state.name)),
            cwd=self._state.name,
            # A group of its own, to be killed as a whole; and Ctrl-C reaches the parent only, which then
            # closes.
            start_new_session=True,
        )
        self._answer(self._process, START_TIMEOUT_S, "the start of dvc")
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float, command: str) -> dict[str, Any]:
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    self._kill()
                    raise StoreError(f"{command} did not end within {timeout_s:g} s and was stopped; try again")
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise self._died(command)
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, command: str) -> StoreError:
        process = self._process
        code = process.wait() if process is not None else None
        self._kill()
        return StoreError(f"the DVC process died (exit status {code}) during {command}; try again")

    def _kill(self) -> None:
        process, self._process, self._pending = self._process, None, b""
        if process is None:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # an unsent request, to a process that is gone
                    pipe.close()


def _environment(state: Path) -> dict[str, str]:
    """Return the child's environment; ``state`` receives the configuration and the caches of this one
    child.
    """
    settings = state / "config"
    settings.mkdir(exist_ok=True)
    # Without it each new workspace asks a server on the internet for the newest version of DVC.
    (settings / "config").write_text("[core]\n    analytics = false\n    check_update = false\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DVC_")}
    root = str(Path(__file__).resolve().parents[1])
    return kept | {
        "DVC_NO_ANALYTICS": "1",
        "DVC_STUDIO_OFFLINE": "1",
        "DVC_GLOBAL_CONFIG_DIR": str(settings),
        "DVC_SYSTEM_CONFIG_DIR": str(state / "none"),
        "DVC_SITE_CACHE_DIR": str(state / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH")))),
        "PYTHONUTF8": "1",  # whatever the locale: DVC's files and messages hold paths
        "COLUMNS": "200",
    }


def _message(output: str) -> str:
    """Return DVC's error lines, or the end of its output if it named none."""
    errors = output.find("ERROR: ")
    return (output[errors:] if errors >= 0 else output[-1000:]).strip()[:2000] or "it printed nothing"


# --- the child ---


def _serve() -> None:
    # The protocol moves to private descriptors (not inherited by DVC's own children), and the standard ones
    # are pointed elsewhere: stdin so that a question of DVC cannot eat a command, stdout so that it cannot
    # corrupt one.
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    state = os.getcwd()
    threading.Thread(target=_end_with_parent, args=(os.getppid(), state), daemon=True).start()
    from dvc.cli import main

    answers.write(b'{"ready":true}\n')
    for line in requests:
        answers.write(json.dumps(_execute(main, json.loads(line))).encode() + b"\n")
    shutil.rmtree(state, ignore_errors=True)  # the parent went without a word, so it cannot do it


def _execute(main: Any, request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        for descriptor in (1, 2):
            os.dup2(output.fileno(), descriptor)
        try:
            os.chdir(request["cwd"])
            code = main(request["argv"])
        except SystemExit as exit_:  # --help and --version
            code = exit_.code if isinstance(exit_.code, int) else 1
        except Exception as error:
            print(f"ERROR: {type(error).__name__}: {error}", file=sys.stderr)
            code = 255
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - MAX_OUTPUT))
        return {"code": int(code or 0), "output": output.read().decode("utf-8", "replace")}


def _end_with_parent(parent: int, state: str) -> None:
    """End this process, and remove its ``state`` directory, once ``parent`` is gone.

    An end of input is not seen while a command runs, and PR_SET_PDEATHSIG would strike when the *thread* that
    started us ends, so the parent's identity is watched.
    """
    while os.getppid() == parent:
        time.sleep(1)
    shutil.rmtree(state, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    _serve()
