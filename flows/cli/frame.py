"""The frame of every command: settings, profile, and errors as one line with exit code 3; and which store is meant."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows import settings
from flows.cli.output import err, fail


@contextmanager
def command(as_json: bool, verbose: bool, profile: str | None) -> Iterator[None]:
    """Frame of every command: settings, profile, and errors as one line with exit code 3."""
    from vt_core.errors import VtError

    try:
        settings.apply(verbose)
        if profile is not None:
            reexecute(profile)
        yield
    except VtError as error:
        fail(str(error), type(error).__name__, as_json)
    except KeyboardInterrupt:
        err.print("interrupted; start the same command again with the same --run-id to go on")
        raise SystemExit(130) from None
    except OSError as error:
        fail(f"{error}. Check the path, its permissions and the free space.", type(error).__name__, as_json)
    except RuntimeError as error:
        if verbose:
            raise
        fail(f"{error} (--verbose shows more)", type(error).__name__, as_json)
    except Exception as error:
        # Anything else is a fault of ours and shows its traceback; code 1 would otherwise pass for a verdict.
        if verbose or type(error).__module__.partition(".")[0] not in ("httpx", "httpcore", "prefect"):
            raise
        fail(
            f"the Prefect server failed or went away ({error}); start the same command again with the same --run-id",
            type(error).__name__, as_json,
        )  # fmt: skip


def reexecute(profile: str) -> None:
    """Replace this process by one under ``profile``; returns if this process is under it already."""
    from vt_core.engine.profiles import current_profile, environment_for

    if current_profile() == profile:
        return
    environment = environment_for(profile)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "flows.cli.main", *sys.argv[1:]], environment)


def store_url(store: str | None, params: Path) -> str:
    """Return the store that the option or the parameter file names. Raises SpecError if neither does."""
    from tasks.params import load_params
    from vt_core.errors import SpecError

    url = store or (load_params(params).store if params.exists() else None)
    if url is None:
        raise SpecError("no store: give --store URL, or --params FILE with 'store:' in it")
    return url
