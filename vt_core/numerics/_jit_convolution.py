"""Compiled matrix products whose operands are packed straight from images (CPU); see ``convolution``.

The product is that of Goto and van de Geijn (*Anatomy of high-performance matrix multiplication*, 2008): a tile of
``ROWS x COLUMNS`` sums stays in registers, its operands are panels of ``ROWS`` and of ``COLUMNS`` values for each term.
Packing them is where a convolution differs from a product, so no matrix of windows (im2col) is ever written.

Functions marked ``_vector_code`` are LLVM vector code, since numba's loops do not keep a tile in registers. A tile is
loaded and goes on with the next block of terms, so a sum runs over its terms in order and neither blocks nor threads
change a bit. A multiply-add may or may not be fused: other processors agree where sums are exact, else within rounding.

All compiled functions that call each other live in this one file: numba's cache notices changes of a function's own
file only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from vt_core.numerics._jit_base import compiled

# numba's own annotation does not say that callers leave out the typing context.
_vector_code: Callable[[Callable[..., Any]], Any] = intrinsic
_FEATURES = llvmlite.binding.get_host_cpu_features()
# Doubles of a vector, vectors of a tile's row, rows of a tile: as many sums as the registers hold.
WIDTH, _VECTORS, ROWS = (8, 3, 8) if _FEATURES.get("avx512f") else (4, 3, 4) if _FEATURES.get("avx") else (2, 4, 4)
COLUMNS = WIDTH * _VECTORS
_TILE = ROWS * COLUMNS
_DOUBLE, _INDEX, _LANE = ir.DoubleType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_DOUBLE, WIDTH)
_EXPONENT = np.int64(0x7FF0000000000000)


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _load(builder: Any, address: Any, offset: int) -> Any:
    at = builder.gep(address, [ir.Constant(_INDEX, offset)])
    value = builder.load(builder.bitcast(at, _VECTOR.as_pointer()))
    value.align = 8
    return value


def _store(builder: Any, value: Any, address: Any, offset: Any) -> None:
    at = builder.gep(address, [offset])
    builder.store(value, builder.bitcast(at, _VECTOR.as_pointer())).align = 8


def _spread(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_LANE, WIDTH), [0] * WIDTH))


def _vector_function(builder: Any, name: str, arity: int) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * arity)
    insert: Any = cgutils.get_or_insert_function
    return insert(builder.module, kind, f"llvm.{name}.v{WIDTH}f64")


@_vector_code
def _tile_product(typing: Any, a: Any, at: Any, b: Any, bt: Any, terms: Any, c: Any, ct: Any, add: Any) -> Any:
    """Put the product of two panels into the tile ``c[ct:]``, or add it if ``add`` is not 0; ``terms >= 1``.

    ``a[at:]`` has ROWS values for each term, ``b[bt:]`` COLUMNS; the tile is row by row.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds = signature.args
        left, right, into = (_address(context, builder, kinds[i], given[i], given[i + 1]) for i in (0, 2, 5))
        count = ROWS * _VECTORS
        multiply_add = _vector_function(builder, "fmuladd", 3)
        entry, function = builder.block, builder.function
        loading, start, loop, end = (function.append_basic_block(n) for n in ("loading", "start", "terms", "end"))
        builder.cbranch(builder.icmp_signed("!=", given[7], ir.Constant(given[7].type, 0)), loading, start)
        builder.position_at_end(loading)
        loaded = [_load(builder, into, i * WIDTH) for i in range(count)]
        builder.branch(start)
        builder.position_at_end(start)
        initial = []
        for i in range(count):
            value = builder.phi(_VECTOR)
            value.add_incoming(ir.Constant(_VECTOR, [0.0] * WIDTH), entry)
            value.add_incoming(loaded[i], loading)
            initial.append(value)
        builder.branch(loop)
        builder.position_at_end(loop)
        states = [(ir.Constant(_INDEX, 0), _INDEX), (left, left.type), (right, right.type)]
        done, row_at, column_at = (builder.phi(kind) for _, kind in states)
        sums = [builder.phi(_VECTOR) for _ in range(count)]
        columns = [_load(builder, column_at, i * WIDTH) for i in range(_VECTORS)]
        updated = []
        for row in range(ROWS):
            factor = _spread(builder, builder.load(builder.gep(row_at, [ir.Constant(_INDEX, row)])))
            for i in range(_VECTORS):
                updated.append(builder.call(multiply_add, [factor, columns[i], sums[row * _VECTORS + i]]))
        following = [
            builder.add(done, ir.Constant(_INDEX, 1)),
            builder.gep(row_at, [ir.Constant(_INDEX, ROWS)]),
            builder.gep(column_at, [ir.Constant(_INDEX, COLUMNS)]),
        ]
        first = [value for value, _ in states] + initial
        for phi, before, after in zip([done, row_at, column_at, *sums], first, following + updated, strict=True):
            phi.add_incoming(before, start)
            phi.add_incoming(after, loop)
        builder.cbranch(builder.icmp_signed("<", following[0], given[4]), loop, end)
        builder.position_at_end(end)
        for i in range(count):
            _store(builder, updated[i], into, ir.Constant(_INDEX, i * WIDTH))
        return context.get_dummy_value()

    return types.void(a, at, b, bt, terms, c, ct, add), generate


