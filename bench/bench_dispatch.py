"""What the dispatch mode costs for each operation in Python, beside the kernels.

    python -m bench.bench_dispatch [--json]

Operations on four elements under the engine's mode, whose roundings are left out, against the same operations under a
dispatch mode that does nothing; microseconds an operation. Runs are short and interleaved, and the fastest of each
counts: what another process takes is not the mode's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import Place, Rounding
from vt_core.engine.scale import Bound
from vt_core.engine.settings import common_settings
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid, OpClass

CALLS = 50
ROUNDS = 301
TARGET = 10.0  # microseconds


class NoRounding(Rounding):
    """Leaves every tensor as it is."""

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Do nothing."""

    def plain(self, x: Tensor, place: Place) -> None:
        """Do nothing."""


class EmptyMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operation as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``."""
        return func(*args, **(kwargs or {}))


def cases() -> dict[str, tuple[str, Callable[[], object]]]:
    """Return name -> (class, operation on four elements)."""
    x, y, m = torch.rand(4), torch.rand(4), torch.rand(2, 2)
    return {
        "mul": ("exact", lambda: torch.mul(x, y)),
        "mul by a number": ("exact", lambda: torch.mul(x, 0.3)),
        "add": ("exact", lambda: torch.add(x, y)),
        "add_": ("exact, in place", lambda: x.add_(y)),
        "square": ("canonical", lambda: torch.square(x)),
        "addcmul_": ("canonical, in place", lambda: x.addcmul_(y, y, value=0.3)),
        "exp": ("inexact", lambda: torch.exp(y)),
        "sum": ("inexact", lambda: torch.sum(y)),
        "mm": ("inexact", lambda: torch.mm(m, m)),
        "view": ("view", lambda: y.view(2, 2)),
    }


def microseconds(operation: Callable[[], object], mode: AbstractContextManager[Any], verified: VerifiedMode) -> float:
    """Return the time of one call, in one block of ``CALLS`` calls."""
    verified.begin_step(0, 1)
    with mode:
        start = time.perf_counter()
        for _ in range(CALLS):
            operation()
        return (time.perf_counter() - start) / CALLS * 1e6


def measure() -> dict[str, dict[str, Any]]:
    """Return for each operation its class and the least times without a mode, in an empty one, and in the engine's."""
    rounding = NoRounding(Grid.parse("float32"), DEFAULT["float64"], True)
    verified = VerifiedMode(torch.float64, rounding, Streams(0), ModuleTracker(), False)
    modes: dict[str, AbstractContextManager[Any]] = {"plain": nullcontext(), "empty": EmptyMode(), "engine": verified}  # type: ignore[no-untyped-call]
    found: dict[str, dict[str, Any]] = {}
    with common_settings(torch.float64):
        for name, (kind, operation) in cases().items():
            times: dict[str, list[float]] = {key: [] for key in modes}
            for _ in range(ROUNDS):
                for key, mode in modes.items():
                    times[key].append(microseconds(operation, mode, verified))
            least = {key: min(values) for key, values in times.items()}
            found[name] = {"class": kind, **least, "added": least["engine"] - least["empty"]}
    return found


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    rows = measure()
    if parser.parse_args().json:
        print(json.dumps(rows, indent=1))
        return
    print(f"us an operation   plain   empty  engine   added (aim: under {TARGET:.0f})")
    for name, row in rows.items():
        numbers = "".join(f"{row[key]:8.2f}" for key in ("plain", "empty", "engine", "added"))
        print(f"{name:<16}{numbers}   {row['class']}")


if __name__ == "__main__":
    main()
