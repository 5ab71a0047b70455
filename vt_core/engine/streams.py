"""Counter-based random streams: every draw is a pure function of (seed, purpose, epoch, step, site).

Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as NumPy implements it. Only
the raw 64-bit output is used, because NumPy guarantees the raw stream between versions and not its
distributions, and because a device's own generator depends on the device. There is no state to save: resuming
needs nothing but the step number.

A compiled loop computes the same numbers in about half of NumPy's time, parts of a stream on several threads
(``VT_REFERENCE_KERNELS=1`` at start: NumPy's).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vt_core.numerics._jit_philox import fill
from vt_core.numerics.threads import share, worker_count

_CHUNK = 1 << 20
_PART, _SHARED_FROM = 1 << 14, 1 << 17  # blocks that a thread takes at once; numbers from which threads share them
_REFERENCE_ONLY = os.environ.get("VT_REFERENCE_KERNELS") == "1"


Function = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


class Functions(NamedTuple):
    """The elementary functions that random values are made with."""

    log1p: Function
    cos: Function
    sin: Function


LIBRARY = Functions(np.log1p, np.cos, np.sin)
"""NumPy's: fast, and different in the last bits between machines."""


class Stream:
    """One stream of raw 64-bit numbers; each method continues where the last one stopped."""

    def __init__(self, key: bytes) -> None:
        """Start the stream of a 16-byte ``key`` at counter zero."""
        self._key = int.from_bytes(key, "little")
        self._keys = np.uint64(self._key & 0xFFFFFFFFFFFFFFFF), np.uint64(self._key >> 64)
        self._taken = 0
        self._numpy = np.random.Philox(key=self._key) if _REFERENCE_ONLY else None

    def bits(self, n: int) -> npt.NDArray[np.uint64]:
        """Return the next ``n`` raw 64-bit integers."""
        raw: npt.NDArray[np.uint64]
        if self._numpy is None:
            raw = self._next(np.empty(self._room(n), np.uint64), n, None)
        else:
            raw = self._numpy.random_raw(n)
        return raw

    def at_least(self, n: int, least: int) -> npt.NDArray[np.bool_]:
        """Return whether each of the next ``n`` raw integers is at least ``least`` (0 to 2^64)."""
        found: npt.NDArray[np.bool_]
        if least >> 64:
            self.bits(n)
            found = np.zeros(n, np.bool_)
        elif self._numpy is None:
            found = self._next(np.empty(self._room(n), np.bool_), n, np.uint64(least))
        else:
            found = self.bits(n) >= np.uint64(least)
        return found

    def _room(self, n: int) -> tuple[int, int]:
        """Return the shape of the blocks that the next ``n`` numbers are in."""
        return (self._taken % 4 + n + 3) // 4, 4

    def _next(self, blocks: Any, n: int, least: np.uint64 | None) -> Any:
        first, begun = divmod(self._taken, 4)
        self._taken += n
        key0, key1 = self._keys

        def part(i: int) -> None:
            fill(key0, key1, np.uint64(first + i * _PART), least, blocks[i * _PART : (i + 1) * _PART])

        if n < _SHARED_FROM:
            fill(key0, key1, np.uint64(first), least, blocks)
        else:
            share(part, -(-len(blocks) // _PART), worker_count())
        return blocks.reshape(-1)[begun : begun + n]

    def uniform(self, n: int, precision: int = 53) -> npt.NDArray[np.float64]:
        """Return ``n`` float64 values in [0, 1): the top ``precision`` (1 to 53) bits times 2^-precision, exactly."""
        return (self.bits(n) >> np.uint64(64 - precision)).astype(np.float64) * 2.0**-precision

    def integers(self, n: int, high: int) -> npt.NDArray[np.int64]:
        """Return ``n`` int64 values in [0, high); the modulo bias is below high * 2^-64.

        Raises ValueError unless 1 <= high < 2^63.
        """
        if not 1 <= high < 1 << 63:
            raise ValueError(f"integers() needs 1 <= high < 2^63, not {high}")
        return (self.bits(n) % np.uint64(high)).astype(np.int64)

    def permutation(self, n: int) -> npt.NDArray[np.int64]:
        """Return a permutation of range(n): the stable argsort of n raw keys."""
        return np.argsort(self.bits(n), kind="stable").astype(np.int64)

    def normal(self, n: int, functions: Functions = LIBRARY) -> npt.NDArray[np.float64]:
        """Return ``n`` standard normal float64 values (Box-Muller).

        The library's ``log`` and ``cos`` are not correctly rounded, so with them two machines may differ in the last
        bits: the caller treats the result as an inexact operation.
        """
        out = np.empty(n, dtype=np.float64)
        for first, size in _chunks((n + 1) // 2):
            u = self.uniform(2 * size)
            radius = np.sqrt(-2.0 * functions.log1p(-u[:size]))
            angle = (2.0 * np.pi) * u[size:]
            pair = np.empty(2 * size, dtype=np.float64)
            pair[0::2] = radius * functions.cos(angle)
            pair[1::2] = radius * functions.sin(angle)
            stop = min(n, 2 * (first + size))
            out[2 * first : stop] = pair[: stop - 2 * first]
        return out


@dataclass(frozen=True)
class Streams:
    """All streams of one run, named by purpose and place."""

    seed: int

    def stream(self, purpose: str, *, epoch: int = 0, step: int = 0, site: int = 0) -> Stream:
        """Return the stream for one purpose at one place; the same arguments give the same stream."""
        name = f"vt-stream/1|{self.seed}|{purpose}|{epoch}|{step}|{site}".encode()
        return Stream(hashlib.sha256(name).digest()[:16])


def _chunks(n: int) -> Iterator[tuple[int, int]]:
    for first in range(0, n, _CHUNK):
        yield first, min(_CHUNK, n - first)
