"""The interval rule on the CPU at the speed of memory; same results to the bit as ``reference``, which
explains it.

Tensors of 2**18 elements or more are cut into pieces that a few threads work on (the compiled loops release
the interpreter lock). Positions are concatenated in order and fingerprints are sums, so no result depends on
the number of threads or pieces. Tensors that are not contiguous in row-major order go through a contiguous
copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.numerics import _jit, sparse
from vt_core.numerics.grid import FloatArray, Grid, IntArray, round_array
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.reference import ZERO_RULE
from vt_core.numerics.result import AuditorResult, SiteEntries, TrainerResult
from vt_core.numerics.scale import HAIR, absolute_part, acceptable_scales, check_compute, scale_exponent
from vt_core.numerics.threads import pool, worker_count

PARALLEL_FROM = 1 << 18

_LOW_64 = 0xFFFFFFFFFFFFFFFF
_Result = TypeVar("_Result")


def round_to_grid_(x: Tensor, grid: Grid) -> None:
    """Round ``x`` (float64 or float32, any shape and strides) onto ``grid`` in place."""
    round_plain_(x, grid, False)


def fingerprint(x: Tensor) -> int:
    """Return the 64-bit fingerprint of grid values ``x`` (see ``reference.fingerprint``)."""
    check_compute(x.dtype)
    flat = _flat(x)
    return sum(_in_pieces(lambda a, b: int(_jit.fingerprint_of(flat, a, b)), flat.size)) & _LOW_64


def round_plain_(x: Tensor, grid: Grid, want_fingerprint: bool) -> int:
    """Round ``x`` onto ``grid`` in place, without any log; return the fingerprint (0 if not wanted)."""
    check_compute(x.dtype)
    flat, params = _flat(x), _params(grid)
    sums = _in_pieces(lambda a, b: int(_jit.plain(flat, a, b, params, want_fingerprint)), flat.size)
    _give_back(x, flat)
    return sum(sums) & _LOW_64


def trainer_round_(
    x: Tensor, tolerance: Tolerance, grid: Grid, want_fingerprint: bool, floor: float = 0.0
) -> TrainerResult:
    """Round ``x`` (float64 or float32, any shape and strides) in place and return what must be logged.

    ``floor`` is a lower bound of the tensor's scale (finite, >= 0) that both sides know exactly.
    Raises PrecisionError for another dtype and SpecError for a tolerance too small for the dtype.
    """
    check_compute(x.dtype, tolerance)
    flat, params = _flat(x), _params(grid)
    kind = flat.dtype.type
    largest = _largest(flat)
    scale = scale_exponent(max(largest, floor), x.dtype)
    rtol, absolute, zero_rule = kind(tolerance.rtol), kind(absolute_part(scale, tolerance)), kind(ZERO_RULE)
    unit = float(np.finfo(kind).eps) * 2.0
    zero = float(absolute) * ZERO_RULE if float(absolute) * HAIR <= grid.max_value else -1.0
    reach = (tolerance.rtol * HAIR + unit, float(absolute) * HAIR, zero)

    def piece(start: int, stop: int) -> tuple[list[IntArray], list[FloatArray], int]:
        positions: list[IntArray] = []
        values: list[FloatArray] = []
        total = 0
        capacity = max(_jit.BLOCK, (stop - start) >> 8)
        while start < stop:
            at, before = np.empty(capacity, np.int64), np.empty(capacity, flat.dtype)
            count, start, fingerprint = _jit.trainer(
                flat, start, stop, rtol, absolute, zero_rule, reach, params, want_fingerprint, at, before
            )
            if count:
                positions.append(at[:count].copy())
                values.append(before[:count].copy())
            total += int(fingerprint)
            capacity *= 4
        return positions, values, total

    pieces = _in_pieces(piece, flat.size)
    _give_back(x, flat)
    positions = [array for found in pieces for array in found[0]]
    entries = None
    if positions:
        values = np.concatenate([array for found in pieces for array in found[1]])
        parity, is_full = np.empty(values.size, np.uint8), np.empty(values.size, np.bool_)
        _jit.describe(values, rtol, absolute, kind(HAIR), params, _lattice(grid), parity, is_full)
        full = np.flatnonzero(is_full)
        full_values = round_array(values[full], grid).astype(np.float32)
        entries = SiteEntries(scale, np.concatenate(positions), parity, full, full_values)
    elif len(acceptable_scales(largest, tolerance, x.dtype, False, floor)) > 1:
        entries = SiteEntries.empty(scale)
    return TrainerResult(entries, sum(found[2] for found in pieces) & _LOW_64)


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
    flat, params = _flat(x), _params(grid)
    kind = flat.dtype.type
    result = AuditorResult()
    largest = _largest(flat)
    acceptable = acceptable_scales(largest, tolerance, x.dtype, True, floor)
    scale = sparse.agree_on_scale(entries, scale_exponent(max(largest, floor), x.dtype), acceptable, result)
    rtol, absolute = kind(tolerance.rtol), kind(absolute_part(scale, tolerance))
    use: IntArray = np.empty(0, np.int64)
    logged: NDArray[np.float64] = np.empty(0, np.float64)
    if entries is not None and entries.positions.size:
        valid = sparse.valid_positions(entries, flat.size, result)
        where = entries.positions[valid]
        own = _confirm(flat[where], entries, rtol, absolute, grid) if valid.all() else None
        if own is not None:
            result.entries += own.size
            use, logged = where, own
        else:
            accepted, logged = sparse.judge(flat[where], entries, valid, tolerance, scale, grid, result)
            use, logged = where[accepted], logged[accepted]
    sums = _in_pieces(lambda a, b: int(_jit.auditor(flat, a, b, rtol, absolute, params, want_fingerprint)), flat.size)
    if use.size:
        if want_fingerprint:
            sums.append(sparse.fingerprint_change(use, flat[use].astype(np.float64), logged))
        flat[use] = logged
    _give_back(x, flat)
    result.fingerprint = sum(sums) & _LOW_64
    return result


def max_magnitude(x: Tensor) -> float:
    """Return the largest finite magnitude of a CPU tensor (float64 or float32), 0.0 if there is none."""
    # Order does not matter: a dense tensor in another memory format needs no copy.
    dense = x.detach().permute(*sorted(range(x.dim()), key=lambda d: -x.stride()[d])) if x.dim() > 1 else x
    return _largest(_flat(dense))


def correctly_rounded_sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded square root of a CPU tensor (float64 or float32), contiguous."""
    check_compute(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype)
    source, target = _flat(x), _flat(out)
    _in_pieces(lambda a, b: _jit.square_root(source[a:b], target[a:b]), source.size)
    return out


