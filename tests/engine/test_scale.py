"""The lower bound of a result's scale: below the size of the terms, a sum's own magnitude means nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vt_core.engine.scale import scale_floors
from vt_core.numerics import DEFAULT, Grid, OpClass, Tolerance, auditor_round_, trainer_round_

GRID = Grid.parse("float32")


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


X, Y = tensor(-3.0, 0.5).reshape(1, 2), tensor(2.0, -8.0).reshape(2, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mm", {"self": X, "mat2": Y}),
        ("bmm", {"self": X[None], "mat2": Y[None]}),
        ("mv", {"self": X, "vec": Y[:, 0]}),
        ("dot", {"self": X[0], "tensor": Y[:, 0]}),
        ("vdot", {"self": X[0], "other": Y[:, 0]}),
        ("addmm", {"self": tensor(100.0), "mat1": X, "mat2": Y}),
        ("addbmm", {"self": tensor(100.0), "batch1": X[None], "batch2": Y[None]}),
        ("baddbmm", {"self": tensor(100.0), "batch1": X[None], "batch2": Y[None]}),
        ("addmv", {"self": tensor(100.0), "mat": X, "vec": Y[:, 0]}),
        ("convolution", {"input": X[None], "weight": Y[None]}),
        ("linear", {"input": X, "weight": Y.t()}),
    ],
)
def test_a_product_is_bounded_by_its_largest_term(name: str, arguments: dict[str, Any]) -> None:
    assert scale_floors(name, arguments, 3) == (24.0, 24.0, 24.0)


def test_a_product_is_bounded_with_its_factor() -> None:
    arguments = {"self": tensor(100.0), "mat1": X, "mat2": Y, "alpha": -0.5, "beta": 3}
    assert scale_floors("addmm", arguments, 1) == (12.0,)


def test_sums_grow_like_a_random_walk_and_means_shrink() -> None:
    for n, factor in ((1, 1.0), (4096, 1.0), (1 << 14, 2.0), (1 << 20, 16.0)):
        x = torch.full((n,), -3.0, dtype=torch.float64)
        assert scale_floors("sum", {"self": x}, 1) == (3.0 * factor,)
        assert scale_floors("cumsum", {"self": x}, 1) == (3.0 * factor,)
        assert scale_floors("mean", {"self": x}, 1) == (3.0 / n,)


def test_the_three_gradients_of_a_convolution() -> None:
    grad, x, w = torch.full((2, 5, 4, 4), 2.0), torch.full((2, 3, 4, 4), 3.0), torch.full((5, 3, 1, 1), 7.0)
    arguments = {"grad_output": grad, "input": x, "weight": w}
    assert scale_floors("convolution_backward", arguments, 3) == (14.0, 6.0, 2.0)


@pytest.mark.parametrize(
    "name", ["native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"]
)
def test_normalisation_gradients_of_scale_and_shift(name: str) -> None:
    assert scale_floors(name, {"grad_out": X}, 3) == (0.0, 3.0, 3.0)


def test_other_operations_have_no_floor() -> None:
    assert scale_floors("exp", {"self": X}, 3) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_infinities_and_nan_do_not_make_a_floor(bad: float) -> None:
    x = tensor(bad, 0.5).reshape(1, 2)
    assert scale_floors("mm", {"self": x, "mat2": Y}, 1) == (4.0,)
    huge = torch.full((1, 2), 1e200, dtype=torch.float64)
    assert scale_floors("mm", {"self": huge, "mat2": huge.t()}, 1) == (0.0,), "the product of the bounds overflows"


def test_empty_tensors() -> None:
    empty = torch.empty(0, 3, dtype=torch.float64)
    assert scale_floors("mm", {"self": empty, "mat2": torch.ones(3, 2)}, 1) == (0.0,)
    for name in ("sum", "mean"):
        assert scale_floors(name, {"self": empty}, 1) == (0.0,)


def cancelling(seed: int) -> Tensor:
    """Return terms on the grid, shape (4096, 64), of many magnitudes, whose column sums are zero but for rounding."""
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((2048, 64)) * np.exp2(rng.uniform(-40, 0, (2048, 64)))
    terms = np.concatenate([half, -half]).astype(np.float32).astype(np.float64)
    terms[0] += 2.0**-30  # leaves a remainder that is far smaller than the terms
    return torch.from_numpy(terms)


def in_order(terms: Tensor, seed: int) -> Tensor:
    """Return the column sums, added one after the other in some order: two honest machines."""
    order = np.random.default_rng(seed).permutation(len(terms))
    return torch.from_numpy(np.cumsum(terms.numpy()[order], axis=0)[-1].copy())


def game(tolerance: Tolerance, floored: bool) -> tuple[float, bool, int]:
    """Return the largest difference in tolerances, whether auditor and trainer agree, and the number of findings."""
    worst, equal, findings = 0.0, True, 0
    for seed in range(20):
        terms = cancelling(seed)
        floor = scale_floors("sum", {"self": terms}, 1)[0] if floored else 0.0
        trainer, auditor = in_order(terms, 1), in_order(terms, 2)
        scale = max(float(trainer.abs().max()), floor)
        tau = tolerance.atol * 2.0 ** math.ceil(math.log2(scale))
        worst = max(worst, float((trainer - auditor).abs().max()) / tau)
        logged = trainer_round_(trainer, tolerance, GRID, True, floor)
        found = auditor_round_(auditor, tolerance, GRID, logged.entries, True, floor)
        equal &= torch.equal(trainer, auditor)
        findings += len(found.findings)
    return worst, equal, findings


def test_two_orders_of_a_cancelling_sum_agree_with_the_floor_and_not_without() -> None:
    tolerance = DEFAULT["float64"].tolerances[OpClass.REDUCTION]
    worst, equal, findings = game(tolerance, floored=True)
    assert worst < 0.5 and equal and findings == 0
    worst, equal, findings = game(tolerance, floored=False)
    assert worst > 1000
    assert not equal or findings > 0
