"""Elementary functions without a log: like PyTorch's, equal on every CPU profile, also through autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from elementary_worker import ALL, cases, plain, tensor
from exact_support import make_mode, under_profile
from torch import Tensor
from torch.nn import functional

from vt_core.engine.exact_elementary import FORMS, pow_form
from vt_core.engine.mode import VerifiedMode

PROFILES = ("default", "portable")  # the second one has ATen's scalar kernels and one thread
ROOT = Path(__file__).resolve().parents[2]
CASES = cases(19, 23)
SPECIAL = [0.0, 1.0, -1.0, 0.5, torch.inf, -torch.inf, torch.nan, 1e-310, -5e-324, 1e308, -1e308, 720.0, -720.0, 3.0]


def tensors(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.fixture(scope="module")
def by_profile() -> dict[str, Any]:
    return {profile: under_profile(profile, "elementary_worker") for profile in PROFILES}


def test_the_same_bits_on_every_profile(by_profile: dict[str, Any]) -> None:
    for name in CASES:
        assert len({by_profile[p][name]["exact"] for p in PROFILES}) == 1, name


def test_plain_kernels_differ_between_the_profiles(by_profile: dict[str, Any]) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has but one kind of kernels")
    other = {name for name in CASES if len({by_profile[p][name]["plain"] for p in PROFILES}) > 1}
    assert {"gelu", "silu_backward"} <= other, other


def test_every_form_has_a_case() -> None:
    assert {operation for operation, _ in CASES.values()} == set(ALL)


@pytest.mark.parametrize("name", CASES)
def test_like_the_operations(name: str) -> None:
    operation, arguments = CASES[name]
    found, expected = ALL[operation](arguments), plain(operation, arguments)
    for f, e in zip(tensors(found), tensors(expected), strict=True):
        assert f.shape == e.shape and f.dtype == e.dtype
        rtol = 1e-7 if operation == "hardsigmoid_backward" else 1e-13  # PyTorch's sixth is that of float32
        assert torch.allclose(f, e, rtol=rtol, atol=2e-15 * float(e.abs().max()))
        assert all(f.data_ptr() != v.data_ptr() for v in arguments.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("name", CASES)
def test_special_values_give_what_they_give_in_pytorch(name: str) -> None:
    operation, arguments = CASES[name]
    values = torch.tensor(SPECIAL, dtype=torch.float64)
    given = {k: values.clone() if isinstance(v, Tensor) else v for k, v in arguments.items()}
    if "grad_output" in given:
        given["grad_output"] = torch.full_like(values, 2.0)
    if operation in ("sin", "cos", "tan"):
        given["self"][values.abs() == 1e308] = 0.0
    if operation == "log_sigmoid_backward":
        given["buffer"] = torch.exp(-values.abs())
    if name == "logit_backward-eps" or operation in ("elu_backward", "hardswish_backward"):
        for tensor in given.values():  # a number or NaN in PyTorch, by the processor or the place in memory; here NaN
            if isinstance(tensor, Tensor):
                tensor[tensor.isnan()] = 0.5
    found, expected = ALL[operation](given), plain(operation, given)
    for f, e in zip(tensors(found), tensors(expected), strict=True):
        assert torch.allclose(f, e, rtol=1e-7, atol=1e-15, equal_nan=True), (values, f, e)


@pytest.mark.parametrize("name", ["exp", "gelu_backward", "pow"])
def test_shapes_and_layouts(name: str) -> None:
    for shape, change in (
        ((), lambda t: t),
        ((0, 3), lambda t: t),
        ((2, 3, 4, 5), lambda t: t.contiguous(memory_format=torch.channels_last)),
        ((6, 8), lambda t: t.t()[1::3]),
        ((4, 5), lambda t: t[:, :1].expand(4, 7)),
    ):
        operation, arguments = cases(*shape)[name]
        given = {k: change(v) for k, v in arguments.items()}
        found = ALL[operation](given)
        wanted = ALL[operation]({k: v.contiguous() for k, v in given.items()})
        assert isinstance(found, Tensor) and isinstance(wanted, Tensor)
        assert torch.equal(found, wanted) and found.shape == plain(operation, given).shape
        assert found.storage_offset() == 0 and found.untyped_storage().nbytes() == 8 * found.numel()


def test_tensors_are_broadcast() -> None:
    x, y = tensor(3, 1, 4, seed=1).abs(), tensor(5, 1, seed=2)
    for name in ("atan2", "logaddexp", "pow"):
        second = "exponent" if name == "pow" else "other"
        for a, b in ((x, y), (y.abs(), x), (x, y[0, 0])):
            found, expected = ALL[name]({"self": a, second: b}), plain(name, {"self": a, second: b})
            assert isinstance(found, Tensor) and found.shape == expected.shape
            assert torch.allclose(found, expected, rtol=1e-13)


def test_what_has_no_form_is_left_to_pytorch() -> None:
    x = tensor(3, 4, seed=1)
    for name in ("exp", "sin", "gelu", "softplus", "elu", "logit", "log_sigmoid_forward"):
        assert FORMS[name]({"self": x.half()}) is None
        assert FORMS[name]({"self": torch.arange(3)}) is None
        assert FORMS[name]({"self": x.to_sparse()}) is None
    assert FORMS["gelu"]({"self": x, "approximate": "cubic"}) is None
    assert FORMS["gelu_backward"]({"grad_output": x, "self": x, "approximate": "cubic"}) is None
    assert FORMS["celu"]({"self": x, "alpha": 0}) is None
    assert FORMS["logit"]({"self": x, "eps": 0.6}) is None
    assert FORMS["atan2"]({"self": x, "other": x[:, :3]}) is None
    assert FORMS["logaddexp"]({"self": x, "other": x.float()}) is None
    elu = {"grad_output": x, "alpha": -1, "scale": 1, "input_scale": 1, "is_result": True, "self_or_result": x}
    assert FORMS["elu_backward"](elu) is None
    assert pow_form({"self": x, "exponent": 1j}) is None and pow_form({"self": 2, "exponent": torch.arange(3)}) is None
    for name in ("sin", "cos", "tan"):
        assert FORMS[name]({"self": torch.tensor([1.0, 2.0**20 + 1.0], dtype=torch.float64)}) is None
        assert FORMS[name]({"self": torch.tensor([2.0**20, torch.inf], dtype=torch.float64)}) is not None


@pytest.fixture
def mode() -> VerifiedMode:
    return make_mode()


def logged(mode: VerifiedMode) -> int:
    return sum(count.elements for count in mode.rounding.counters.by_class.values())


@pytest.mark.parametrize("name", [name for name, (operation, _) in CASES.items() if operation in FORMS])
def test_no_log_and_on_the_grid(mode: VerifiedMode, name: str) -> None:
    operation, given = CASES[name]
    arguments = {k: v.float().double() if isinstance(v, Tensor) else v for k, v in given.items()}
    with mode:
        found = plain(operation, arguments)
    assert logged(mode) == 0
    for f, e in zip(tensors(found), tensors(plain(operation, arguments)), strict=True):
        assert torch.equal(f, f.float().double()) and torch.allclose(f, e, rtol=1e-6, atol=1e-7)


def test_the_angles_beyond_keep_their_log(mode: VerifiedMode) -> None:
    with mode:
        torch.sin(torch.full((5,), 3e6, dtype=torch.float64))
    assert logged(mode) == 5, "and so the counters do count"


ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "softplus": lambda x: functional.softplus(x, 2.0, 5.0),
    "elu": functional.elu,
    "celu": lambda x: functional.celu(x, 0.7),
    "selu": functional.selu,
    "logsigmoid": functional.logsigmoid,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin, cos": lambda x: x.sin() * x.cos(),
    "exp, log1p": lambda x: x.exp().log1p(),
    "in place": lambda x: (x * 1.0).sin_().exp_(),
    "tanh in place": lambda x: (x * 1.0).tanh_(),
    "sigmoid in place": lambda x: (x * 1.0).sigmoid_(),
    "elu in place": lambda x: functional.elu(x * 1.0, inplace=True),
    "erf": torch.erf,
    "logit": lambda x: torch.logit(x.sigmoid()),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients(mode: VerifiedMode, name: str) -> None:
    start = tensor(20, 30, seed=4).float().double()
    function = ACTIVATIONS[name]

    def run() -> tuple[Tensor, Tensor]:
        x = start.clone().requires_grad_()
        y = function(x)
        y.backward(torch.ones_like(y))
        assert x.grad is not None
        return y.detach(), x.grad

    with mode:
        found = run()
    assert logged(mode) == 0
    for f, e in zip(found, run(), strict=True):
        assert torch.allclose(f, e, rtol=1e-5, atol=1e-6)
