"""Divergence in units of the scale and in tolerances, its distribution, and what another order of summation gives."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vt_core.numerics import OpClass, Tolerance
from vt_core.verify.divergence import Measured, Spread, divergence
from vt_core.verify.permuted import _FORMS, permuted_outputs

ABSOLUTE = Tolerance(None, -44)
aten = torch.ops.aten


def test_a_known_error_is_measured_exactly() -> None:
    x = np.array([3.0, -1.5, 0.0, 2.0**-40])
    other = x + np.array([2.0**-48, -(2.0**-45), 2.0**-60, 0.0])
    scaled, tolerances = divergence(x, other, ABSOLUTE, 2)
    assert scaled.tolist() == [2.0**-50, 2.0**-47, 2.0**-62, 0.0]
    assert tolerances.tolist() == [2.0**-6, 2.0**-3, 2.0**-18, 0.0]
    relative = divergence(x, other, Tolerance(-44, -46), 2)[1]
    tau = np.abs(x) * 2.0**-44 + 2.0**-44
    assert np.array_equal(relative, np.abs(other - x) / tau)


def test_values_without_a_difference() -> None:
    inf, nan = math.inf, math.nan
    x = np.array([inf, -inf, nan, inf, 1.0, nan, 1.0, -0.0])
    other = np.array([inf, -inf, nan, -inf, inf, 1.0, nan, 0.0])
    for dtype in (np.float64, np.float32):
        scaled, tolerances = divergence(x.astype(dtype), other.astype(dtype), Tolerance(-19, -20), 0)
        expected = [0.0, 0.0, 0.0, inf, inf, inf, inf, 0.0]
        assert scaled.tolist() == expected and tolerances.tolist() == expected
    assert divergence(np.empty(0), np.empty(0), ABSOLUTE, 0)[0].size == 0


def test_float32_is_compared_in_float64() -> None:
    x = np.array([1.0], np.float32)
    other = np.nextafter(x, np.float32(2))
    assert divergence(x, other, Tolerance(None, -16), 0)[1][0] == 2.0**-7
    tiny = np.array([1e-45], np.float32)
    assert divergence(tiny, tiny * 0, Tolerance(None, -16), -100)[0][0] == 2.0**-49


def test_quantiles_are_at_most_an_eighth_of_an_octave_above() -> None:
    spread = Spread()
    values = np.exp(np.random.Generator(np.random.PCG64(1)).normal(size=100_000))
    spread.add(values, 3.0)
    for share in (0.5, 0.99, 0.9999):
        exact = np.quantile(values, share, method="inverted_cdf")
        assert exact <= spread.quantile(share) <= exact * 2.0**0.125 * 1.0001
    assert spread.quantile(1.0) == spread.largest == values.max()
    spread.add(np.array([1e9]), 0.0)
    assert spread.largest == 1e9 and spread.quantile(1.0) < 1e9, "kept as the largest, not as one of many"


def test_zeros_and_infinities_have_their_place() -> None:
    spread = Spread()
    assert spread.quantile(0.5) == 0.0
    spread.add(np.array([0.0, 0.0, 0.0, math.inf]), 1.0)
    assert spread.quantile(0.75) == 0.0 and spread.quantile(0.76) == math.inf


def test_processes_can_be_put_together() -> None:
    parts = []
    for i in range(3):
        part = Measured()
        place = part.at("aten.mm.default", "linear", OpClass.CONTRACTION)
        place.elements, place.compared = 10, 4
        place.add(np.full(4, 2.0**-50), np.full(4, 0.1 * (i + 1)), 2.5)
        parts.append(Measured.from_json(json.loads(json.dumps(part.to_json()))))
    parts[1].at("aten.sum.default", "", OpClass.REDUCTION).add(np.array([1.0]), np.array([9.0]), 1.0)
    whole = Measured()
    for part in parts:
        whole.merge(part)
    total = whole.total(OpClass.CONTRACTION)
    assert (total.elements, total.compared, total.op, total.module) == (30, 12, "aten.mm.default", "linear")
    assert total.tolerances.largest == pytest.approx(0.3) and sum(total.tolerances.weights.values()) == 30.0
    assert [p.op for p in whole.worst(5)] == ["aten.sum.default", "aten.mm.default"]
    assert whole.total(OpClass.OTHER).compared == 0


def some(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


CONVOLUTION = {
    "stride": [2, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0],
}  # fmt: skip
X, W, G = some(5, 6, 7, 8), some(4, 3, 3, 3), some(5, 4, 4, 8)
NORM_IN, ROWS = some(6, 5, 33), some(6, 5, 33)
NORMED = aten.native_layer_norm.default(NORM_IN, [33], some(33), some(33), 1e-5)
BATCHED = aten.native_batch_norm.default(X, some(6), some(6), None, None, True, 0.1, 1e-5)
ONE = {"groups": 1, "weight": some(4, 6, 3, 3)}
CASES: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("mm", aten.mm.default, {"self": some(5, 300), "mat2": some(300, 4)}),
    ("bmm", aten.bmm.default, {"self": some(3, 5, 300), "mat2": some(3, 300, 4)}),
    ("addmm", aten.addmm.default, {"self": some(4), "mat1": some(5, 300), "mat2": some(300, 4)}),
    ("baddbmm", aten.baddbmm.default, {"self": some(4), "batch1": some(3, 5, 300), "batch2": some(3, 300, 4)}),
    ("mv", aten.mv.default, {"self": some(5, 300), "vec": some(300)}),
    ("addmv", aten.addmv.default, {"self": some(5), "mat": some(5, 300), "vec": some(300)}),
    ("dot", aten.dot.default, {"self": some(3000), "tensor": some(3000) + 1}),
    ("convolution", aten.convolution.default, {"input": X, "weight": W, "bias": some(4), "groups": 2, **CONVOLUTION}),
    ("convolution", aten.convolution.default, {"input": X, "bias": None, **ONE, **CONVOLUTION}),
    ("convolution_backward", aten.convolution_backward.default, {
        "grad_output": G, "input": X, "weight": W, "bias_sizes": [4], "groups": 2, "output_mask": [True] * 3,
        **CONVOLUTION}),
    ("convolution_backward", aten.convolution_backward.default, {
        "grad_output": G, "input": X, "bias_sizes": [4], "output_mask": [True] * 3, **ONE, **CONVOLUTION}),
    ("convolution_backward", aten.convolution_backward.default, {
        "grad_output": G, "input": X, "bias_sizes": None, "output_mask": [False, True, False], **ONE, **CONVOLUTION}),
    ("sum", aten.sum.default, {"self": some(30, 40)}),
    ("sum", aten.sum.dim_IntList, {"self": some(30, 40, 5), "dim": [0, -1], "keepdim": True}),
    ("mean", aten.mean.dim, {"self": some(30, 40, 5), "dim": [1]}),
    ("var", aten.var.correction, {"self": some(30, 40), "dim": [1]}),
    ("std", aten.std.correction, {"self": some(30, 40), "dim": None}),
    ("var_mean", aten.var_mean.correction, {"self": some(30, 40), "dim": [0]}),
    ("logsumexp", aten.logsumexp.default, {"self": some(30, 40), "dim": [1]}),
    ("linalg_vector_norm", aten.linalg_vector_norm.default, {"self": some(30, 40)}),
    ("_softmax", aten._softmax.default, {"self": some(9, 400), "dim": -1, "half_to_float": False}),
    ("_log_softmax", aten._log_softmax.default, {"self": some(90, 40), "dim": 0, "half_to_float": False}),
    ("_softmax_backward_data", aten._softmax_backward_data.default, {
        "grad_output": some(9, 400), "output": some(9, 400).softmax(1), "dim": 1, "input_dtype": torch.float64}),
    ("_log_softmax_backward_data", aten._log_softmax_backward_data.default, {
        "grad_output": some(9, 400), "output": some(9, 400).log_softmax(1), "dim": 1, "input_dtype": torch.float64}),
    ("native_layer_norm", aten.native_layer_norm.default, {
        "input": NORM_IN, "normalized_shape": [33], "weight": some(33), "bias": None, "eps": 1e-5}),
    ("native_layer_norm_backward", aten.native_layer_norm_backward.default, {
        "grad_out": ROWS + 1, "input": NORM_IN, "normalized_shape": [33], "mean": NORMED[1], "rstd": NORMED[2],
        "weight": some(33), "bias": some(33), "output_mask": [True] * 3}),
    ("native_batch_norm", aten.native_batch_norm.default, {
        "input": X, "weight": some(6), "bias": some(6), "running_mean": torch.zeros(6, dtype=torch.float64),
        "running_var": torch.ones(6, dtype=torch.float64), "training": True, "momentum": 0.1, "eps": 1e-5}),
    ("native_batch_norm_backward", aten.native_batch_norm_backward.default, {
        "grad_out": some(5, 6, 7, 8) + 1, "input": X, "weight": some(6), "running_mean": None, "running_var": None,
        "save_mean": BATCHED[1], "save_invstd": BATCHED[2], "train": True, "eps": 1e-5, "output_mask": [True] * 3}),
    ("embedding_dense_backward", aten.embedding_dense_backward.default, {
        "grad_output": some(6, 50, 7), "indices": torch.arange(300).reshape(6, 50) % 4, "num_weights": 5,
        "padding_idx": -1, "scale_grad_by_freq": False}),
    ("nll_loss_forward", aten.nll_loss_forward.default, {
        "self": some(300, 7), "target": torch.arange(300) % 7, "weight": None, "reduction": 1, "ignore_index": -100}),
    ("mse_loss", aten.mse_loss.default, {"self": some(300, 7), "target": some(300, 7) * 3}),
]  # fmt: skip


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize(("name", "func", "arguments"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_another_order_gives_the_same_but_for_rounding(
    name: str, func: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    generator, differs = np.random.Generator(np.random.PCG64(1)), 0
    runs = [permuted_outputs(name, func, arguments, generator) for _ in range(20)]
    for key, value in before.items():
        assert torch.equal(arguments[key], value), f"{key} was written"
    usual = outputs(func(**arguments))
    for run in runs:
        assert run is not None and len(run) == len(usual)
        for a, b in zip(usual, run, strict=True):
            if a is not None and a.numel():
                assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-11, atol=1e-11)
                differs += int(not torch.equal(a, b))
    assert differs, "another order never gave another rounding"


def test_every_form_has_a_case() -> None:
    assert {c[0] for c in CASES} == set(_FORMS)


def test_nothing_to_permute() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    assert permuted_outputs("mm", aten.mm.default, {"self": some(3, 1), "mat2": some(1, 3)}, generator) is None
    assert permuted_outputs("exp", aten.exp.default, {"self": some(9)}, generator) is None
    assert permuted_outputs("sum", aten.sum.default, {"self": torch.arange(9)}, generator) is None
    assert permuted_outputs("sum", aten.sum.default, {"self": some()}, generator) is None
    one_channel = {"input": some(2, 1, 5, 5), "weight": some(3, 1, 3, 3), "bias": None, "groups": 1, **CONVOLUTION}
    assert permuted_outputs("convolution", aten.convolution.default, one_channel, generator) is None
