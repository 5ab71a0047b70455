"""Which samples a step uses: a pure function of seed and step; every sample once an epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vt_core.engine.streams import Streams
from vt_core.training.sampler import Sampler


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 1 << 63), st.integers(0, 3))
def test_an_epoch_uses_every_sample_at_most_once(size: int, batch: int, seed: int, epoch: int) -> None:
    batch = min(batch, size)
    sampler = Sampler(Streams(seed), size, batch)
    per_epoch = size // batch
    first = epoch * per_epoch + 1
    used = np.concatenate([sampler.indices(s) for s in range(first, first + per_epoch)])
    assert used.dtype == np.int64
    assert {sampler.epoch(s) for s in range(first, first + per_epoch)} == {epoch}
    assert sampler.epoch(first + per_epoch) == epoch + 1
    assert len(set(used.tolist())) == len(used) == per_epoch * batch
    assert used.min() >= 0 and used.max() < size


def test_steps_may_be_asked_in_any_order() -> None:
    """A resumed run and a parallel audit start anywhere."""
    forward = Sampler(Streams(3), 100, 8)
    wanted = {s: forward.indices(s).tolist() for s in range(1, 40)}
    other = Sampler(Streams(3), 100, 8)
    for step in (39, 1, 13, 12, 25, 2, 39, 24):
        assert other.indices(step).tolist() == wanted[step]


def test_order_depends_on_seed_and_epoch() -> None:
    a, b = Sampler(Streams(3), 64, 64), Sampler(Streams(4), 64, 64)
    orders = [tuple(x.indices(s)) for x in (a, b) for s in (1, 2, 3)]
    assert len(set(orders)) == 6


def test_samples_are_spread_evenly() -> None:
    """Every sample is about equally often in the first batch of an epoch."""
    sampler = Sampler(Streams(1), 20, 5)
    counts = np.zeros(20)
    for epoch in range(2000):
        counts[sampler.indices(4 * epoch + 1)] += 1
    assert abs(counts - 500).max() < 5 * np.sqrt(500)


@pytest.mark.parametrize(
    ("seed", "step", "indices"), [(0, 1, None), (7, 1, None), (7, 23, None)], ids=["a", "b", "later-epoch"]
)
def test_indices_are_the_stable_argsort_of_raw_philox_keys(seed: int, step: int, indices: None) -> None:
    """The definition itself, from NumPy's raw stream and hashlib alone: other machines must find the same."""
    import hashlib

    size, batch = 50, 7
    epoch, place = divmod(step - 1, size // batch)
    key = hashlib.sha256(f"vt-stream/1|{seed}|order|{epoch}|0|0".encode()).digest()[:16]
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(size)
    order = np.argsort(raw, kind="stable")
    assert Sampler(Streams(seed), size, batch).indices(step).tolist() == order[place * batch :][:batch].tolist()
