"""Chooses the implementation by device: compiled kernels for CPU tensors, the reference for all others.

``VT_REFERENCE_KERNELS=1`` in the environment at start forces the reference, which gives the same bits.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from vt_core.numerics import kernels, reference
from vt_core.numerics.grid import Grid
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.result import AuditorResult, SiteEntries, TrainerResult

# Read once: a look into the environment takes as long as rounding a thousand elements.
REFERENCE_ONLY = os.environ.get("VT_REFERENCE_KERNELS") == "1"


def _use_kernels(x: Tensor) -> bool:
    return x.is_cpu and not REFERENCE_ONLY


def round_to_grid_(x: Tensor, grid: Grid) -> None:
    """Round ``x`` (float64 or float32, any shape and strides) onto ``grid`` in place."""
    if _use_kernels(x):
        kernels.round_to_grid_(x, grid)
    else:
        reference.round_to_grid_(x, grid)


def fingerprint(x: Tensor) -> int:
    """Return the 32-bit fingerprint of grid values ``x`` (see ``reference.fingerprint``)."""
    if _use_kernels(x):
        return kernels.fingerprint(x)
    return reference.fingerprint(x)


def round_plain_(x: Tensor, grid: Grid, want_fingerprint: bool) -> int:
    """Round ``x`` onto ``grid`` in place, without any log; return the fingerprint (0 if not wanted)."""
    if _use_kernels(x):
        return kernels.round_plain_(x, grid, want_fingerprint)
    return reference.round_plain_(x, grid, want_fingerprint)


def is_on_grid(x: Tensor, grid: Grid) -> bool:
    """Return whether rounding ``x`` onto ``grid`` changes no bit (see ``reference.is_on_grid``)."""
    if _use_kernels(x):
        return kernels.is_on_grid(x, grid)
    return reference.is_on_grid(x, grid)


def trainer_round_(
    x: Tensor, tolerance: Tolerance, grid: Grid, want_fingerprint: bool, floor: float = 0.0
) -> TrainerResult:
    """Round ``x`` in place as the trainer; return what must be logged (see ``reference.trainer_round_``)."""
    if _use_kernels(x):
        return kernels.trainer_round_(x, tolerance, grid, want_fingerprint, floor)
    return reference.trainer_round_(x, tolerance, grid, want_fingerprint, floor)


def auditor_round_(
    x: Tensor,
    tolerance: Tolerance,
    grid: Grid,
    entries: SiteEntries | None,
    want_fingerprint: bool,
    floor: float = 0.0,
) -> AuditorResult:
    """Round ``x`` in place as the auditor, following plausible entries (see ``reference.auditor_round_``)."""
    if _use_kernels(x):
        return kernels.auditor_round_(x, tolerance, grid, entries, want_fingerprint, floor)
    return reference.auditor_round_(x, tolerance, grid, entries, want_fingerprint, floor)


def max_magnitude(x: Tensor) -> float:
    """Return the largest finite magnitude of ``x`` (any floating dtype and strides), 0.0 if there is none."""
    if x.numel() == 0:
        return 0.0
    if _use_kernels(x) and x.dtype in (torch.float64, torch.float32):
        return kernels.max_magnitude(x)
    return reference.max_magnitude(x)


def correctly_rounded_sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded square root of ``x`` (float64 or float32) as a new tensor.

    ``torch.sqrt`` on x86 goes through a vector maths library whose results are not correctly rounded; CUDA's
    are.
    """
    if x.device.type == "cpu":
        return kernels.correctly_rounded_sqrt(x)
    return torch.sqrt(x)
