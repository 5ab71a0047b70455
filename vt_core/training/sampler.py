"""Which samples a step uses: a pure function of (seed, step, dataset size, batch size)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vt_core.engine.streams import Streams


class Sampler:
    """Random permutation per epoch, cut into batches; an incomplete last batch is dropped."""

    def __init__(self, streams: Streams, size: int, batch_size: int) -> None:
        self._streams, self._size, self._batch = streams, size, batch_size
        self._per_epoch = max(1, size // batch_size)
        self._epoch = -1
        self._order: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def epoch(self, step: int) -> int:
        """Return the epoch (from 0) of ``step`` (from 1)."""
        return (step - 1) // self._per_epoch

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """Return the sample numbers of ``step``, int64, shape (batch_size,)."""
        epoch = self.epoch(step)
        if epoch != self._epoch:
            self._order = self._streams.stream("order", epoch=epoch).permutation(self._size)
            self._epoch = epoch
        first = (step - 1) % self._per_epoch * self._batch
        return self._order[first : first + self._batch]
