"""The cases of ``proof.py``: each exact operation beside its definition in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Array = npt.NDArray[Any]
aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    """One way to call an operation on two equal matrices; ``tied`` inputs are small whole numbers without NaN."""

    op: str  # the name in opclass.EXACT
    label: str
    run: Callable[[Tensor, Tensor], Any]
    reference: Callable[[Array, Array], Any]
    tied: bool = False
    by_order: bool = False


def nasty(rng: np.random.Generator, shape: tuple[int, int], dtype: type[np.floating[Any]]) -> Array:
    """Return values of all magnitudes, a third of them special: zeros, subnormals, extremes, infinities, NaN."""
    info = np.finfo(dtype)
    low, high = (-300, 300) if dtype is np.float64 else (-37, 37)
    with np.errstate(all="ignore"):
        wide = rng.standard_normal(shape) * 10.0 ** rng.uniform(low, high, shape)
    usual = rng.standard_normal(shape)
    tiny, eps = float(info.smallest_subnormal), float(info.eps)
    special = [
        0.0, -0.0, tiny, -tiny, float(info.tiny), float(info.tiny) - tiny, 1.0, -1.0, 1.0 + eps, 1.0 - eps / 2, 0.5,
        1.5, 2.5, -2.5, 3.0, 10.0, 1 / 3, 2.0**52 + 1, float(info.max), -float(info.max), np.inf, -np.inf, np.nan,
    ]  # fmt: skip
    kind = rng.integers(0, 3, shape)
    chosen = np.where(kind == 0, usual, np.where(kind == 1, wide, rng.choice(special, shape)))
    with np.errstate(all="ignore"):
        return np.asarray(chosen.astype(dtype))


def tied(rng: np.random.Generator, shape: tuple[int, int], dtype: type[np.floating[Any]]) -> Array:
    """Return whole numbers from -3 to 3: many are equal."""
    return np.asarray(rng.integers(-3, 4, shape).astype(dtype))


CASES: list[Case] = []


def add_case(op: str, run: Any, reference: Any, label: str = "", **flags: bool) -> None:
    """Add a case to ``CASES``."""
    CASES.append(Case(op, label or op, run, reference, **flags))


def scalar(a: Array, value: float) -> Any:
    """Return ``value`` in the dtype of ``a``."""
    return a.dtype.type(value)


def _masked(a: Array) -> Any:
    return a > 0


def _arithmetic() -> None:
    binary: dict[str, tuple[Any, Any]] = {
        "add": (torch.add, np.add),
        "sub": (torch.sub, np.subtract),
        "mul": (torch.mul, np.multiply),
        "div": (torch.div, np.divide),
        "true_divide": (torch.true_divide, np.divide),
    }
    for op, (run, reference) in binary.items():
        add_case(op, run, reference)
        add_case(
            op, lambda x, y, f=run: f(x[:, :1], y[:1]), lambda a, b, f=reference: f(a[:, :1], b[:1]), f"{op} (outer)"
        )
        add_case(op, lambda x, y, f=run: f(x, y[0, 0]), lambda a, b, f=reference: f(a, b[0, 0]), f"{op} (0-dim)")
        add_case(
            op,
            lambda x, y, n=op: getattr(x.clone(), f"{n}_")(y) if n != "true_divide" else x.clone().true_divide_(y),
            reference,
            f"{op}_",
        )
        for value in (0.1, 3.0, 1e-30, -7.25e30, 10.0):
            add_case(
                op,
                lambda x, y, f=run, v=value: f(x, v),
                lambda a, b, f=reference, v=value: f(a, scalar(a, v)),
                f"{op} ({value})",
            )
    add_case("rsub", torch.rsub, lambda a, b: b - a)
    add_case("rsub", lambda x, y: 0.9 - x, lambda a, b: scalar(a, 0.9) - a, "rsub (scalar)")
    add_case("reciprocal", lambda x, y: torch.reciprocal(x), lambda a, b: scalar(a, 1) / a)
    add_case("div", lambda x, y: 1.0 / x, lambda a, b: scalar(a, 1) / a, "div (1 / x)")
    slope = 0.01
    add_case(
        "leaky_relu",
        lambda x, y: F.leaky_relu(x, slope),
        lambda a, b: np.where(a > 0, a, a * scalar(a, slope)),
    )
    add_case(
        "leaky_relu_backward",
        lambda x, y: aten.leaky_relu_backward(x, y, slope, False),
        lambda a, b: np.where(b > 0, a, a * scalar(a, slope)),
    )


def _elementwise() -> None:
    unary: dict[str, tuple[Any, Any]] = {
        "clone": (torch.clone, np.array),
        "contiguous": (lambda x: x.contiguous(), np.array),
        "copy": (lambda x: torch.empty_like(x).copy_(x), np.array),
        "_to_copy": (lambda x: aten._to_copy(x), np.array),
        "lift_fresh_copy": (lambda x: aten.lift_fresh_copy(x), np.array),
        "real": (torch.real, np.array),
        "abs": (torch.abs, np.abs),
        "neg": (torch.neg, np.negative),
        "floor": (torch.floor, np.floor),
        "ceil": (torch.ceil, np.ceil),
        "trunc": (torch.trunc, np.trunc),
        "round": (torch.round, np.rint),
        "signbit": (torch.signbit, np.signbit),
        "isnan": (torch.isnan, np.isnan),
        "isinf": (torch.isinf, np.isinf),
        "isfinite": (torch.isfinite, np.isfinite),
        "isposinf": (torch.isposinf, np.isposinf),
        "isneginf": (torch.isneginf, np.isneginf),
        "logical_not": (torch.logical_not, np.logical_not),
        "zero": (lambda x: x.clone().zero_(), np.zeros_like),
        "zeros_like": (torch.zeros_like, np.zeros_like),
        "ones_like": (torch.ones_like, np.ones_like),
        "full_like": (lambda x: torch.full_like(x, 0.3), lambda a: np.full_like(a, 0.3)),
        "fill": (lambda x: x.clone().fill_(-0.7), lambda a: np.full_like(a, -0.7)),
        "any": (lambda x: torch.any(x > 1, dim=1), lambda a: (a > 1).any(axis=1)),
        "all": (lambda x: torch.all(x < 1, dim=1), lambda a: (a < 1).all(axis=1)),
        "nonzero": (lambda x: torch.nonzero(x), lambda a: np.argwhere(a != 0)),
    }
    for op, (run, reference) in unary.items():
        add_case(op, lambda x, y, f=run: f(x), lambda a, b, f=reference: f(a))
    for op in ("sign", "sgn"):
        add_case(op, lambda x, y, n=op: getattr(torch, n)(x), lambda a, b: np.sign(a), tied=True, by_order=True)
    binary: dict[str, Any] = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
        "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
        "logical_xor": np.logical_xor, "copysign": np.copysign,
    }  # fmt: skip
    for op, reference in binary.items():
        add_case(op, getattr(torch, op), reference)
        add_case(op, lambda x, y, n=op: getattr(torch, n)(x, x), lambda a, b, f=reference: f(a, a), f"{op} (itself)")
    for op, reference in {"maximum": np.maximum, "minimum": np.minimum, "fmax": np.fmax, "fmin": np.fmin}.items():
        add_case(op, getattr(torch, op), reference, by_order=True)
    add_case("heaviside", torch.heaviside, lambda a, b: np.heaviside(a, b), tied=True)
    add_case("where", lambda x, y: torch.where(x > 0, x, y), lambda a, b: np.where(a > 0, a, b))
    add_case("masked_fill", lambda x, y: x.masked_fill(y > 0, 0.25), lambda a, b: np.where(b > 0, scalar(a, 0.25), a))
    add_case("masked_select", lambda x, y: torch.masked_select(x, y > 0), lambda a, b: a[_masked(b)])
    add_case("masked_scatter", lambda x, y: x.masked_scatter(y > 0, y), _masked_scatter)
    add_case("equal", lambda x, y: torch.equal(x, x.clone()), lambda a, b: np.array_equal(a, a))
    integer: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
    for name, reference in integer.items():
        add_case(
            f"bitwise_{name}",
            lambda x, y, n=name: getattr(torch, f"bitwise_{n}")(x.long(), y.long()),
            lambda a, b, f=reference: f(a.astype(np.int64), b.astype(np.int64)),
            tied=True,
        )
    add_case("bitwise_not", lambda x, y: torch.bitwise_not(x > 0), lambda a, b: ~(a > 0))


def _masked_scatter(a: Array, b: Array) -> Array:
    result, mask = a.copy(), _masked(b)
    result[mask] = b.reshape(-1)[: int(mask.sum())]
    return result


_arithmetic()
_elementwise()
