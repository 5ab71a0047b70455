"""The interval rule on the CPU at the speed of memory; same results to the bit as ``reference``, which
explains it.

Tensors of 2**18 elements or more are cut into pieces that a few threads work on (the compiled loops release the
interpreter lock). Positions are concatenated in order and fingerprints are sums, so no result depends on the number of
threads or pieces. Tensors that are not contiguous in row-major order go through a contiguous copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import _jit, _jit_entries, sparse
from vt_core.numerics._jit_base import BLOCK
from vt_core.numerics.grid import FloatArray, Grid, IntArray
from vt_core.numerics.plan import Plan, Site, plan_for
from vt_core.numerics.policy import Tolerance
from vt_core.numerics.result import AuditorResult, SiteEntries, TrainerResult
from vt_core.numerics.scale import check_compute
from vt_core.numerics.threads import share, worker_count

PARALLEL_FROM = 1 << 18
_MANY_PIECES_FROM = 1 << 21

_LOW_64 = 0xFFFFFFFFFFFFFFFF
_FLOAT32 = Grid.parse("float32")
_Result = TypeVar("_Result")


def round_to_grid_(x: Tensor, grid: Grid) -> None:
    """Round ``x`` (float64 or float32, any shape and strides) onto ``grid`` in place."""
    round_plain_(x, grid, False)


def fingerprint(x: Tensor) -> int:
    """Return the 64-bit fingerprint of grid values ``x`` (see ``reference.fingerprint``)."""
    plan, flat = plan_for(_FLOAT32, None, x.dtype), flat_memory(x)
    address = flat.data_ptr()
    sums: list[int] = in_pieces(lambda a, b: _jit.fingerprint(address, a, b, plan.floats), flat.numel())
    return sum(sums) & _LOW_64


def round_plain_(x: Tensor, grid: Grid, want_fingerprint: bool) -> int:
    """Round ``x`` onto ``grid`` in place, without any log; return the fingerprint (0 if not wanted)."""
    plan, flat = plan_for(grid, None, x.dtype), flat_memory(x)
    address, size, ints, floats, params = flat.data_ptr(), flat.numel(), plan.ints, plan.floats, plan.params
    if size < PARALLEL_FROM:
        total: int = _jit.plain(address, 0, size, ints, floats, params, want_fingerprint)
    else:
        total = sum(in_pieces(lambda a, b: _jit.plain(address, a, b, ints, floats, params, want_fingerprint), size))
    _give_back(x, flat)
    return total & _LOW_64


def is_on_grid(x: Tensor, grid: Grid) -> bool:
    """Return whether rounding ``x`` onto ``grid`` changes no bit (see ``reference.is_on_grid``)."""
    plan, flat = plan_for(grid, None, x.dtype), _any_order(x)
    address, ints, floats, params = flat.data_ptr(), plan.ints, plan.floats, plan.params
    return all(in_pieces(lambda a, b: bool(_jit.is_on_grid(address, a, b, ints, floats, params)), flat.numel()))


def trainer_round_(
    x: Tensor, tolerance: Tolerance, grid: Grid, want_fingerprint: bool, floor: float = 0.0
) -> TrainerResult:
    """Round ``x`` (float64 or float32, any shape and strides) in place and return what must be logged.

    ``floor`` is a lower bound of the tensor's scale (finite, >= 0) that both sides know exactly.
    Raises PrecisionError for another dtype and SpecError for a tolerance too small for the dtype.
    """
    plan, flat = plan_for(grid, tolerance, x.dtype), flat_memory(x)
    address, size = flat.data_ptr(), flat.numel()
    scale, acceptable = plan.scale(_largest(flat, plan), floor, False)
    site = plan.at(scale)
    ints, floats, params = site.ints, site.floats, site.params

    def piece(start: int, stop: int) -> tuple[list[_Entries], int]:
        found: list[_Entries] = []
        total = 0
        capacity = ((stop - start) >> 8) + BLOCK + 1
        while start < stop:
            at, before = np.empty(capacity, np.int64), np.empty(capacity, floats.dtype)
            count, reached, fingerprint = _jit.trainer(
                address, start, stop, ints, floats, params, want_fingerprint, at, before
            )
            if count:
                found.append(_described(at[:count], before[:count], plan, site))
            total += fingerprint
            if reached < stop:  # as many as the share of elements logged so far suggests, and a quarter
                capacity = count * (stop - reached) // max(reached - start, 1) * 5 // 4 + BLOCK + 1
                capacity = min(max(capacity, 4 * BLOCK), stop - reached + 1)
            start = reached
        return found, total

    pieces = in_pieces(piece, size)
    _give_back(x, flat)
    found = [entries for piece_found, _ in pieces for entries in piece_found]
    entries = None
    if found:
        entries = _joined(scale, found)
    elif acceptable is not None and len(acceptable) > 1:
        entries = SiteEntries.empty(scale)
    return TrainerResult(entries, sum(total for _, total in pieces) & _LOW_64)


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
    plan, flat = plan_for(grid, tolerance, x.dtype), flat_memory(x)
    address, size = flat.data_ptr(), flat.numel()
    result = AuditorResult()
    scale, acceptable = plan.scale(_largest(flat, plan), floor, True)
    if entries is not None:
        scale = sparse.agree_on_scale(entries, scale, acceptable or range(scale, scale + 1), result)
    result.scale_exp, site = scale, plan.at(scale)
    ints, floats, params = site.ints, site.floats, site.params
    use: IntArray | None = None
    if entries is not None and entries.positions.size:
        use, logged = _followed(flat, entries, tolerance, plan, site, result)
    sums = in_pieces(lambda a, b: _jit.auditor(address, a, b, ints, floats, params, want_fingerprint), size)
    if use is not None and use.size:
        changes = in_pieces(lambda a, b: _jit_entries.replace(address, use[a:b], logged[a:b], floats), use.size)
        if want_fingerprint:
            sums.extend(changes)
    _give_back(x, flat)
    result.fingerprint = sum(sums) & _LOW_64
    return result


def max_magnitude(x: Tensor) -> float:
    """Return the largest finite magnitude of a CPU tensor (float64 or float32), 0.0 if there is none."""
    return _largest(_any_order(x), plan_for(_FLOAT32, None, x.dtype))


def correctly_rounded_sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded square root of a CPU tensor (float64 or float32), contiguous."""
    check_compute(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype)
    source, target = flat_memory(x).detach().view(-1).numpy(), out.view(-1).numpy()
    in_pieces(lambda a, b: _jit.square_root(source[a:b], target[a:b]), source.size)
    return out


