"""The compiled stream against NumPy's Philox: any sequence of requests, and what threads share."""

from __future__ import annotations

import numpy as np
import pytest

from vt_core.engine import streams
from vt_core.engine.streams import Stream

KEY = bytes(range(200, 216))


def numpys() -> np.random.Philox:
    return np.random.Philox(key=int.from_bytes(KEY, "little"))


@pytest.mark.parametrize("counts", [[0, 1, 2, 3, 4, 5, 6, 7, 64], [3, 1 << 18, 5], [(1 << 18) + 3, 1]])
def test_bits_are_those_of_numpy(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "worker_count", lambda: 3)
    ours, theirs = Stream(KEY), numpys()
    for n in counts:
        assert np.array_equal(ours.bits(n), theirs.random_raw(n))


@pytest.mark.parametrize("least", [0, 1, 1 << 63, (1 << 64) - 1, 1 << 64])
@pytest.mark.parametrize("n", [5, 1 << 18])
def test_at_least_compares_and_moves_on(least: int, n: int) -> None:
    ours, theirs = Stream(KEY), numpys()
    for count in (n, 3):
        expected = [int(v) >= least for v in theirs.random_raw(count)]
        assert ours.at_least(count, least).tolist() == expected


def test_the_reference_is_numpys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Stream(KEY)
    monkeypatch.setattr(streams, "_REFERENCE_ONLY", True)
    reference = Stream(KEY)
    for n in (3, 70):
        assert np.array_equal(compiled.bits(n), reference.bits(n))
        assert np.array_equal(compiled.at_least(n, 1 << 62), reference.at_least(n, 1 << 62))
