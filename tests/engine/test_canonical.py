"""Canonical forms: each equals its definition in single correctly rounded operations, however it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_support import TinyJob, mean_square, train
from torch import Tensor, nn

from vt_core.engine.canonical import FORMS, apply_form, stable_order
from vt_core.engine.opclass import CANONICAL, TIE_ORDER
from vt_core.engine.proof import compare
from vt_core.engine.proof_cases import nasty

Array = np.ndarray[Any, Any]
F32 = np.float32


def rounded(value: float) -> float:
    """A Python number as the engine passes it on."""
    return float(np.float32(value))


# Each as the engine is called (torch) and its definition (NumPy), out of place and in place where there is a form.
# Values are positive for roots. Every NumPy operator is one IEEE operation an element.
CALLS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Callable[[Array, Array, Array], Any]]] = {
    "sqrt": (lambda a, b, c: torch.sqrt(a), lambda a, b, c: np.sqrt(a)),
    "rsqrt": (lambda a, b, c: torch.rsqrt(a), lambda a, b, c: 1 / np.sqrt(a)),
    "square": (lambda a, b, c: torch.square(b), lambda a, b, c: b * b),
    "pow 0.5": (lambda a, b, c: a**0.5, lambda a, b, c: np.sqrt(a)),
    "pow -0.5": (lambda a, b, c: a**-0.5, lambda a, b, c: 1 / np.sqrt(a)),
    "pow 2": (lambda a, b, c: b**2, lambda a, b, c: b * b),
    "pow 2.0": (lambda a, b, c: torch.pow(b, 2.0), lambda a, b, c: b * b),
    "pow 1": (lambda a, b, c: b**1, lambda a, b, c: b),
    "pow 3": (lambda a, b, c: b**3, lambda a, b, c: b * b * b),
    "pow 4": (lambda a, b, c: b**4, lambda a, b, c: (b * b) * (b * b)),
    "pow -1": (lambda a, b, c: b**-1, lambda a, b, c: 1 / b),
    "pow -2": (lambda a, b, c: b**-2, lambda a, b, c: 1 / (b * b)),
    "lerp near": (lambda a, b, c: torch.lerp(a, b, 0.1), lambda a, b, c: a + (b - a) * rounded(0.1)),
    "lerp far": (lambda a, b, c: torch.lerp(a, b, 0.9), lambda a, b, c: b - (b - a) * (1 - rounded(0.9))),
    "lerp tensor": (lambda a, b, c: torch.lerp(a, b, c), lambda a, b, c: a + (b - a) * c),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c), lambda a, b, c: a + b * c),
    "addcmul value": (lambda a, b, c: torch.addcmul(a, b, c, value=0.3), lambda a, b, c: a + b * c * rounded(0.3)),
    "addcdiv": (lambda a, b, c: torch.addcdiv(b, c, a), lambda a, b, c: b + c / a),
    "addcdiv value": (lambda a, b, c: torch.addcdiv(b, c, a, value=-0.3), lambda a, b, c: b + c / a * -rounded(0.3)),
    "add alpha": (lambda a, b, c: torch.add(a, b, alpha=0.3), lambda a, b, c: a + b * rounded(0.3)),
    "add alpha broadcast": (lambda a, b, c: torch.add(a, b[:1], alpha=0.3), lambda a, b, c: a + b[:1] * rounded(0.3)),
    "sub alpha": (lambda a, b, c: torch.sub(a, b, alpha=0.3), lambda a, b, c: a - b * rounded(0.3)),
    "rsub alpha": (lambda a, b, c: torch.rsub(a, b, alpha=0.3), lambda a, b, c: b - a * rounded(0.3)),
    "sqrt_": (lambda a, b, c: a.sqrt_(), lambda a, b, c: np.sqrt(a)),
    "rsqrt_": (lambda a, b, c: a.rsqrt_(), lambda a, b, c: 1 / np.sqrt(a)),
    "pow_": (lambda a, b, c: b.pow_(3), lambda a, b, c: b * b * b),
    "square_": (lambda a, b, c: b.square_(), lambda a, b, c: b * b),
    "lerp_": (lambda a, b, c: a.lerp_(b, 0.1), lambda a, b, c: a + (b - a) * rounded(0.1)),
    "addcmul_": (lambda a, b, c: a.addcmul_(b, c, value=0.3), lambda a, b, c: a + b * c * rounded(0.3)),
    "addcdiv_": (lambda a, b, c: b.addcdiv_(c, a, value=-0.3), lambda a, b, c: b + c / a * -rounded(0.3)),
    "add_ alpha": (lambda a, b, c: a.add_(b, alpha=-0.3), lambda a, b, c: a + b * -rounded(0.3)),
    "sub_ alpha": (lambda a, b, c: a.sub_(b, alpha=0.3), lambda a, b, c: a - b * rounded(0.3)),
    "add_ itself": (lambda a, b, c: a.add_(a, alpha=0.3), lambda a, b, c: a + a * rounded(0.3)),
    "sqrt out": (lambda a, b, c: torch.sqrt(a, out=torch.empty_like(a)), lambda a, b, c: np.sqrt(a)),
    "add_ strided": (
        lambda a, b, c: a[:, ::2].add_(b[:, ::2], alpha=0.3),
        lambda a, b, c: a[:, ::2] + b[:, ::2] * rounded(0.3),
    ),
}


def arrays() -> tuple[Array, Array, Array]:
    """Positive, mixed and small values on the float32 grid."""
    rng = np.random.default_rng(5)
    shape = (7, 33)
    wide = [
        (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, shape)).astype(F32).astype(float) for _ in range(3)
    ]
    return np.abs(wide[0]), wide[1], wide[2]


def in_engine(function: Callable[[], Any]) -> Any:
    """Return what ``function`` gives inside a step."""
    seen: list[Any] = []

    def objective(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            seen.append(function())
        return mean_square(model, batch)

    train(TinyJob(lambda: nn.Linear(6, 2), objective=objective), 1)
    return seen[0]


@pytest.mark.parametrize("name", CALLS)
def test_a_form_equals_its_definition_rounded_once_onto_the_grid(name: str) -> None:
    call, definition = CALLS[name]
    given = arrays()
    found = in_engine(lambda: call(*(torch.from_numpy(v.copy()) for v in given)).clone())
    with np.errstate(all="ignore"):
        expected = np.asarray(definition(*given)).astype(F32).astype(np.float64)
    assert compare(found.numpy(), expected + 0.0, False) == ""


def test_in_place_forms_write_where_they_should() -> None:
    def strided() -> tuple[Tensor, Tensor]:
        base = torch.zeros(3, 4)
        view = base[:, 1]
        returned = view.add_(torch.ones(3), alpha=0.5)
        return base, returned

    base, returned = in_engine(strided)
    assert base.tolist() == [[0, 0.5, 0, 0]] * 3
    assert returned.data_ptr() == base[:, 1].data_ptr()


def test_every_canonical_operation_has_a_form() -> None:
    assert set(FORMS) == CANONICAL | {"add", "sub", "rsub"}


@pytest.mark.parametrize("name", ["add", "sub", "addcmul", "square", "pow"])
def test_integers_stay_integers(name: str) -> None:
    a, b = torch.tensor([2**53 + 1, -7]), torch.tensor([1, 2**60])
    with_alpha = {"add": lambda: torch.add(a, b, alpha=2), "sub": lambda: torch.sub(a, b, alpha=2)}
    calls = {
        **with_alpha,
        "addcmul": lambda: torch.addcmul(a, b, b, value=1),
        "square": lambda: a.square(),
        "pow": lambda: b**2,
    }
    expected = calls[name]()
    found = in_engine(calls[name])
    assert found.dtype is torch.int64 and torch.equal(found, expected)


def test_roots_of_whole_numbers_are_rounded_too() -> None:
    """An integer tensor has no canonical form, but its square root is a floating result."""
    for function in (lambda: torch.sqrt(torch.arange(1, 50)), lambda: torch.arange(1, 50) ** 0.3):
        found = in_engine(function)
        assert found.dtype is torch.float64 and torch.equal(found, found.float().double())


def test_a_power_without_a_form_is_rounded_with_a_log() -> None:
    x = torch.from_numpy(arrays()[0])
    assert apply_form("pow", {"self": x, "exponent": 0.3}) is None
    assert apply_form("pow", {"self": 2.0, "exponent": x}) is None
    found = in_engine(lambda: x**0.3)
    assert torch.equal(found, found.float().double())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    "name", ["sqrt", "rsqrt", "square", "lerp", "lerp far", "addcmul", "addcdiv", "add", "sub", "rsub", "dropout"]
)
def test_forms_before_rounding_on_nasty_values(name: str, dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(6)
    a, b, c = (nasty(rng, (11, 33), dtype) for _ in range(3))
    x, y, z = (torch.from_numpy(v) for v in (a, b, c))
    weight = dtype(0.1)
    far = dtype(1.0 - 0.9)
    arguments: dict[str, dict[str, Any]] = {
        "sqrt": {"self": x},
        "rsqrt": {"self": x},
        "square": {"self": x},
        "lerp": {"self": x, "end": y, "weight": 0.1},
        "addcmul": {"self": x, "tensor1": y, "tensor2": z, "value": 0.1},
        "addcdiv": {"self": x, "tensor1": y, "tensor2": z, "value": 0.1},
        "lerp far": {"self": x, "end": y, "weight": 0.9},
        "add": {"self": x, "other": y, "alpha": 0.1},
        "sub": {"self": x, "other": y, "alpha": 0.1},
        "rsub": {"self": x, "other": y, "alpha": 0.1},
        "dropout": {"grad_output": x, "mask": y > 0, "scale": 0.1},
    }
    operation = {"lerp far": "lerp", "dropout": "native_dropout_backward"}.get(name, name)
    with np.errstate(all="ignore"):
        expected = {
            "sqrt": lambda: np.sqrt(a),
            "rsqrt": lambda: dtype(1) / np.sqrt(a),
            "square": lambda: a * a,
            "lerp": lambda: a + (b - a) * weight,
            "addcmul": lambda: a + b * c * weight,
            "addcdiv": lambda: a + b / c * weight,
            "lerp far": lambda: b - (b - a) * far,
            "add": lambda: a + b * weight,
            "sub": lambda: a - b * weight,
            "rsub": lambda: b - a * weight,
            "dropout": lambda: a * (b > 0) * weight,
        }[name]()
    value = apply_form(operation, arguments[name])
    assert value is not None
    assert compare(value.numpy(), expected, False) == ""


@pytest.mark.parametrize("descending", [False, True])
def test_order_among_equals(descending: bool) -> None:
    x = torch.tensor([[1.0, 0.0, 1.0, -0.0, float("nan"), 1.0]])
    assert {"sort", "argsort", "topk"} == TIE_ORDER
    values, places = stable_order("sort", {"self": x, "descending": descending})
    key = np.nan_to_num(x[0].numpy(), nan=9.0)
    expected = np.argsort(-key if descending else key, kind="stable")
    assert places[0].tolist() == expected.tolist()
    assert stable_order("argsort", {"self": x, "descending": descending}).tolist() == places.tolist()
    top = stable_order("topk", {"self": x, "k": 4, "largest": descending})
    assert top[1].tolist() == places[:, :4].tolist()
    assert compare(top[0].numpy(), values[:, :4].numpy(), True) == ""
    assert compare(top[0].numpy(), torch.topk(x, 4, largest=descending).values.numpy(), True) == ""


def test_too_many_are_asked_of_topk() -> None:
    with pytest.raises(RuntimeError, match="out of range"):
        in_engine(lambda: torch.ones(3).topk(4))