_Entries = tuple[IntArray, NDArray[np.uint8], IntArray, NDArray[np.float32]]


def _described(positions: IntArray, values: FloatArray, plan: Plan, site: Site) -> _Entries:
    """Return positions, parities, which entries are full ones, and the values of these."""
    count = values.size
    parity, is_full, rounded = np.empty(count, np.uint8), np.empty(count, np.bool_), np.empty(count, np.float32)
    ints, floats, params, lattice, _ = site
    _jit_entries.describe(values, ints, floats, plan.hair, params, lattice, parity, is_full, rounded)
    full = is_full.nonzero()[0]
    return positions, parity, full, rounded[full]


def _joined(scale: int, found: list[_Entries]) -> SiteEntries:
    if len(found) == 1:
        positions, parity, full, full_values = found[0]
        return SiteEntries(scale, positions.copy(), parity, full, full_values)  # not the whole buffer
    positions, parity, _, full_values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    first = np.cumsum([0] + [entries[0].size for entries in found[:-1]])
    full = np.concatenate([entries[2] + start for entries, start in zip(found, first, strict=True)])
    return SiteEntries(scale, positions, parity, full, full_values)


def _followed(
    flat: Tensor, entries: SiteEntries, tolerance: Tolerance, plan: Plan, site: Site, result: AuditorResult
) -> tuple[IntArray, FloatArray]:
    """Return the positions of the accepted entries and their values; ``sparse.judge`` decides where it is not plain."""
    array = flat.detach().view(-1).numpy()
    positions, full = entries.positions, entries.full_index
    fits = entries.parity.size == positions.size and full.size == entries.full_values.size
    if not (fits and _jit_entries.in_order(positions, array.size) and _jit_entries.in_order(full, positions.size)):
        valid = sparse.valid_positions(entries, array.size, result)
        use = positions[valid]
        judged, values = sparse.judge(array[use], entries, valid, tolerance, result.scale_exp, site.grid, result)
        return use[judged], values[judged]
    own, doubtful = np.empty(positions.size, array.dtype), np.empty(positions.size, np.bool_)
    arrays = positions, entries.parity, full, entries.full_values
    rest = site.ints, site.floats, plan.hair, site.params, site.lattice, own, doubtful
    address = flat.data_ptr()
    doubts = sum(in_pieces(lambda a, b: int(_jit_entries.confirm(address, *arrays, a, b, *rest)), positions.size))
    result.entries += positions.size - doubts
    if not doubts:
        return positions, own
    at = doubtful.nonzero()[0]
    some = sparse.selected(entries, at)
    valid = np.ones(at.size, np.bool_)
    judged, values = sparse.judge(array[positions[at]], some, valid, tolerance, result.scale_exp, site.grid, result)
    own[at[judged]] = values[judged]
    doubtful[at[judged]] = False
    accepted = ~doubtful
    return positions[accepted], own[accepted]


def flat_memory(x: Tensor) -> Tensor:
    """Return ``x`` if it is contiguous in row-major order, else such a copy; PrecisionError if it has no memory."""
    flat = x if x.is_contiguous() and not x.is_neg() else x.detach().contiguous().resolve_neg()
    if not flat.data_ptr() and flat.numel():
        raise PrecisionError(f"a {type(x).__name__} without memory of its own cannot be rounded: use a plain tensor")
    return flat


def _any_order(x: Tensor) -> Tensor:
    """Return the elements of ``x``, contiguous in whatever order needs no copy, if ``x`` is dense in any."""
    if x.is_contiguous():
        return flat_memory(x)
    return flat_memory(x.detach().permute(*sorted(range(x.dim()), key=lambda d: -x.stride()[d])))


def _give_back(x: Tensor, flat: Tensor) -> None:
    if flat is not x:
        x.detach().copy_(flat)


def _largest(flat: Tensor, plan: Plan) -> float:
    """Return the largest finite magnitude, 0.0 if there is none."""
    address, ints, floats = flat.data_ptr(), plan.ints, plan.floats
    found: list[float] = in_pieces(lambda a, b: _jit.largest(address, a, b, ints, floats), flat.numel())
    return max(found, default=0.0)


def in_pieces(work: Callable[[int, int], _Result], size: int) -> list[_Result]:
    """Apply ``work(start, stop)`` to pieces that cover ``range(size)``; results in order."""
    if size < PARALLEL_FROM:
        return [work(0, size)] if size else []
    workers = worker_count()
    if workers == 1:
        return [work(0, size)]
    # Whole blocks for each piece. Of large tensors more pieces than workers: a slow core does not hold up the others.
    pieces = workers if size < _MANY_PIECES_FROM else 2 * workers
    length = -(-size // (pieces * BLOCK)) * BLOCK
    return share(lambda i: work(i * length, min((i + 1) * length, size)), -(-size // length), workers)
