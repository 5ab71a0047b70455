"""The interval rule in plain torch: slow, meant to be obviously right, and the same on every device.

The kernels in ``kernels`` must give the same results to the bit. Rule and notation: DESIGN section 2; ``rnd``
rounds onto the grid, ``tau = rtol*|x| + atol*2**e``.

Trainer: ``y = rnd(x)``. Logged iff ``rnd(x - tau) != rnd(x + tau)``, except by the *zero rule*: ``y == 0``,
``|x| <= tau * 2**-11``, and ``tau`` at most the largest grid value. Non-finite elements are never logged.

Auditor, own value ``x'``: unlogged elements become 0 if ``|x'| <= tau`` and ``rnd(x')`` is finite, else
``rnd(x')``. Logged elements: see ``sparse.judge``.

Why an honest trainer is never accused and both sides get equal bits, under assumption A (``|x - x'| <= tau *
(1 - 1/1000)``, equality for non-finite values):

* Floating-point subtraction and addition are monotone, and ``x'`` is a floating-point number: from
  ``x' <= x + tau`` as real numbers follows ``x' <= fl(x + tau)``. So windows may be computed in the compute
  dtype.
* Unlogged, one rounding over the window: it holds ``x'``, so ``rnd(x') = y``. Nor does the auditor turn a
  finite nonzero ``y`` into 0: with ``|x'| <= tau'`` the window of ``x`` would hold 0 or reach from below
  ``tau`` to above ``2 tau``, and the only cell of a finite grid value that is so wide is that of the smallest
  subnormal ``s``, where ``x - tau > s/2`` and ``x + tau < 3s/2`` give ``tau < s/2 < x'``.
* Unlogged by the zero rule: ``|x'| <= tau * (1 - 1/1000 + 2**-11)``, which is less than ``tau`` and
  ``tau'``, so ``rnd(x')`` is finite and the auditor has 0 too.
* Logged: ``x`` lies in the auditor's window, hence ``lo <= y <= hi``; and the window of ``2 tau'`` and a hair
  holds the trainer's window, hence it straddles a boundary too.

``tau`` and ``tau'`` differ by a factor within ``1 +- 2**-12``, which the hair and the 1/1000 cover.

Two simpler forms of the zero rule have holes. Logging nothing with ``y == 0`` loses ``x`` just under half the
smallest subnormal with ``x'`` just above it. Without the two conditions on overflow, ``x = 3m`` with
``tau = 2m`` (``m`` above the largest grid value) is infinite without an entry, and ``x' = 1.1 m`` became 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vt_core.numerics import sparse
from vt_core.numerics.grid import FloatArray, Grid, IntArray
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.result import AuditorResult, SiteEntries, TrainerResult
from vt_core.numerics.scale import absolute_part, acceptable_scales, check_compute, scale_exponent, stepped

ZERO_RULE = 2.0**-11

# Elements handled at once: bounds the float64 temporaries on a device.
_CHUNK = 1 << 22
_DOUBLE_NAN = 0x7FF8000000000000
_SINGLE_NAN = 0x7FC00000
_LOW_32 = 0xFFFFFFFF
_LOW_64 = 0xFFFFFFFFFFFFFFFF


def round_to_grid_(x: Tensor, grid: Grid) -> None:
    """Round ``x`` (float64 or float32, any shape and strides) onto ``grid`` in place."""
    round_plain_(x, grid, False)


def fingerprint(x: Tensor) -> int:
    """Return the 64-bit fingerprint of grid values ``x``: it locates a difference and proves nothing.

    ``sum_i bits32(x_i) * ((2 i + 1) * 0x9E3779B1 mod 2**32) mod 2**64`` over row-major indexes, ``bits32`` the
    float32 pattern. Its low half is in the log; the high half is what only a replay yields (``evidence/work.py``).
    """
    check_compute(x.dtype)
    flat = x.detach().contiguous().view(-1)
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        total += _fingerprint(flat[start : start + _CHUNK], start)
    return total & _LOW_64


def round_plain_(x: Tensor, grid: Grid, want_fingerprint: bool) -> int:
    """Round ``x`` onto ``grid`` in place, without any log; return the fingerprint (0 if not wanted)."""
    check_compute(x.dtype)
    flat = x.detach().contiguous().view(-1)
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        _store(chunk, _round(chunk, grid))
        if want_fingerprint:
            total += _fingerprint(chunk, start)
    _give_back(x, flat)
    return total & _LOW_64


def is_on_grid(x: Tensor, grid: Grid) -> bool:
    """Return whether rounding ``x`` (float64 or float32, any shape and strides) onto ``grid`` changes no bit.

    So -0.0 and every NaN but the canonical one are not on the grid. Raises PrecisionError for another dtype.
    """
    check_compute(x.dtype)
    flat = x.detach().contiguous().view(-1)
    whole = torch.int64 if x.dtype == torch.float64 else torch.int32
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        rounded = torch.empty_like(chunk)
        _store(rounded, _round(chunk, grid))
        if not torch.equal(chunk.view(whole), rounded.view(whole)):
            return False
    return True


def trainer_round_(
    x: Tensor, tolerance: Tolerance, grid: Grid, want_fingerprint: bool, floor: float = 0.0
) -> TrainerResult:
    """Round ``x`` (float64 or float32, any shape and strides) in place and return what must be logged.

    ``floor`` is a lower bound of the tensor's scale (finite, >= 0) that both sides know exactly.
    Raises PrecisionError for another dtype and SpecError for a tolerance too small for the dtype.
    """
    check_compute(x.dtype, tolerance)
    flat = x.detach().contiguous().view(-1)
    largest = _largest(flat)
    scale = scale_exponent(max(largest, floor), x.dtype)
    grid = stepped(grid, tolerance, scale)
    positions: list[IntArray] = []
    values: list[FloatArray] = []
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        tau = chunk.abs() * tolerance.rtol + absolute_part(scale, tolerance)
        y = _round(chunk, grid)
        straddles = _round(chunk - tau, grid) != _round(chunk + tau, grid)
        silent_zero = (y == 0) & (chunk.abs() <= tau * ZERO_RULE) & (tau <= grid.max_value)
        flagged = straddles & ~silent_zero & torch.isfinite(chunk)
        found = torch.nonzero(flagged).view(-1)
        positions.append(found.cpu().numpy() + start)
        values.append(chunk[found].cpu().numpy())
        _store(chunk, y)
        if want_fingerprint:
            total += _fingerprint(chunk, start)
    _give_back(x, flat)
    ambiguous = len(acceptable_scales(largest, tolerance, x.dtype, False, floor)) > 1
    entries = None
    if any(p.size for p in positions):
        entries = sparse.build_entries(np.concatenate(positions), np.concatenate(values), tolerance, scale, grid)
    elif ambiguous:
        entries = SiteEntries.empty(scale)
    return TrainerResult(entries, total & _LOW_64)


def auditor_round_(
    x: Tensor,
    tolerance: Tolerance,
    grid: Grid,
    entries: SiteEntries | None,
    want_fingerprint: bool,
    floor: float = 0.0,
) -> AuditorResult:
    """Round ``x`` in place, following the trainer's ``entries`` where they are plausible.

    Returns counts and findings; implausible entries are ignored and reported. Raises PrecisionError and
    SpecError as :func:`trainer_round_`, and EvidenceError if the arrays of ``entries`` do not fit together.
    """
    check_compute(x.dtype, tolerance)
    flat = x.detach().contiguous().view(-1)
    result = AuditorResult()
    largest = _largest(flat)
    acceptable = acceptable_scales(largest, tolerance, x.dtype, True, floor)
    scale = sparse.agree_on_scale(entries, scale_exponent(max(largest, floor), x.dtype), acceptable, result)
    result.scale_exp, grid = scale, stepped(grid, tolerance, scale)
    use: IntArray | None = None
    if entries is not None and entries.positions.size:
        valid = sparse.valid_positions(entries, flat.numel(), result)
        where = entries.positions[valid]
        own = flat[torch.from_numpy(where).to(x.device)].cpu().numpy()
        accepted, logged = sparse.judge(own, entries, valid, tolerance, scale, grid, result)
        use, logged = where[accepted], logged[accepted]
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        tau = chunk.abs() * tolerance.rtol + absolute_part(scale, tolerance)
        y = _round(chunk, grid)
        near_zero = (chunk.abs() <= tau) & torch.isfinite(y)
        _store(chunk, torch.where(near_zero, 0.0, y))
    if use is not None:
        flat[torch.from_numpy(use).to(x.device)] = torch.from_numpy(logged).to(x.device, x.dtype)
    _give_back(x, flat)
    if want_fingerprint:
        result.fingerprint = fingerprint(flat)
    return result


def _round(x: Tensor, grid: Grid) -> Tensor:
    """Round to float64: scale so that the grid spacing at ``x`` is 1, round half to even, scale back.

    NaN stays.
    """
    wide = x.to(torch.float64)
    limit = 2.0 ** (grid.emax + 1)
    safe = torch.where(torch.isfinite(wide), wide, 0.0).clamp(-limit, limit)
    exponent = torch.frexp(safe).exponent.to(torch.int64)
    spacing = torch.clamp(exponent - grid.precision, min=grid.quantum_exponent)
    rounded = torch.round(safe * _power_of_two(-spacing)) * _power_of_two(spacing)
    overflow = rounded.abs() > grid.max_value
    rounded = torch.where(overflow, torch.copysign(torch.full_like(safe, torch.inf), safe), rounded)
    return torch.where(torch.isfinite(wide), rounded + 0.0, wide)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exact ``2**exponent`` as float64, from the bits: ``pow`` may be off by a place on some devices."""
    return ((exponent + 1023) << 52).view(torch.float64)


