"""CIFAR-10 in its binary format, and its usual augmentation as a pure function of a random stream.

A record is one label byte (0 to 9) and 3 x 32 x 32 pixel bytes, channels first: 3073 bytes
(Krizhevsky, "Learning multiple layers of features from tiny images", 2009; "binary version").
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vt_core.errors import SpecError
from vt_core.training.job import Stream

SIDE = 32
PIXELS = 3 * SIDE * SIDE
RECORD = 1 + PIXELS
CLASSES = 10
PAD = 4

# Mean and standard deviation of the 50,000 training images; constants, so that a subset changes nothing.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

_TRAIN_NAME = re.compile(r"data_batch_([0-9]+)\.bin")


class CifarDataset:
    """Training images held as bytes; pixels become floats when a batch is made."""

    def __init__(self, records: npt.NDArray[np.uint8], held_out: npt.NDArray[np.uint8] | None, augment: bool) -> None:
        """Keep ``records`` and ``held_out``, both uint8 of shape (N, 3073)."""
        self.records, self.augment = records, augment
        self.held_out = held_out
        self._table = _pixel_table()

    def __len__(self) -> int:
        """Return the number of training images."""
        return len(self.records)

    def batch(self, indices: npt.NDArray[np.int64], stream: Stream) -> dict[str, npt.NDArray[Any]]:
        """Return ``images`` (B, 3, 32, 32) float32, normalised, and ``labels`` (B,) int64.

        With augmentation each image is padded with 4 black pixels, cropped at a random place and flipped with
        probability one half. The order of the draws is part of the format: rows, columns, flips.
        """
        chosen = self.records[indices]
        pixels = chosen[:, 1:].reshape(-1, 3, SIDE, SIDE)
        if self.augment:
            count = len(pixels)
            rows, columns = stream.integers(count, 2 * PAD + 1), stream.integers(count, 2 * PAD + 1)
            pixels = crop_and_flip(pixels, rows, columns, stream.integers(count, 2) == 1)
        return {"images": self.normalise(pixels), "labels": chosen[:, 0].astype(np.int64)}

    def held_out_images(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None:
        """Return all images and labels of the test file, or None where it is absent."""
        if self.held_out is None:
            return None
        pixels = self.held_out[:, 1:].reshape(-1, 3, SIDE, SIDE)
        return self.normalise(pixels), self.held_out[:, 0].astype(np.int64)

    def normalise(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return (k / 255 - mean) / std of ``pixels`` (B, 3, 32, 32), rounded once to float32."""
        return self._table[np.arange(3)[None, :, None, None], pixels]

    def manifest(self) -> dict[str, str]:
        """Return the digest of all training records, in the order of the numbers in the files' names.

        It equals ``cat data_batch_1.bin data_batch_2.bin ... | sha256sum``. The test file is not in it: no
        training step depends on it.
        """
        return {"train": hashlib.sha256(np.ascontiguousarray(self.records).data).hexdigest()}


def load_cifar(location: str | None, augment: bool) -> CifarDataset:
    """Read ``data_batch_*.bin`` and, where present, ``test_batch.bin`` of the folder ``location``.

    Raises SpecError for an absent folder, no training file, a size that is no multiple of 3073, an empty file
    and a label above 9; the message names file, record and byte.
    """
    if location is None:
        raise SpecError("CIFAR needs the data's location: the folder that holds data_batch_*.bin")
    folder = Path(location)
    if not folder.is_dir():
        raise SpecError(f"CIFAR data: {folder} is not a folder")
    numbered = sorted((int(m[1]), f.name) for f in folder.iterdir() if (m := _TRAIN_NAME.fullmatch(f.name)))
    if not numbered:
        raise SpecError(f"CIFAR data: no data_batch_*.bin in {folder} (the binary version is needed)")
    if len({number for number, _ in numbered}) != len(numbered):
        raise SpecError(f"CIFAR data: two files in {folder} have the same number: {[n for _, n in numbered]}")
    records = np.concatenate([read_records(folder / name) for _, name in numbered])
    test = folder / "test_batch.bin"
    return CifarDataset(records, read_records(test) if test.exists() else None, augment)


def read_records(file: Path) -> npt.NDArray[np.uint8]:
    """Return the records of one file as uint8 (N, 3073); raises SpecError as :func:`load_cifar` says."""
    try:
        content = file.read_bytes()
    except OSError as exc:
        raise SpecError(f"CIFAR data: cannot read {file}: {exc.strerror}") from exc
    if not content or len(content) % RECORD:
        raise SpecError(
            f"CIFAR data: {file} has {len(content)} bytes, which is not a positive multiple of {RECORD}; "
            f"record {len(content) // RECORD} is cut off or the file is of another format"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD)
    bad = np.flatnonzero(records[:, 0] >= CLASSES)
    if bad.size:
        first = int(bad[0])
        raise SpecError(
            f"CIFAR data: {file} has label {records[first, 0]} in record {first} (byte {first * RECORD}); "
            f"labels are 0 to {CLASSES - 1}"
        )
    return records


def crop_and_flip(
    pixels: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    flip: npt.NDArray[np.bool_],
) -> npt.NDArray[np.uint8]:
    """Return the windows of ``pixels`` (B, 3, 32, 32), padded by 4, that start at ``rows`` and ``columns``.

    ``rows`` and ``columns`` are (B,) from 0 to 8, where 4 is the middle; ``flip`` (B,) swaps left and right.
    """
    padded = np.pad(pixels, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    ahead = np.arange(SIDE)
    x = np.where(flip[:, None], ahead[::-1], ahead) + columns[:, None]  # (B, 32)
    y = rows[:, None] + ahead  # (B, 32)
    image = np.arange(len(pixels))
    windows: npt.NDArray[np.uint8] = padded[
        image[:, None, None, None],
        np.arange(3)[None, :, None, None],
        y[:, None, :, None],
        x[:, None, None, :],
    ]
    return windows


def _pixel_table() -> npt.NDArray[np.float32]:
    """Return (3, 256): the normalised value of each byte, so that every batch uses the very same numbers."""
    scaled = np.arange(256, dtype=np.float64) / 255.0
    mean, std = np.array(MEAN)[:, None], np.array(STD)[:, None]
    table: npt.NDArray[np.float32] = ((scaled - mean) / std).astype(np.float32)
    return table
