"""Is a divergence a few tolerances at a rounding boundary, or another computation?

Where the fingerprints of a site differ and no log entry is at fault, the trainer's value is not known. But a
fingerprint is a sum over elements, so the change that flipping one element to its other neighbour makes is known: if
flipping one element (or two) whose boundary is within a few tolerances gives exactly the trainer's fingerprint, the
honest explanation is that the tolerance is too narrow for this hardware. Chance agreement: candidates * 2^-32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vt_core.numerics import Grid, Tolerance, fingerprint, round_plain_
from vt_core.numerics.grid import lattice_index, lattice_value
from vt_core.numerics.scale import absolute_part, stepped
from vt_core.numerics.sparse import FINGERPRINT_FACTOR

_MAX_SINGLES = 1 << 17
_MAX_PAIRS = 1 << 9
_NONE: npt.NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class Explanation:
    """The element whose rounding explains the difference; ``distance`` to its boundary in tolerances.

    ``flips`` holds (element, trainer's value) of all elements that have to change, this one included.
    """

    position: int
    trainer_value: float
    auditor_value: float
    distance: float
    flips: tuple[tuple[int, float], ...]


def explain(
    before: Tensor,
    after: Tensor,
    tolerance: Tolerance,
    grid: Grid,
    scale_exp: int,
    wanted: int,
    within: float,
    decided: npt.NDArray[np.int64] = _NONE,
) -> Explanation | None:
    """Return the flips near a boundary that turn the auditor's fingerprint into ``wanted``, or None.

    ``before`` and ``after`` are the auditor's values of the site before and after rounding (any shape, float64 or
    float32), ``scale_exp`` the exponent ``e`` of tau; ``within`` is the largest distance from a boundary, in
    tolerances, that counts as near. ``decided`` holds the positions that the log decides: the auditor took the
    trainer's value there, so they explain nothing.
    """
    flat = before.detach().cpu().contiguous().view(-1)
    grid = stepped(grid, tolerance, scale_exp)
    tau = flat.abs() * tolerance.rtol + absolute_part(scale_exp, tolerance)
    own = after.detach().cpu().contiguous().view(-1)
    low, high = flat - tau * within, flat + tau * within
    for tensor in (low, high):
        round_plain_(tensor, grid, False)
    own_print = fingerprint(own) & 0xFFFFFFFF  # the log holds the low half
    candidate = ((low != own) | (high != own)) & torch.isfinite(flat)
    candidate[torch.from_numpy(decided[decided < flat.numel()])] = False
    near = torch.nonzero(candidate).view(-1)
    if not 0 < near.numel() <= _MAX_SINGLES:
        return None
    where = near.numpy()
    mine, x, t = own[near].numpy(), flat[near].numpy(), tau[near].numpy()
    # The value on the nearer side: with a least step farther ones are within reach too.
    other = lattice_value(lattice_index(mine, grid) + np.where(x >= mine, 1, -1), grid).astype(mine.dtype)
    weight = ((2 * where.astype(np.uint64) + 1) * np.uint64(FINGERPRINT_FACTOR)) & np.uint64(0xFFFFFFFF)
    change = ((_bits(other) - _bits(mine)).astype(np.uint64) * weight) & np.uint64(0xFFFFFFFF)
    need = (wanted - own_print) & 0xFFFFFFFF
    distance = np.abs((mine.astype(np.float64) + other.astype(np.float64)) / 2 - x) / t

    def found(*indexes: int) -> Explanation:
        flips = tuple((int(where[i]), float(other[i])) for i in indexes)
        i = max(indexes, key=lambda i: distance[i])
        return Explanation(int(where[i]), float(other[i]), float(mine[i]), float(distance[i]), flips)

    single = np.nonzero(change == np.uint64(need))[0]
    if single.size:
        return found(int(single[0]))
    if where.size <= _MAX_PAIRS:
        by_change = {int(c): i for i, c in enumerate(change)}
        for i, c in enumerate(change):
            j = by_change.get((need - int(c)) & 0xFFFFFFFF)
            if j is not None and j != i:
                return found(i, j)
    return None


def _bits(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)