def _store(target: Tensor, y: Tensor) -> None:
    """Copy grid values into ``target`` with the canonical NaN, which not every device's conversion keeps."""
    if target.dtype == torch.float64:
        bits, nan = y.view(torch.int64), _DOUBLE_NAN
        target.view(torch.int64).copy_(torch.where(torch.isnan(y), nan, bits))
    else:
        bits = y.to(torch.float32).view(torch.int32)
        target.view(torch.int32).copy_(torch.where(torch.isnan(y), _SINGLE_NAN, bits))


def _fingerprint(y: Tensor, start: int) -> int:
    bits = y.to(torch.float32).view(torch.int32).to(torch.int64) & _LOW_32
    bits = torch.where(torch.isnan(y), _SINGLE_NAN, bits)
    index = torch.arange(start, start + y.numel(), dtype=torch.int64, device=y.device)
    factor = ((2 * index + 1) * sparse.FINGERPRINT_FACTOR) & _LOW_32
    # int64 products and sums wrap modulo 2**64.
    return int((bits * factor).sum().item())


def max_magnitude(x: Tensor) -> float:
    """Return the largest finite magnitude of ``x``, 0.0 if there is none."""
    return _largest(x.detach().reshape(-1))


def _largest(flat: Tensor) -> float:
    largest = 0.0
    for start in range(0, flat.numel(), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        finite = torch.where(torch.isfinite(chunk), chunk.abs(), 0.0)
        largest = max(largest, float(finite.max().item()))
    return largest


def _give_back(x: Tensor, flat: Tensor) -> None:
    if not x.is_contiguous():
        x.detach().copy_(flat.view(x.shape))
