"""Compiled updates, block by block: tame or not, each has the bits of the reference."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from update_support import SPECIAL

from vt_core.engine import updates
from vt_core.numerics import Grid, _jit_optimizers, fingerprint, round_plain_
from vt_core.numerics._jit_base import BLOCK
from vt_core.numerics.plan import grid_params, plan_for

# The last two have many blocks; the last one is shared by threads.
SIZES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 30 * BLOCK + 7, _jit_optimizers._SMALL + 35 * BLOCK + 3)
_FLAGS = {"maximize": False, "first": False, "nesterov": False}
_SGD = _FLAGS | {"weight_decay": None, "momentum": 0.9, "weight": 1.0, "lr": 0.1}
_ADAM = {"maximize": False, "shrink": None, "weight_decay": None, "weight1": 0.1, "beta2": 0.999, "weight2": 0.001,
         "bias2": 0.25, "eps": 1e-3, "value": -0.01}  # fmt: skip
_DECAY: dict[str, Any] = {"weight_decay": 0.01}
# Name: operation, whether the last of its tensors is there, arguments that are not tensors.
VARIANTS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "sgd": ("sgd", False, _SGD),
    "sgd decayed": ("sgd", False, _SGD | _DECAY | {"maximize": True}),
    "sgd first": ("sgd", True, _SGD | {"first": True}),
    "sgd first nesterov": ("sgd", True, _SGD | {"first": True, "nesterov": True}),
    "sgd momentum": ("sgd", True, _SGD | _DECAY | {"weight": 0.7}),
    "sgd undecayed": ("sgd", True, _SGD),
    "sgd nesterov": ("sgd", True, _SGD | _DECAY | {"nesterov": True, "maximize": True}),
    "adam": ("adam", False, _ADAM),
    "adam decayed": ("adam", False, _ADAM | _DECAY | {"maximize": True, "weight1": 0.7}),
    "adam amsgrad": ("adam", True, _ADAM | _DECAY),
    "adamw": ("adam", False, _ADAM | {"shrink": 0.999}),
    "adamw amsgrad": ("adam", True, _ADAM | {"shrink": 0.999}),
}
GRIDS = ("bfloat16", "float16", "float32-d1", "float32-d4")  # computed in float32, no value of float32-d1 is tame


def rounded(x: Tensor, grid: Grid) -> Tensor:
    round_plain_(x, grid, False)
    return x


def tensors(name: str, last: bool, size: int, dtype: torch.dtype, grid: Grid) -> dict[str, Tensor | None]:
    """Ordinary values, and in two blocks of three one element of one tensor that may be anything."""
    random = np.random.default_rng(size)
    names = ["grad", *updates._WRITTEN[name]]
    values = {key: random.standard_normal(size) * 10.0 ** random.integers(-3, 1, size) for key in names}
    special = np.array(SPECIAL)
    for block in range(size // BLOCK + 1):
        at = block * BLOCK + int(random.integers(min(BLOCK, max(1, size - block * BLOCK))))
        if block % 3 and at < size:
            near_overflow = random.choice([-1.0, 1.0]) * 2.0 ** (grid.emax + random.uniform(-4.0, 1.0))
            near_zero = 2.0 ** (grid.quantum_exponent + random.uniform(-2.0, 2.0))
            unusual = random.choice([near_overflow, near_zero, random.choice(special)])
            values[names[block // 3 % len(names)]][at] = unusual
    for key in names[3:]:  # of Adam: sums of squares
        values[key] = np.abs(values[key])
    with np.errstate(over="ignore"):
        own: dict[str, Tensor | None] = {key: torch.from_numpy(value).to(dtype) for key, value in values.items()}
    for key in names[1:]:
        rounded(own[key], grid)  # type: ignore[arg-type]
    return own if last else own | {names[-1]: None}


def arguments(variant: str, size: int, dtype: torch.dtype, grid: Grid, **others: float) -> dict[str, Any]:
    """Arguments of an update, the numbers rounded to float32 as the engine does."""
    name, last, scalars = VARIANTS[variant]
    plain = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in (scalars | others).items()}
    return {**tensors(name, last, size, dtype, grid), **plain}


def copied(of: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in of.items()}


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)


def assert_equals_reference(variant: str, own: dict[str, Any], grid: Grid) -> None:
    name = VARIANTS[variant][0]
    expected = copied(own)
    updates.reference(name, expected, grid)
    keys = [key for key in updates._WRITTEN[name] if own[key] is not None]
    written = updates.update(name, own, own["param"].dtype, grid)
    for key, (tensor, found) in zip(keys, written, strict=True):
        assert tensor is own[key]
        differ = torch.nonzero(bits(tensor) != bits(expected[key])).flatten()
        assert differ.numel() == 0, (key, differ[:5], tensor[differ[:5]], expected[key][differ[:5]])
        assert found == fingerprint(expected[key])


CASES = [(variant, dtype, grid) for variant in VARIANTS for dtype in (torch.float32, torch.float64) for grid in GRIDS]


@pytest.mark.parametrize(("variant", "dtype", "grid"), CASES, ids=str)
def test_all_blocks_have_the_bits_of_the_reference(
    variant: str, dtype: torch.dtype, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_jit_optimizers, "worker_count", lambda: 3)
    target = Grid.parse(grid)
    for size in SIZES:
        assert_equals_reference(variant, arguments(variant, size, dtype, target), target)


# Where the sequence rounds: a variant, arguments, and values of one element so that only there something is not tame
# for float16, which is below 2**14. A root that is not tame has a bound that is not.
SITES: dict[str, tuple[str, dict[str, float], dict[str, float]]] = {
    "sgd decay": ("sgd momentum", {"weight": 2.0**-10}, {"grad": 20000.0}),
    "sgd momentum": ("sgd undecayed", {"momentum": 2.0, "lr": 2.0**-10},
                     {"momentum_buffer": 10000.0, "grad": -10000.0}),
    "sgd buffer": ("sgd undecayed", {"lr": 2.0**-10}, {"momentum_buffer": 10000.0, "grad": 9000.0}),
    "sgd first buffer": ("sgd first", {"lr": 2.0**-10}, {"grad": 20000.0}),
    "sgd nesterov": ("sgd first nesterov", {"lr": 2.0**-10, "momentum": 0.75}, {"grad": 10000.0}),
    "sgd parameter": ("sgd", {"lr": 0.5}, {"param": 10000.0, "grad": -20000.0}),
    "adam shrink": ("adamw", {"shrink": 2.0, "weight2": 0.0, "eps": 1.0, "value": -1.0},
                    {"param": 10000.0, "exp_avg": 10000.0, "grad": 10000.0, "exp_avg_sq": 0.0}),
    "adam decay": ("adam decayed", {"weight1": 2.0**-10, "weight2": 2.0**-20}, {"grad": 20000.0}),
    "adam mean": ("adam", {"eps": 1.0, "value": -(2.0**-10)}, {"exp_avg": 20000.0}),
    "adam old square": ("adam", {"beta2": 2.0, "weight2": -0.5}, {"exp_avg_sq": 10000.0, "grad": 128.0}),
    "adam square": ("adam", {"weight2": 1.0}, {"exp_avg_sq": 10000.0, "grad": 100.0}),
    "adam bound": ("adam amsgrad", {}, {"max_exp_avg_sq": 20000.0}),
    "adam scale": ("adam", {"bias2": 2.0**-12}, {"exp_avg_sq": 100.0}),
    "adam parameter": ("adam", {}, {"param": 20000.0}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("site", SITES)
def test_one_value_that_is_not_tame_makes_its_block_alone_general(
    site: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told with two grids, one for tame blocks and one for the others: each block is on the grid of its kind."""
    tame, general = Grid.parse("float16"), Grid.parse("float32-d8")
    variant, scalars, values = SITES[site]
    random = torch.Generator().manual_seed(1)
    name, last, fixed = VARIANTS[variant]
    keys = ["grad", *updates._WRITTEN[name]]
    own: dict[str, Any] = fixed | scalars
    for key in keys:
        own[key] = rounded(torch.rand(4 * BLOCK, generator=random, dtype=torch.float64).to(dtype) * 0.5 + 0.25, tame)
    own |= {} if last else {keys[-1]: None}
    for key, value in values.items():
        own[key][BLOCK + 77] = value
    own["param"][2 * BLOCK + 5] = 15000.0 / scalars.get("shrink", 1.0)  # when rounded, of the largest tame exponent
    expected = {grid: copied(own) for grid in (tame, general)}
    for grid, of in expected.items():
        updates.reference(name, of, grid)
    constants = grid_params(general), _jit_optimizers.tame_constants(plan_for(tame, None, dtype).ints)
    monkeypatch.setattr(updates, "_constants", lambda *_: constants)
    written = updates.update(name, own, dtype, tame)
    present = [key for key in updates._WRITTEN[name] if own[key] is not None]
    for key in present:
        for block, grid in enumerate((tame, general, tame, tame)):
            part = slice(block * BLOCK, (block + 1) * BLOCK)
            assert torch.equal(bits(own[key][part]), bits(expected[grid][key][part])), (key, block)
    assert [found for _, found in written] == [fingerprint(tensor) for tensor, _ in written]
    for block in range(4):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        assert any(not torch.equal(expected[tame][key][part], expected[general][key][part]) for key in present)


@pytest.mark.parametrize("grid", ["float32", "bfloat16"])
def test_no_loop_fuses_a_product_into_a_sum(grid: str) -> None:
    """As a multiply-add of the processor would, with other bits. Compiled here, as cached code cannot be looked at."""
    params, tame = updates._constants(Grid.parse(grid), torch.float32)
    x, number = np.ones(BLOCK, np.float32), np.float32(0.5)
    loops = [(_jit_optimizers._sgd_block, 3, (number,) * 6),
             (_jit_optimizers._adam_block, 5, (*(number,) * 3, True, *(number,) * 6))]  # fmt: skip
    for function, arrays, scalars in loops:
        for kind in {tame, None}:
            fresh = numba.njit(error_model="numpy")(function.py_func)
            fresh(*(x.copy() for _ in range(arrays)), params, kind, *scalars)
            (code,) = fresh.inspect_llvm().values()
            assert "fmul" in code
            assert not any(word in code for word in ("llvm.fma", "llvm.fmuladd", " fast ", "contract"))
