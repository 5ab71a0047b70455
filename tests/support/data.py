"""Synthetic data in the real formats, so that the jobs run on a machine without any data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

_WORDS = ("the ", "quick ", "brown ", "fox ", "jumps ", "over ", "a ", "naïve ", "cat — ", "and ", "sleeps.\n\n")


def write_cifar(folder: Path, count: int = 64, key: int = 1) -> Path:
    """Write ``count`` records of CIFAR-10's binary format whose colour depends on the label; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    bits = np.random.Philox(key=key)
    labels = (bits.random_raw(count) % np.uint64(10)).astype(np.int64)
    noise = (bits.random_raw(count * 3072) % np.uint64(64)).astype(np.int64).reshape(count, 3, 1024)
    colour = np.stack([labels, labels * 3 % 10, labels * 7 % 10], axis=1)[:, :, None]  # (N, 3, 1)
    pixels = (noise + 20 * colour).astype(np.uint8).reshape(count, 3072)
    np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tofile(folder / "data_batch_1.bin")
    return folder


def write_text(file: Path, words: int = 3000, key: int = 5) -> Path:
    """Write some UTF-8 text; returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    picks = np.random.Philox(key=key).random_raw(words) % np.uint64(len(_WORDS))
    file.write_bytes("".join(_WORDS[int(i)] for i in picks).encode())
    return file
