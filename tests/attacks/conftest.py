"""Makes ``tests/support`` and ``tests/attacks`` importable, and holds the runs that all attacks share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# At the end of the path: tests/tasks and tests/flows must not be found before the packages of the same names.
sys.path.append(str(Path(__file__).resolve().parents[1]))


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where attacks are mounted on runs with and without a log; honest runs are trained once for all of them."""
    from attacks.zoo import Lab

    return {how: Lab(tmp_path_factory.mktemp(how)) for how in ("logged", "exact")}


@pytest.fixture
def lab(labs: dict[str, Any]) -> Any:
    """Where attacks are mounted on runs with a log."""
    return labs["logged"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The nets are tiny: a second thread only waits, and on a busy machine it waits long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
