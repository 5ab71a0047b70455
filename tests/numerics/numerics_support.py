"""Hypothesis strategies and oracles for the rounding tests."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

from vt_core.numerics import Grid, Tolerance

GRIDS = ["float32", "bfloat16", "float16", "float32-d1", "float32-d8", "float32-d16"]
COMPUTE = [torch.float64, torch.float32]
TOLERANCES = {
    torch.float64: [
        Tolerance(None, -44),
        Tolerance(-48, -50),
        Tolerance(-20, -60),
        Tolerance(None, -26),
        Tolerance(None, -44, 5),
        Tolerance(-48, -50, 3),
        Tolerance(None, -26, 12),
    ],
    torch.float32: [
        Tolerance(None, -18),
        Tolerance(-20, -21),
        Tolerance(-12, -12),
        Tolerance(None, -26),
        Tolerance(None, -18, 3),
        Tolerance(-20, -21, 4),
    ],
}
NUMPY = {torch.float64: np.float64, torch.float32: np.float32}
BITS = {torch.float64: torch.int64, torch.float32: torch.int32}


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(BITS[x.dtype])


def exact_rounding(value: float, grid: Grid) -> float:
    """Round a finite float onto the grid with rational arithmetic only: the slowest and plainest oracle."""
    exact = Fraction(value)
    if exact == 0:
        return 0.0
    size = abs(exact)
    binade = grid.emin
    while Fraction(2) ** (binade + 1) <= size:
        binade += 1
    spacing = Fraction(2) ** (binade - grid.precision + 1)
    steps = round(size / spacing)  # Fraction rounds half to even
    rounded = steps * spacing
    if rounded >= Fraction(2) ** (grid.emax + 1):
        return float("inf") if exact > 0 else float("-inf")
    return float(rounded if exact > 0 else -rounded) + 0.0


@st.composite
def nasty_values(draw: st.DrawFn, dtype: torch.dtype, grid: Grid, max_size: int = 40) -> torch.Tensor:
    """Values around grid points, ties, the subnormals and the overflow threshold, and arbitrary bit patterns."""
    kind = NUMPY[dtype]
    width = 64 if dtype == torch.float64 else 32
    whole = np.uint64 if width == 64 else np.uint32
    size = draw(st.integers(1, max_size))
    out = np.empty(size, kind)
    for i in range(size):
        family = draw(st.integers(0, 6))
        sign = draw(st.sampled_from([1.0, -1.0]))
        if family == 0:  # any bits: NaN payloads, subnormals, huge exponents
            out[i] = np.array(draw(st.integers(0, 2**width - 1)), whole).view(kind)
            continue
        if family == 1:
            out[i] = draw(st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 2.0**-149, 2.0**-150]))
            continue
        exponent = draw(st.sampled_from([grid.emin - 3, grid.emin, grid.emin + 1, -1, 0, 1, grid.emax]))
        spacing = 2.0 ** (max(exponent, grid.emin) - grid.precision + 1)
        steps = draw(st.integers(0, 2**grid.precision))
        if family == 2:  # on the grid
            value = steps * spacing
        elif family in (3, 4):  # exact ties and what lies next to them
            value = (steps + 0.5) * spacing
            with np.errstate(over="ignore"):
                for _ in range(draw(st.integers(0, 3))):
                    value = float(np.nextafter(kind(value), kind(draw(st.sampled_from([0.0, np.inf])))))
        elif family == 5:  # around the largest value
            value = grid.max_value + draw(st.integers(-2, 2)) * 2.0 ** (grid.emax - grid.precision)
        else:
            value = float(draw(st.floats(-1e3, 1e3)))
        with np.errstate(over="ignore"):
            out[i] = kind(sign * value)
    return torch.from_numpy(out)
