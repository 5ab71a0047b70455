"""What the interval rule leaves open at one rounding site, seen by a trainer that wants to use it.

A trainer on the auditor's hardware knows the auditor's values, so its freedom is computed from its own: any grid value
between ``rnd(x - tau)`` and ``rnd(x + tau)`` is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.numerics import Grid, SiteEntries, Tolerance, max_magnitude, round_plain_
from vt_core.numerics.grid import lattice_index
from vt_core.numerics.scale import HAIR, absolute_part, scale_exponent, stepped
from vt_core.numerics.sparse import build_entries

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Freedom:
    """The elements of a site whose entry an auditor accepts (all arrays 1-d, one item an element).

    ``positions`` are row-major indexes (int64), ``before`` the values (compute dtype), ``own``, ``low`` and ``high``
    the honest rounding and the ends of the accepted window (float64), ``honest`` says that an honest trainer logs the
    element, ``decides`` that exactly two neighbouring grid values are in question, ``fine`` that more are and that the
    element is no exact zero.
    """

    positions: NDArray[np.int64]
    before: NDArray[np.floating]
    own: Doubles
    low: Doubles
    high: Doubles
    honest: Bools
    decides: Bools
    fine: Bools
    scale_exp: int


def freedom(
    before: Tensor, rounded: Tensor, honest: SiteEntries | None, tolerance: Tolerance, floor: float, grid: Grid
) -> Freedom:
    """Return the freedom at a site; ``before`` and ``rounded`` have any shape, ``honest`` is the honest log there."""
    flat, own = before.detach().reshape(-1), rounded.detach().reshape(-1)
    given = None if honest is None else honest.scale_exp
    scale = scale_exponent(max(max_magnitude(before), floor), before.dtype) if given is None else given
    grid = stepped(grid, tolerance, scale)
    tau = flat.abs() * tolerance.rtol + absolute_part(scale, tolerance)
    wide = tau * 2.0 * HAIR
    open_to_entries = (_rounded(flat - wide, grid) != _rounded(flat + wide, grid)) & torch.isfinite(flat)
    where = torch.nonzero(open_to_entries).view(-1)
    x, near, far = flat[where], tau[where], wide[where]
    low, high = _numpy(_rounded(x - near, grid)), _numpy(_rounded(x + near, grid))
    apart = lattice_index(_numpy(_rounded(x + far, grid)), grid) - lattice_index(_numpy(_rounded(x - far, grid)), grid)
    positions = where.cpu().numpy().astype(np.int64)
    logged = np.isin(positions, honest.positions) if honest is not None else np.zeros(positions.size, np.bool_)
    decides = (low != high) & (apart == 1)
    honestly = _numpy(own[where])
    fine = (low != high) & ~decides & (honestly != 0.0)
    return Freedom(positions, x.cpu().numpy(), honestly, low, high, logged, decides, fine, scale)


def entries_for(free: Freedom, logged: Bools, chosen: Doubles, tolerance: Tolerance, grid: Grid) -> SiteEntries | None:
    """Return the log of a site in which the ``logged`` elements are said to be ``chosen`` (float64, all elements)."""
    if not logged.any():
        return None
    values, grid = chosen[logged], stepped(grid, tolerance, free.scale_exp)
    entries = build_entries(free.positions[logged], free.before[logged], tolerance, free.scale_exp, grid)
    entries.parity = (lattice_index(values, grid) & 1).astype(np.uint8)
    entries.parity[entries.full_index] = 0
    entries.full_values = values[entries.full_index].astype(np.float32)
    return entries


def _rounded(x: Tensor, grid: Grid) -> Tensor:
    out = x.clone()
    round_plain_(out, grid, False)
    return out


def _numpy(x: Tensor) -> Doubles:
    out: Doubles = x.detach().to(torch.float64).cpu().numpy()
    return out
