"""Elementary functions: as accurate as their docstrings say, and the compiled loops equal the tensor operations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import _jit_elementary as base
from vt_core.numerics import _jit_elementary_activations as activations
from vt_core.numerics import _jit_elementary_erf as errors
from vt_core.numerics import _jit_elementary_power as powers
from vt_core.numerics import _jit_elementary_trigonometric as angles
from vt_core.numerics.elementary import apply, exp, log

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, math.inf, -math.inf, math.nan, 5e-324, -1e-310, 2.0**-1022, 1e308,
    -1e308, 709.78, 709.79, -708.4, -745.13, -745.14, 1.0 + 2.0**-52, 1.0 - 2.0**-53, -38.5, 6.0, 2.0**53,
]  # fmt: skip


def uniform(low: float, high: float, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(count, dtype=torch.float64).uniform_(low, high, generator=generator)


def inputs(count: int) -> Tensor:
    """Return numbers of all sizes and signs."""
    sizes = torch.cat([torch.exp2(uniform(*r, count)) for r in ((-60, 9), (-1060, 1020), (-3, 3))])
    return torch.cat([uniform(-1, 1, count), uniform(-40, 40, count), sizes, -sizes])


def same_bits(a: Tensor, b: Tensor) -> bool:
    equal = a.contiguous().view(torch.int64) == b.contiguous().view(torch.int64)
    return a.shape == b.shape and bool((equal | (a.isnan() & b.isnan())).all())


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def normal(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def cubic(x: Any) -> Any:
    return 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(0.044715) * x**3)


def mish(x: Any) -> Any:
    return x * mpmath.tanh(mpmath.log1p(mpmath.exp(x)))


INF = math.inf
Function = Callable[[Any], Any]
# core, the function, bounds of its arguments, largest error in ulp, numbers
OF_ONE: dict[str, tuple[Callable[..., Any], Function, float, float, float, tuple[float, ...]]] = {
    "exp": (base.exp, mpmath.exp, -708, 709.7, 1, ()),
    "exp2": (base.exp2, lambda x: mpmath.mpf(2) ** x, -1022, 1023, 1, ()),
    "expm1": (base.expm1, mpmath.expm1, -INF, 709.7, 2, ()),
    "log": (base.log, mpmath.log, 0, INF, 1, ()),
    "log2": (base.log2, lambda x: mpmath.log(x) / mpmath.log(2), 0, INF, 2, ()),
    "log10": (base.log10, mpmath.log10, 0, INF, 3, ()),
    "log1p": (base.log1p, mpmath.log1p, -1, INF, 1, ()),
    "logit": (base.logit, lambda x: mpmath.log(x / (1 - x)), 0, 1, 4, (-INF, INF)),
    "erf": (errors.erf, mpmath.erf, -100, 100, 2, ()),
    "erfc": (errors.erfc, mpmath.erfc, -100, 26.5, 8, ()),
    "erfinv": (errors.erfinv, mpmath.erfinv, -1, 1, 8, ()),
    "gelu": (errors.gelu, lambda x: x * normal(x), -37, 100, 8, ()),
    "gelu_tanh": (activations.gelu_tanh, lambda x: x * sigmoid(cubic(x)), -3, 100, 16, ()),
    "tanh": (activations.tanh, mpmath.tanh, -INF, INF, 3, ()),
    "sigmoid": (activations.sigmoid, sigmoid, -708, INF, 2, ()),
    "silu": (activations.silu, lambda x: x * sigmoid(x), -708, INF, 3, ()),
    "mish": (activations.mish, mish, -708, 1000, 6, ()),
    "softplus": (activations.softplus, lambda x: mpmath.log1p(mpmath.exp(x)), -708, 20, 3, (1.0, 20.0)),
    "log_sigmoid": (activations.log_sigmoid, lambda x: -mpmath.log1p(mpmath.exp(-x)), -INF, 708, 2, ()),
    "hardswish": (activations.hardswish, lambda x: x * min(max(x + 3, 0), 6) / 6, -2.5, 1000, 3, (6.0,)),
    "sin": (angles.sin, mpmath.sin, -(2**20), 2**20, 1, ()),
    "cos": (angles.cos, mpmath.cos, -(2**20), 2**20, 1, ()),
    "tan": (angles.tan, mpmath.tan, -(2**20), 2**20, 3, ()),
    "atan": (angles.atan, mpmath.atan, -INF, INF, 2, ()),
    "asin": (angles.asin, mpmath.asin, -1, 1, 2, ()),
    "acos": (angles.acos, mpmath.acos, -1, 1, 2, ()),
    "sinh": (angles.sinh, mpmath.sinh, -710, 710, 4, ()),
    "cosh": (angles.cosh, mpmath.cosh, -710, 710, 2, ()),
    "asinh": (angles.asinh, mpmath.asinh, -INF, INF, 4, ()),
    "acosh": (angles.acosh, mpmath.acosh, 1, INF, 4, ()),
    "atanh": (angles.atanh, mpmath.atanh, -1, 1, 4, ()),
}
# core, the derivative, bounds of its arguments, largest error, numbers
GRADIENTS: dict[str, tuple[Callable[..., Any], Function, float, float, float, tuple[float, ...]]] = {
    "gelu": (
        errors.gelu_backward, lambda x: normal(x) + x * mpmath.npdf(x), -30, 100, 2.0**-51, (),
    ),
    "gelu_tanh": (
        activations.gelu_tanh_backward, lambda x: mpmath.diff(lambda t: t * sigmoid(cubic(t)), x), -9, 20, 2.0**-50, (),
    ),
    "silu": (
        activations.silu_backward, lambda x: sigmoid(x) * (1 + x * sigmoid(-x)), -700, 700, 2.0**-51, (),
    ),
    "mish": (activations.mish_backward, lambda x: mpmath.diff(mish, x), -50, 50, 2.0**-50, ()),
    "softplus": (activations.softplus_backward, lambda x: sigmoid(2 * x), -300, 9, 2.0**-52, (2.0, 20.0)),
    "log_sigmoid": (activations.log_sigmoid_backward, lambda x: sigmoid(-x), -700, 700, 2.0**-52, ()),
    "elu": (activations.elu_backward, lambda x: 3 * mpmath.exp(2 * x), -300, 0, 2.0**-50, (1.5, 1.0, 2.0)),
    "hardswish": (activations.hardswish_backward, lambda x: x / 3 + 0.5, -3, 3, 2.0**-52, (3.0,)),
}  # fmt: skip
PAIRS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    **{f"gradient of {name}": (core, numbers) for name, (core, *_, numbers) in GRADIENTS.items()},
    "gradient of tanh": (activations.tanh_backward, ()),
    "gradient of sigmoid": (activations.sigmoid_backward, ()),
    "gradient of hardsigmoid": (activations.hardsigmoid_backward, (6.0,)),
    "gradient of elu by the result": (activations.elu_backward_of_result, (1.5, 1.0, 2.0)),
    "gradient of logit": (activations.logit_backward, (0.25, 0.75)),
    "logaddexp": (base.logaddexp, ()),
    "logaddexp2": (base.logaddexp2, ()),
    "atan2": (angles.atan2, ()),
    "hypot": (angles.hypot, ()),
    "power": (powers.power, ()),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "elu": (activations.elu, (1.5, 1.0, 2.0)),
    "hardsigmoid": (activations.hardsigmoid, (6.0,)),
    "magnitude": (activations.exp_of_minus_magnitude, ()),
    "power": (powers.power, (1.7,)),
    "power of a number": (powers.power_of_number, (2.5,)),
}


def ulps(found: float, expected: Any) -> float:
    return float(abs(mpmath.mpf(found) - expected) / mpmath.mpf(float(np.spacing(abs(float(expected))))))


def chosen(low: float, high: float, count: int) -> list[float]:
    spread = uniform(max(low, -1e3), min(high, 1e3), 4 * count, seed=1)
    values = torch.cat([inputs(count), spread])
    return [x for x in values.tolist() if low < x < high and x != 0]


@pytest.mark.parametrize("name", OF_ONE)
def test_accuracy(name: str) -> None:
    core, function, low, high, bound, numbers = OF_ONE[name]
    values = chosen(low, high, 12)
    found = apply(core, torch.tensor(values, dtype=torch.float64), numbers=numbers).tolist()
    with mpmath.workdps(60):
        for x, y in zip(values, found, strict=True):
            expected = function(mpmath.mpf(x))
            if 2.3e-308 < abs(expected) < 1.7e308:
                assert ulps(y, expected) <= bound, (x, y)


@pytest.mark.parametrize("name", GRADIENTS)
def test_accuracy_of_gradients(name: str) -> None:
    core, function, low, high, bound, numbers = GRADIENTS[name]
    values = chosen(low, high, 6)
    x = torch.tensor(values, dtype=torch.float64)
    found = apply(core, torch.ones_like(x), x, numbers=numbers).tolist()
    with mpmath.workdps(40):
        for v, y in zip(values, found, strict=True):
            assert abs(y - function(mpmath.mpf(v))) <= bound, (v, y)


def test_tails_keep_their_relative_accuracy() -> None:
    for x in (-1e-300, -5.0, -20.0, -37.0):
        found = apply(errors.gelu, torch.tensor([x], dtype=torch.float64)).item()
        with mpmath.workdps(60):
            expected = x * normal(mpmath.mpf(x))
        assert abs(found / float(expected) - 1) < 2.0**-48
    plain = torch.nn.functional.gelu(torch.tensor([-20.0], dtype=torch.float64)).item()
    assert abs(plain) < 1e-100, "PyTorch's own form loses it"


def test_accuracy_of_powers() -> None:
    x = torch.cat([torch.exp2(uniform(-20, 20, 100)), 1 + uniform(-1e-3, 1e-3, 100), uniform(0.5, 2, 100)])
    y = uniform(-700, 700, 300, seed=2) / torch.log(x)
    for a, b, found in zip(x.tolist(), y.tolist(), apply(powers.power, x, y).tolist(), strict=True):
        with mpmath.workdps(60):
            expected = mpmath.mpf(a) ** mpmath.mpf(b)
            assert abs(found / expected - 1) <= 2.0**-47
            assert abs(mpmath.log(expected)) > 64 or ulps(found, expected) <= 3


def test_powers_have_the_limits_of_the_standard() -> None:
    values = [v for v in SPECIAL if v == v] + [-2.0, 1e-308, 2.0**52 + 1, -(2.0**53) - 2]
    pairs = [(a, b) for a in values for b in values]
    x, y = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    found, expected = apply(powers.power, x, y), torch.pow(x, y)
    assert torch.allclose(found, expected, rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(found.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()])


def test_the_length_of_vectors() -> None:
    x, y = inputs(30), inputs(30).flip(0)
    for a, b, found in zip(x.tolist(), y.tolist(), apply(angles.hypot, x, y).tolist(), strict=True):
        with mpmath.workdps(60):
            assert ulps(found, mpmath.sqrt(mpmath.mpf(a) ** 2 + mpmath.mpf(b) ** 2)) <= 2


def test_angles_of_points_on_the_axes_and_at_infinity() -> None:
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e308, -1e308, 5e-324]
    y, x = torch.tensor([(a, b) for a in values for b in values], dtype=torch.float64).unbind(1)
    assert torch.allclose(apply(angles.atan2, y, x), torch.atan2(y, x), rtol=1e-15, equal_nan=True)


def every_core() -> dict[str, tuple[Callable[..., Any], int, tuple[float, ...]]]:
    one = {name: (core, 1, numbers) for name, (core, *_, numbers) in OF_ONE.items()}
    return one | {
        **{f"{name} ": (core, 1, numbers) for name, (core, numbers) in OTHERS.items()},
        **{f"{name}, two": (core, 2, numbers) for name, (core, numbers) in PAIRS.items()},
    }


@pytest.mark.parametrize("name", every_core())
def test_loops_equal_tensor_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core, count, numbers = every_core()[name]
    x = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), inputs(200)])
    given = [x, x.flip(0)][:count]
    compiled = apply(core, *given, numbers=numbers)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert same_bits(compiled, apply(core, *given, numbers=numbers))


def test_the_cache_notices_changes_of_every_core() -> None:
    for core, *_ in every_core().values():
        assert Path(inspect.getfile(core)).match("numerics/_jit_elementary*.py")


def test_neither_place_nor_layout_changes_a_bit() -> None:
    x = uniform(-20, 20, 300_000)
    whole = exp(x)
    assert same_bits(whole[12345:], exp(x[12345:])) and same_bits(whole[:7], exp(x[:7]))
    image = x[: 2 * 3 * 10 * 11].view(2, 3, 10, 11).contiguous(memory_format=torch.channels_last)
    found = exp(image)
    assert found.is_contiguous(memory_format=torch.channels_last) and same_bits(found, exp(image.contiguous()))
    for strided in (x[::7], x[:20].view(4, 5).t(), x[:9].view(3, 3).t(), x[:1].expand(9), x[0], x[:0]):
        assert same_bits(exp(strided), exp(strided.contiguous())) and exp(strided).shape == strided.shape


def test_gradual_underflow_and_the_ends() -> None:
    x = torch.tensor([-708.5, -720.0, -745.0, -745.2, 709.78, 709.79, 5e-324, 1e-310], dtype=torch.float64)
    with mpmath.workdps(60):
        for v, y in zip(x.tolist()[:3], exp(x).tolist(), strict=False):
            assert abs(y - mpmath.exp(v)) <= 5e-324
        for v, y in zip(x.tolist()[6:], log(x).tolist()[6:], strict=True):
            assert ulps(y, mpmath.log(v)) <= 1
    assert exp(x)[3] == 0 and exp(x)[4].isfinite() and exp(x)[5] == math.inf
    powers_of_two = torch.exp2(torch.arange(-1074, 1024).double())
    assert torch.equal(apply(base.log2, powers_of_two), torch.arange(-1074, 1024).double())


def test_other_dtypes_are_refused() -> None:
    for function in (exp, log):
        with pytest.raises(PrecisionError):
            function(torch.zeros(3))
