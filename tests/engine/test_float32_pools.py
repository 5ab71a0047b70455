"""Gradients of maximum pools of float32 tensors: the bits are those of widened tensors, cut at last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact_support import same_bits
from pools_worker import maxima
from torch import Tensor

from vt_core.engine.exact_pools import FLOAT32, FORMS

CASES = maxima()
INF = float("inf")


def single(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in arguments.items()}


def widened(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in arguments.items()}


def check(operation: str, arguments: dict[str, Any]) -> Tensor:
    """The bits are the same as widened, and the arguments stay as they were."""
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, Tensor)}
    found, expected = FORMS[operation](arguments), FORMS[operation](widened(arguments))
    assert isinstance(found, Tensor) and isinstance(expected, Tensor)
    assert found.stride() == expected.stride()
    assert same_bits(found.float().double(), expected.float().double())
    assert all(torch.equal(arguments[k].nan_to_num(), v.nan_to_num()) for k, v in before.items())
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_as_widened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, arguments = CASES[name]
    assert operation in FLOAT32
    given = single(arguments)
    assert check(operation, given).dtype is torch.float32, "or nothing is gained"
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    check(operation, given)


def test_terms_that_meet_are_added_in_float64() -> None:
    """1 + 2**-24 + 2**-24 is 1 in float32 from the left, and more if only the last result is cut."""
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.zeros(1, 2, 1, 5)
        x[..., 2] = 1.0  # the maximum of all three windows
        y, index = torch.ops.aten.max_pool2d_with_indices(x, [1, 3], [1, 1])
        grad = torch.tensor([1.0, 2.0**-24, 2.0**-24]).expand_as(y).contiguous(memory_format=layout)
        first, second, third = grad[0, 0, 0]
        assert float((first + second) + third) == 1.0
        given = {
            "grad_output": grad, "self": x, "kernel_size": [1, 3], "stride": [1, 1], "padding": [0, 0],
            "dilation": [1, 1], "ceil_mode": False, "indices": index.contiguous(memory_format=layout),
        }  # fmt: skip
        found = check("max_pool2d_with_indices_backward", given)
        assert found[0, :, 0, 2].tolist() == [1.0 + 2.0**-23] * 2


@pytest.mark.parametrize("value", [float("nan"), INF, -INF, 3e38, 1e-40, -0.0])
def test_unusual_values(value: float) -> None:
    for operation, arguments in CASES.values():
        given = single(arguments)
        given["grad_output"] = grad = given["grad_output"].clone()
        grad[0] = value
        check(operation, given)


def test_what_has_no_form_is_left_to_pytorch() -> None:
    operation, arguments = CASES["maximum 3x3 by 2"]
    for layout in (torch.contiguous_format, torch.channels_last):
        given = single(arguments)
        given["grad_output"] = given["grad_output"].contiguous(memory_format=layout)
        assert FORMS[operation](given) is not None
        for outside in (-1, 72, 1 << 40):
            index = arguments["indices"].clone()
            index[1, 2, 2, 2] = outside
            assert FORMS[operation]({**given, "indices": index}) is None
    assert FORMS[operation]({**given, "grad_output": arguments["grad_output"]}) is None
    assert FORMS[operation]({**given, "self": arguments["self"]}) is None
    assert FORMS[operation]({k: v.half() if k in ("self", "grad_output") else v for k, v in given.items()}) is None
