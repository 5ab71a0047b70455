"""Medians of interleaved runs: what slows one of them for a while slows the others alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def in_turns(rounds: int, runs: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Return name -> seconds of each of ``rounds`` calls, interleaved, after one call each to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            taken = seconds(run)
            if turn:
                times[name].append(taken)
    return times


def medians(rounds: int, runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return name -> median seconds of :func:`in_turns`."""
    return {name: statistics.median(taken) for name, taken in in_turns(rounds, runs).items()}
