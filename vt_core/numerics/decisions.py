"""How accepted log entries were used, in the usual case, at the speed of memory; ``verify/bias.py`` says what for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import _jit_entries
from vt_core.numerics.dispatch import REFERENCE_ONLY
from vt_core.numerics.grid import FloatArray, Grid, IntArray
from vt_core.numerics.kernels import flat_memory, in_pieces
from vt_core.numerics.plan import plan_for
from vt_core.numerics.policy import Tolerance


def are_places(positions: IntArray, numel: int) -> bool:
    """Return whether ``positions`` (int64) ascend inside a tensor of so many elements."""
    return bool(_jit_entries.in_order(positions, numel))


def values_at(x: Tensor, positions: IntArray) -> FloatArray:
    """Return the elements of ``x`` (float64 or float32, any device and strides) at row-major ``positions``.

    Those must be places in it (:func:`are_places`).
    """
    if not x.is_cpu:
        elsewhere: FloatArray = x.detach().reshape(-1)[torch.from_numpy(positions).to(x.device)].cpu().numpy()
        return elsewhere
    flat = flat_memory(x)
    out: FloatArray = np.empty(positions.size, np.float64 if x.dtype == torch.float64 else np.float32)
    address = flat.data_ptr()
    in_pieces(lambda a, b: _jit_entries.gather(address, positions[a:b], out[a:b]), positions.size)
    return out


def count_decisions(
    x: FloatArray, used: FloatArray, tolerance: Tolerance, scale_exp: int, grid: Grid
) -> tuple[int, int, IntArray]:
    """Count the entries that decide between two neighbouring grid values, and those that name the farther one.

    ``x`` (1-d, float64 or float32) are the auditor's values at the entries before rounding, ``used`` (same dtype and
    shape) the grid values that were used, ``scale_exp`` the exponent ``e`` of tau. The third result are the indexes of
    the entries that were left out, few but for hostile logs: they need a closer look.
    """
    if REFERENCE_ONLY:
        return 0, 0, np.arange(x.size)
    plan = plan_for(grid, tolerance, torch.float64 if x.dtype == np.float64 else torch.float32)
    site, rest = plan.at(scale_exp), np.empty(x.size, np.bool_)
    ints, floats, hair = site.ints, site.floats, plan.hair
    found = in_pieces(lambda a, b: _jit_entries.decided(x[a:b], used[a:b], ints, floats, hair, rest[a:b]), x.size)
    return sum(int(n) for n, _ in found), sum(int(n) for _, n in found), rest.nonzero()[0]
