"""Small data sets in the real formats, a stand-in random stream, and a plain training loop without engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vt_core.training.job import Dataset, Job

REPOSITORY = Path(__file__).resolve().parents[2]
WORDS = [
    "the ",
    "quick ",
    "brown ",
    "fox ",
    "jumps ",
    "over ",
    "a ",
    "naïve ",
    "cat — ",
    "and ",
    "sleeps.\n\n",
]


class PhiloxStream:
    """A stream of the protocol, from NumPy's raw Philox numbers."""

    def __init__(self, key: int) -> None:
        self._bits = np.random.Philox(key=key)

    def uniform(self, n: int) -> np.ndarray:
        return (self._bits.random_raw(n) >> np.uint64(11)) * 2.0**-53

    def integers(self, n: int, high: int) -> np.ndarray:
        return (self._bits.random_raw(n) % np.uint64(high)).astype(np.int64)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _to_tensors(batch: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def _train(
    job: Job, dataset: Dataset, steps: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.nn.Module, list[float]]:
    """Train as the engine's session does (same call order), and return the model and each step's loss."""
    with _default_dtype(dtype):
        torch.manual_seed(seed)
        model = job.build_model()
        optimizer = job.build_optimizer(model)
        losses = []
        for step in range(1, steps + 1):
            indices = PhiloxStream(step).integers(job.batch_size, len(dataset))
            batch = _to_tensors(dataset.batch(indices, PhiloxStream(1000 + step)), dtype)
            rate = job.learning_rate(step)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] if rate is None else float(np.float32(rate))
            optimizer.zero_grad(set_to_none=True)
            loss = job.loss(model, batch)
            assert loss.shape == () and loss.dtype == dtype
            loss.backward()
            job.before_update(model)
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


@pytest.fixture
def stream() -> type[PhiloxStream]:
    return PhiloxStream


@pytest.fixture
def train() -> Callable[..., tuple[torch.nn.Module, list[float]]]:
    return _train


@pytest.fixture
def default_dtype() -> Any:
    return _default_dtype


@pytest.fixture(scope="session")
def real_data() -> Path:
    folder = Path(os.environ.get("VT_TEST_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set VT_TEST_DATA to a folder that holds it")
    return folder


def make_records(count: int, key: int) -> np.ndarray:
    """Return (count, 3073) records whose colour depends on the label, so that crops and flips keep it."""
    stream = PhiloxStream(key)
    labels = stream.integers(count, 10)
    noise = stream.integers(count * 3072, 64).reshape(count, 3, 32, 32)
    colour = np.stack([labels, labels * 3 % 10, labels * 7 % 10], axis=1)[:, :, None, None]  # (N, 3, 1, 1)
    pixels = (noise + 20 * colour).astype(np.uint8).reshape(count, 3072)
    return np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)


@pytest.fixture
def records() -> Callable[[int, int], np.ndarray]:
    return make_records


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """Two training files and a test file in CIFAR-10's binary format."""
    folder = tmp_path / "cifar"
    folder.mkdir()
    make_records(40, 1).tofile(folder / "data_batch_1.bin")
    make_records(24, 2).tofile(folder / "data_batch_2.bin")
    make_records(30, 3).tofile(folder / "test_batch.bin")
    return folder


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """About 30 kB of text with accents, a dash, blank lines and repeated words."""
    picks = PhiloxStream(5).integers(6000, len(WORDS))
    file = tmp_path / "text.txt"
    file.write_bytes("".join(WORDS[i] for i in picks).encode())
    return file
