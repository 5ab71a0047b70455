"""Exact pools and interpolations: the same bits everywhere, as accurate as promised, log-free in the dispatch mode."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pools_worker as worker
import pytest
import torch
from exact_support import check_like, check_no_log, same_bits, under_profile
from pools_worker import FORMS, averages, interpolations, maxima, one_layout, plain, reductions, scatters, tensor
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics.pools import Windows, plane_scatter, window_sums

PROFILES = ("portable",)  # scalar kernels, one thread
ROOT = Path(__file__).resolve().parents[2]
POOLS = {**averages(), **maxima(), **interpolations()}


@pytest.fixture(scope="module")
def by_profile() -> list[dict[str, Any]]:
    """Return the digests of this process and of one under each profile."""
    return [worker.digests(), *(under_profile(profile, "pools_worker") for profile in PROFILES)]


def test_the_same_bits_on_every_profile(by_profile: list[dict[str, Any]]) -> None:
    for name in one_layout():
        assert len({found[name]["exact"] for found in by_profile}) == 1, name


def test_plain_kernels_differ_between_the_profiles(by_profile: list[dict[str, Any]]) -> None:
    differ = {name for name in one_layout() if len({found[name]["plain"] for found in by_profile}) > 1}
    for kind in (interpolations(), scatters(), reductions()):
        assert differ & set(kind), "or nothing is shown"


@pytest.mark.parametrize("name", POOLS)
def test_like_the_operation(name: str) -> None:
    operation, arguments = POOLS[name]
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, Tensor)}
    check_like(FORMS[operation](arguments), plain(operation, arguments), arguments, before, 1e-14)


@pytest.mark.parametrize("name", POOLS)
def test_the_compiled_loops_equal_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, arguments = POOLS[name]
    compiled = FORMS[operation](arguments)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert isinstance(compiled, Tensor) and same_bits(compiled, FORMS[operation](arguments))


def test_no_layout_changes_a_bit() -> None:
    shown = False
    for name, (operation, arguments) in POOLS.items():
        for layout in (", channels last", ", strided", ", transposed"):
            if name.endswith(layout):
                other, given = POOLS[name.removesuffix(layout)]
                assert same_bits(FORMS[operation](arguments), FORMS[other](given)), name
                shown = shown or not same_bits(plain(operation, arguments), plain(other, given))
    assert shown, "PyTorch's own bits depend on the layout"


def test_an_average_is_a_fixed_sequence_of_sums_and_one_division() -> None:
    x = tensor(1, 5, 6)
    found = FORMS["avg_pool2d"]({"self": x, "kernel_size": [3, 2], "stride": [1, 2]})
    values = x[0].tolist()
    for i in range(3):
        for j in range(3):
            columns = [(values[i][k] + values[i + 1][k]) + values[i + 2][k] for k in (2 * j, 2 * j + 1)]
            assert found[0, i, j] == (columns[0] + columns[1]) / 6


def test_as_accurate_as_promised() -> None:
    x = tensor(2, 9, 200) * torch.exp2(torch.arange(200).double() % 17)
    found = FORMS["_adaptive_avg_pool2d"]({"self": x, "output_size": [1, 2]})
    for plane in range(2):
        for half in range(2):
            terms = [Fraction(v) for v in x[plane, :, 100 * half : 100 * (half + 1)].reshape(-1).tolist()]
            error = abs(Fraction(float(found[plane, 0, half])) - sum(terms) / 900)
            assert error <= sum(map(abs, terms)) / 900 * Fraction(109, 2**52)


def test_special_values_stay_in_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(1, 1, 8, 8)
    x[0, 0, 0, 0], x[0, 0, 3, 3], x[0, 0, 3, 2], x[0, 0, 7, 7] = torch.nan, torch.inf, -torch.inf, 1e308
    x[0, 0, 7, 6] = 1e308
    cases: list[tuple[str, dict[str, Any]]] = [
        ("avg_pool2d", {"self": x, "kernel_size": [2, 2]}),
        ("avg_pool2d", {"self": x, "kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1]}),
        ("upsample_bilinear2d", {"self": x, "output_size": [13, 5], "align_corners": False}),
        ("_adaptive_avg_pool2d_backward", {"grad_output": x, "self": tensor(1, 1, 11, 9)}),
    ]
    for operation, arguments in cases:
        monkeypatch.delenv("VT_REFERENCE_KERNELS", raising=False)
        found, expected = FORMS[operation](arguments), plain(operation, arguments)
        assert isinstance(found, Tensor) and torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())
        monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
        assert same_bits(found, FORMS[operation](arguments))


def test_what_has_no_form_is_left_to_pytorch() -> None:
    x = tensor(2, 3, 6, 6)
    for more in (
        {"self": x.float()}, {"kernel_size": [0, 2]}, {"padding": [2, 0]}, {"kernel_size": [9, 9]},
        {"divisor_override": 0}, {"self": tensor(6, 6)}, {"kernel_size": [2, 2, 2]}, {"stride": [0, 1]},
    ):  # fmt: skip
        assert FORMS["avg_pool2d"]({"self": x, "kernel_size": [2, 2], **more}) is None, more
    assert FORMS["_adaptive_avg_pool2d"]({"self": x, "output_size": [0, 2]}) is None
    assert FORMS["_adaptive_avg_pool2d_backward"]({"self": x, "grad_output": tensor(2, 4, 2, 2)}) is None
    maximum = {"kernel_size": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1], "self": x}
    y, index = torch.ops.aten.max_pool2d_with_indices(x, [2, 2])
    backward = FORMS["max_pool2d_with_indices_backward"]
    assert backward({**maximum, "grad_output": y[:1], "indices": index}) is None
    for outside in (-1, 36, 1 << 40):
        wrong = index.clone()
        wrong[1, 2, 2, 2] = outside
        assert backward({**maximum, "grad_output": y, "indices": wrong}) is None
    assert FORMS["upsample_bilinear2d"]({"self": x, "output_size": [0, 4], "align_corners": True}) is None


def test_windows_and_scatters_refuse_other_dtypes() -> None:
    windows = [Windows.of(3, [0], [3])]
    with pytest.raises(PrecisionError):
        window_sums(torch.zeros(3), windows)
    with pytest.raises(PrecisionError):
        plane_scatter(torch.zeros(1), torch.zeros(1, dtype=torch.int64), windows)


def test_transposed_windows_are_the_gradient() -> None:
    windows = Windows(5, np.array([0, 0, 3]), np.array([2, 3, 1]), np.array([[1.0, 2, 9], [3, 4, 5], [6, 9, 9]]))
    x, g = tensor(5).requires_grad_(), tensor(3, seed=1)
    matrix = torch.tensor([[1.0, 2, 0, 0, 0], [3, 4, 5, 0, 0], [0, 0, 0, 6, 0]], dtype=torch.float64)
    (matrix @ x).backward(g)
    assert torch.allclose(window_sums(x, [windows]), matrix @ x)
    assert x.grad is not None and torch.allclose(window_sums(g, [windows.transposed()]), x.grad)


F = torch.nn.functional
CALLS = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x.flatten(2), 3, 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 7),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x[None], 2),
    "global": lambda x: F.adaptive_avg_pool2d(x, 1),
    "max_pool1d": lambda x: F.max_pool1d(x.flatten(2), 3, 1),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool3d": lambda x: F.max_pool3d(x.contiguous(), 2, 1),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 5),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.75, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, (5, 13), mode="bilinear", align_corners=True),
    "linear": lambda x: F.interpolate(x.flatten(2), 50, mode="linear"),
    "trilinear": lambda x: F.interpolate(x[None], (6, 9, 4), mode="trilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "nearest, down": lambda x: F.interpolate(x, (5, 3), mode="nearest"),
    "nearest-exact": lambda x: F.interpolate(x, (13, 5), mode="nearest-exact"),
    "fold": lambda x: F.fold(x.reshape(4, 12, 16), (5, 5), 2),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "Tensor.unfold": lambda x: x.unfold(2, 3, 1),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_no_log_forward_and_backward(name: str, channels_last: bool) -> None:
    x = tensor(4, 3, 8, 8).float().double()
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    check_no_log(CALLS[name], x, 1, 1e-6)


def test_the_worker_covers_every_form() -> None:
    assert {operation for operation, _ in worker.cases().values()} == set(FORMS)