def _confirm(x: FloatArray, entries: SiteEntries, rtol: Any, absolute: Any, grid: Grid) -> NDArray[np.float64] | None:
    """Return the auditor's own roundings if every entry is plausible and names them: all but rare sites."""
    is_full = np.zeros(x.size, np.bool_)
    is_full[entries.full_index] = True
    if np.count_nonzero(is_full) != entries.full_index.size or np.any(np.diff(entries.full_index) < 0):
        return None
    own = np.empty(x.size, np.float64)
    params, hair = _params(grid), x.dtype.type(HAIR)
    arguments = (x, entries.parity, is_full, entries.full_values, rtol, absolute, hair, params, _lattice(grid))
    return own if _jit.confirm(*arguments, own) else None


@functools.lru_cache
def _lattice(grid: Grid) -> tuple[int, int, float, float]:
    offset = (grid.emin + 1022) << (grid.precision - 1)
    return (53 - grid.precision, offset, 2.0**grid.emin, 2.0**-grid.quantum_exponent)


@functools.lru_cache
def _params(grid: Grid) -> tuple[float, float, int, int]:
    smallest_binade = (grid.emin + 1023) << 52
    return (2.0 ** (grid.emax + 1), grid.max_value, smallest_binade, (53 - grid.precision) << 52)


def _flat(x: Tensor) -> NDArray[Any]:
    """Return ``x`` as a row-major vector that shares its memory if it is contiguous."""
    array: NDArray[Any] = x.detach().contiguous().view(-1).numpy()
    return array


def _give_back(x: Tensor, flat: NDArray[Any]) -> None:
    if not x.is_contiguous():
        x.detach().copy_(torch.from_numpy(flat).view(x.shape))


def _largest(flat: NDArray[Any]) -> float:
    """Return the largest finite magnitude, 0.0 if there is none."""
    whole, mask, infinity = (
        (np.int64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000)
        if flat.dtype == np.float64
        else (np.int32, 0x7FFFFFFF, 0x7F800000)
    )
    bits = flat.view(whole)
    found = _in_pieces(lambda a, b: int(_jit.largest_bits(bits[a:b], whole(mask), whole(infinity))), flat.size)
    return float(np.array([max(found)], whole).view(flat.dtype)[0]) if found else 0.0


def _in_pieces(work: Callable[[int, int], _Result], size: int) -> list[_Result]:
    """Apply ``work(start, stop)`` to pieces that cover ``range(size)``; results in order."""
    if size == 0:
        return []
    workers = worker_count() if size >= PARALLEL_FROM else 1
    if workers == 1:
        return [work(0, size)]
    # Whole blocks for each piece, twice as many pieces as workers: a slow core does not hold up the others.
    length = -(-size // (2 * workers * _jit.BLOCK)) * _jit.BLOCK
    starts = range(0, size, length)
    futures = [pool().submit(work, start, min(start + length, size)) for start in starts]
    return [future.result() for future in futures]