@_vector_code
def _copy_row(typing: Any, into: Any, to: Any, source: Any, at: Any) -> Any:
    """Copy COLUMNS values from ``source[at:]`` to ``into[to:]``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        target, origin = (_address(context, builder, signature.args[i], given[i], given[i + 1]) for i in (0, 2))
        values = [_load(builder, origin, i * WIDTH) for i in range(_VECTORS)]
        for i, value in enumerate(values):
            _store(builder, value, target, ir.Constant(_INDEX, i * WIDTH))
        return context.get_dummy_value()

    return types.void(into, to, source, at), generate


def _rounding(builder: Any, limit: Any) -> Any:
    """Return a function of a vector and a shift that rounds as ``_round`` does; ``limit`` is a double."""
    absolute, signed = _vector_function(builder, "fabs", 1), _vector_function(builder, "copysign", 2)
    infinite, limits = ir.Constant(_VECTOR, [float("inf")] * WIDTH), _spread(builder, limit)

    def rounded(value: Any, shift: Any) -> Any:
        shifts = _spread(builder, shift)
        near = builder.fsub(builder.fadd(value, shifts), shifts)
        far = builder.fcmp_ordered(">=", builder.call(absolute, [value]), limits)
        return builder.select(far, builder.call(signed, [infinite, value]), near)

    return rounded


@_vector_code
def _round_vector(typing: Any, into: Any, to: Any, source: Any, at: Any, shift: Any, limit: Any) -> Any:
    """Put WIDTH values from ``source[at:]``, rounded as ``_round`` does, into ``into[to:]``."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        target, origin = (_address(context, builder, signature.args[i], given[i], given[i + 1]) for i in (0, 2))
        value = _rounding(builder, given[5])(_load(builder, origin, 0), given[4])
        _store(builder, value, target, ir.Constant(_INDEX, 0))
        return context.get_dummy_value()

    return types.void(into, to, source, at, shift, limit), generate


