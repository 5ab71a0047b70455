"""The scale exponent ``e`` of a tensor, and when two honest machines may see a different one.

``e`` is the smallest integer with ``2**e >= m``, ``m`` the largest finite magnitude. It is clamped from
below, so that ``atol * 2**e`` stays a normal number, and from above, so that ``2**e`` is finite.

Under assumption A the auditor's maximum ``m'`` lies within ``rtol*m + atol*2**e <= (rtol + 2*atol) * m`` of
the trainer's (``2**e < 2m``; where the clamp from below makes that untrue both maxima are under half of the
smallest scale and give the same ``e``). So with ``eta = 2 * (rtol + atol) * (1 + 2**-9)``, ``m'`` is in ``m *
(1 -+ eta)``: if ``e`` is the same at both ends the auditor has it too and the trainer need not write it. Seen
from the other side ``m`` is in ``m' * (1 -+ 2*eta)``, as ``eta < 1/2``, so whenever the exponents differ the
auditor finds its own ambiguous within a window of twice the width.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from vt_core.errors import PrecisionError, SpecError
from vt_core.numerics.grid import Grid
from vt_core.numerics.policy import Tolerance

SMALLEST_SCALE = {torch.float64: -960, torch.float32: -100}
LARGEST_SCALE = {torch.float64: 1023, torch.float32: 127}
SMALLEST_NORMAL = {torch.float64: -1022, torch.float32: -126}
HAIR = 1.0 + 2.0**-9


def check_compute(dtype: torch.dtype, tolerance: Tolerance | None = None) -> None:
    """Raise PrecisionError for a dtype that is no compute dtype, SpecError for too small a tolerance."""
    if dtype not in SMALLEST_SCALE:
        raise PrecisionError(f"cannot round a tensor of {dtype}: the compute dtypes are float64 and float32")
    if tolerance is not None and tolerance.atol_exp < least_atol_exp(dtype):
        least = least_atol_exp(dtype)
        raise SpecError(f"atol 2**{tolerance.atol_exp} is too small for {dtype}; the least is 2**{least}")


def least_atol_exp(dtype: torch.dtype) -> int:
    """Return the least ``atol_exp`` that a compute dtype has room for: tau is a normal number at every scale."""
    return SMALLEST_NORMAL[dtype] - SMALLEST_SCALE[dtype]


def scale_exponent(largest: float, dtype: torch.dtype) -> int:
    """Return ``e`` for the largest finite magnitude of a tensor of ``dtype`` (0 if it has none)."""
    if largest == 0.0:
        return SMALLEST_SCALE[dtype]
    if math.isinf(largest):  # a widened maximum may overflow
        return LARGEST_SCALE[dtype]
    fraction, exponent = math.frexp(largest)
    if fraction == 0.5:
        exponent -= 1
    return min(max(exponent, SMALLEST_SCALE[dtype]), LARGEST_SCALE[dtype])


def acceptable_scales(
    largest: float, tolerance: Tolerance, dtype: torch.dtype, auditor: bool, floor: float = 0.0
) -> range:
    """Return the exponents that the other side may honestly see: one, or two if the scale is *ambiguous*.

    The auditor's window is twice as wide as the trainer's, and a hair. ``floor`` is the lower bound of the scale,
    which both sides know exactly; differences are relative to the larger of the two.
    """
    eta = 2.0 * (tolerance.rtol + tolerance.atol) * HAIR
    if auditor:
        eta *= 2.0 * HAIR
    # One more step outwards covers the rounding of these products.
    reach = eta * max(largest, floor)
    low = max(math.nextafter(max(largest - reach, 0.0), 0.0), floor)
    high = max(math.nextafter(largest + reach, math.inf), floor)
    return range(scale_exponent(low, dtype), scale_exponent(high, dtype) + 1)


@functools.lru_cache(maxsize=4096)
def stepped(grid: Grid, tolerance: Tolerance, scale_exp: int) -> Grid:
    """Return the values of ``grid`` onto which a tensor of scale ``2**scale_exp`` is rounded (see ``policy``).

    A least step makes it a grid whose subnormals begin further up: multiples of the step near zero, the same values
    above. Without one, or where the grid is no finer than the step, it is ``grid`` itself.
    """
    if tolerance.step_exp is None:
        return grid
    emin = min(scale_exp + tolerance.atol_exp + tolerance.step_exp + grid.precision - 1, grid.emax)
    return grid if emin <= grid.emin else dataclasses.replace(grid, emin=emin)


def absolute_part(scale_exp: int, tolerance: Tolerance) -> float:
    """Return ``atol * 2**e``, exactly."""
    return math.ldexp(1.0, scale_exp + tolerance.atol_exp)