@_vector_code
def _transpose(
    typing: Any, into: Any, to: Any, step: Any, source: Any, at: Any, rows: Any, first: Any, shifts: Any, limit: Any
) -> Any:
    """Put ``source[at + rows[first + r] + i]`` into ``into[to + i * step + r]`` for r and i below WIDTH.

    Each value is rounded as ``_round`` does, with ``shifts[first + r]``.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds = signature.args
        target = _address(context, builder, kinds[0], given[0], given[1])
        origin = _address(context, builder, kinds[3], given[3], given[4])
        places = _address(context, builder, kinds[5], given[5], given[6])
        constants = _address(context, builder, kinds[7], given[7], given[6])
        rounded = _rounding(builder, given[8])
        lines = []
        for row in range(WIDTH):
            place = builder.load(builder.gep(places, [ir.Constant(_INDEX, row)]))
            shift = builder.load(builder.gep(constants, [ir.Constant(_INDEX, row)]))
            lines.append(rounded(_load(builder, builder.gep(origin, [place]), 0), shift))
        bit = 1
        while bit < WIDTH:  # swap what lies off the diagonal in blocks of 1, 2, 4, ...
            for row in range(WIDTH):
                if row & bit:
                    continue
                low, high = lines[row], lines[row | bit]
                for name, own, line in (("low", 0, row), ("high", bit, row | bit)):
                    lanes = []
                    for lane in range(WIDTH):
                        stays = (lane & bit) == own
                        from_low = stays if name == "low" else not stays
                        lanes.append((lane if stays else lane ^ bit) + (0 if from_low else WIDTH))
                    mask = ir.Constant(ir.VectorType(_LANE, WIDTH), lanes)
                    lines[line] = builder.shuffle_vector(low, high, mask)
            bit *= 2
        for i in range(WIDTH):
            _store(builder, lines[i], target, builder.mul(given[2], ir.Constant(_INDEX, i)))
        return context.get_dummy_value()

    return types.void(into, to, step, source, at, rows, first, shifts, limit), generate


@compiled
def _round(value: Any, shift: Any, limit: Any) -> Any:
    """Quantise as ``quantise`` does; with ``shift`` 0 and ``limit`` infinity the value stays (but -0 becomes 0)."""
    rounded = (value + shift) - shift
    return np.copysign(np.inf, value) if abs(value) >= limit else rounded


@compiled
def largest_exponent(values: Any) -> Any:
    """Return the largest exponent field, in place, that of NaN and infinities included."""
    pattern = values.view(np.int64)
    best = np.int64(0)
    for i in range(pattern.size):
        best = max(best, pattern[i] & _EXPONENT)
    return best


@compiled
def _runs(start: Any, stop: Any, cut: Any, places: Any, width: Any, grid: Any, runs: Any) -> Any:
    """List the runs of neighbouring positions in ``start`` to ``stop``, cut every ``cut`` positions; return how many.

    A position is (sample, row, column) of ``places`` a sample and ``width`` a row. ``grid`` has the strides
    (sample, row) of the source and (sample, row, column, first place) of the output. A row of ``runs`` is
    (place behind ``start``, length, source, output, sample).
    """
    count = 0
    at = start
    while at < stop:
        sample = at // places
        row = (at - sample * places) // width
        column = at - sample * places - row * width
        length = min(width - column, stop - at, cut - (at - start) % cut)
        runs[count, 0], runs[count, 1], runs[count, 4] = at - start, length, sample
        runs[count, 2] = sample * grid[0] + row * grid[1] + column
        runs[count, 3] = sample * grid[2] + row * grid[3] + column * grid[4] + grid[5]
        count += 1
        at += length
    return count


@compiled
def _pack_windows(source: Any, into: Any, runs: Any, taps: Any, plane: Any, channels: Any) -> None:
    """Write panels of COLUMNS positions, for each term (channel of ``channels``, tap) a row, panel after panel.

    A run is copied as a whole row: what is too much is overwritten by the next run, row or panel. The source is long
    enough for that.
    """
    first, panels = 0, (runs[-1, 0] + runs[-1, 1] + COLUMNS - 1) // COLUMNS
    to = 0
    for panel in range(panels):
        last = first
        while last < runs.shape[0] and runs[last, 0] < (panel + 1) * COLUMNS:
            last += 1
        for c in range(channels[0], channels[1]):
            for t in range(taps.size):
                for r in range(first, last):
                    _copy_row(into, to + runs[r, 0] - panel * COLUMNS, source, runs[r, 2] + c * plane + taps[t])
                to += COLUMNS
        first = last


@compiled
def _pack_planes(source: Any, into: Any, runs: Any, plane: Any, channels: Any, shifts: Any, limit: Any) -> None:
    """Write the same panels for one tap at place 0, rounded, from a source that may end with its last element."""
    depth = channels[1] - channels[0]
    stop = runs[-1, 0] + runs[-1, 1]
    for c in range(depth):
        for r in range(runs.shape[0]):
            panel = runs[r, 0] // COLUMNS
            to = (panel * depth + c) * COLUMNS + runs[r, 0] - panel * COLUMNS
            at, length, shift = runs[r, 2] + (channels[0] + c) * plane, runs[r, 1], shifts[runs[r, 4]]
            whole = length - length % WIDTH
            for i in range(0, whole, WIDTH):
                _round_vector(into, to + i, source, at + i, shift, limit)
            for i in range(whole, length):
                into[to + i] = _round(source[at + i], shift, limit)
        if stop % COLUMNS:  # fill up the last panel
            end = ((stop // COLUMNS) * depth + c) * COLUMNS
            into[end + stop % COLUMNS : end + COLUMNS] = 0.0


@compiled
def _add_row(into: Any, values: Any, bias: Any) -> None:
    for i in range(into.size):
        into[i] = values[i] + bias


@compiled
def _write_rows(tiles: Any, out: Any, runs: Any, rows: Any, plane: Any, step: Any, bias: Any) -> None:
    """Write the rows ``rows`` of a row of tiles to the output, run by run."""
    for row in range(rows[0], rows[1]):
        for r in range(runs.shape[0]):
            lane, length, at = runs[r, 0], runs[r, 1], row * plane + runs[r, 3]
            panel = lane // COLUMNS
            begin = panel * _TILE + (row - rows[0]) * COLUMNS + lane - panel * COLUMNS
            if step == 1:
                _add_row(out[at : at + length], tiles[begin : begin + length], bias[row])
            else:
                for i in range(length):
                    out[at + i * step] = tiles[begin + i] + bias[row]


@compiled
def gather(
    source: Any,
    left: Any,
    out: Any,
    shifts: Any,
    limit: Any,
    bias: Any,
    taps: Any,
    sizes: Any,
    grid: Any,
    share: Any,
    right: Any,
    tiles: Any,
    runs: Any,
) -> Any:
    """Write ``out[m, p] = bias[m] + sum of left[m, (c, t)] * source[c, p + taps[t]]``; return the largest exponent.

    ``sizes``: (channels, channel stride of the source, channels of a block, positions, positions a sample, of a row,
    outputs m, their stride, direct); ``grid``: see ``_runs``; ``share``: panels of positions and panels of outputs
    from, to; ``right``, ``tiles`` and ``runs`` are room for a block.
    """  # fmt: skip
    channels, plane, block, positions, places, width, outputs, out_plane, direct = sizes
    group = runs.shape[0] // COLUMNS
    terms = channels * taps.size
    worst = np.int64(0)
    for panel in range(share[0], share[1], group):
        count = min(group, share[1] - panel)
        start, stop = panel * COLUMNS, min((panel + count) * COLUMNS, positions)
        here = runs[: _runs(start, stop, COLUMNS, places, width, grid, runs)]
        for c0 in range(0, channels, block):
            c1 = min(c0 + block, channels)
            depth = (c1 - c0) * taps.size
            if direct:
                _pack_planes(source, right, here, plane, (c0, c1), shifts, limit)
            else:
                _pack_windows(source, right, here, taps, plane, (c0, c1))
            for i in range(share[2], share[3]):
                slot = (i - share[2]) * count * _TILE if block < channels else 0
                for j in range(count):
                    at = (i * terms + c0 * taps.size) * ROWS
                    _tile_product(left, at, right, j * depth * COLUMNS, depth, tiles, slot + j * _TILE, c0)
                if c1 == channels:
                    row = tiles[slot : slot + count * _TILE]
                    worst = max(worst, largest_exponent(row))
                    rows = (i * ROWS, min((i + 1) * ROWS, outputs))
                    _write_rows(row, out, here, rows, out_plane, grid[4], bias)
    return worst


@compiled
def _pack_transposed(
    source: Any, into: Any, to: Any, width: Any, runs: Any, field: Any, rows: Any, first: Any, shifts: Any, limit: Any
) -> None:
    """Write, for each position of the runs, its value in ``width`` rows of the source from ``first``, rounded.

    Up to WIDTH - 1 positions too much are written behind each run: the next run or panel overwrites them.
    """
    for r in range(runs.shape[0]):
        for i in range(0, runs[r, 1], WIDTH):
            for g in range(0, width, WIDTH):
                at = to + (runs[r, 0] + i) * width + g
                _transpose(into, at, width, source, runs[r, field] + i, rows, first + g, shifts, limit)


@compiled
def weight_gradient(
    grad: Any,
    source: Any,
    out: Any,
    grad_rows: Any,
    grad_shifts: Any,
    source_rows: Any,
    source_shifts: Any,
    limits: Any,
    sizes: Any,
    grid: Any,
    share: Any,
    group: Any,
    left: Any,
    right: Any,
    tiles: Any,
    runs: Any,
) -> Any:
    """Write ``out[m, k] = sum over p of grad[m, p] * source[k, p]``; return the largest exponent.

    ``grad_rows`` and ``source_rows`` are the places of the rows m and k, filled up to whole panels; ``sizes``:
    (positions, of a block, of a sample, of a row, outputs m, outputs k); ``grid``: see ``_runs``, the gradient as
    output; ``share``: panels of m and panels of k from, to; ``left``, ``right``, ``tiles`` and ``runs`` are room.
    """  # fmt: skip
    positions, block, places, width, outputs, terms = sizes
    i0, i1, j0, j1 = share
    for start in range(0, positions, block):
        stop = min(start + block, positions)
        depth = stop - start
        here = runs[: _runs(start, stop, block, places, width, grid, runs)]
        for i in range(i0, i1):
            to = (i - i0) * depth * ROWS
            _pack_transposed(grad, left, to, ROWS, here, 3, grad_rows, i * ROWS, grad_shifts, limits[0])
        for j in range(j0, j1, group):
            count = min(group, j1 - j)
            for g in range(count):
                to, k = g * depth * COLUMNS, (j + g) * COLUMNS
                _pack_transposed(source, right, to, COLUMNS, here, 2, source_rows, k, source_shifts, limits[1])
            for i in range(i0, i1):
                for g in range(count):
                    tile = ((i - i0) * (j1 - j0) + j - j0 + g) * _TILE
                    at = (i - i0) * depth * ROWS
                    _tile_product(left, at, right, g * depth * COLUMNS, depth, tiles, tile, start)
    for m in range(i0 * ROWS, min(i1 * ROWS, outputs)):
        for j in range(j0, j1):
            k, size = j * COLUMNS, min(COLUMNS, terms - j * COLUMNS)
            at = ((m // ROWS - i0) * (j1 - j0) + j - j0) * _TILE + (m % ROWS) * COLUMNS
            out[m * terms + k : m * terms + k + size] = tiles[at : at + size]
    return largest_exponent(tiles[: (i1 - i0) * (j1 - j0) * _TILE])
