"""Random operations, served from the counter-based streams and never from the device's own generator.

Each form returns the values that the operation asks for, in logical (row-major) order. What needs only exact
operations (uniform, Bernoulli, integers, permutations) is the same on every machine. Normal and exponential
values go through ``log`` and ``cos``: with our own (``functions: exact``) they are the same as well, with NumPy's they
are marked inexact, so the engine rounds them with a log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.streams import LIBRARY, Function, Functions, Stream
from vt_core.numerics import _jit_elementary, elementary
from vt_core.numerics import _jit_elementary_trigonometric as _jit_trigonometric


@dataclass(frozen=True)
class Drawn:
    """Values of a random operation; ``inexact`` if they went through functions without a defined last bit."""

    values: Any
    inexact: bool = False


def _float(values: np.ndarray[Any, Any], shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(values.reshape(tuple(shape))).to(device=device, dtype=dtype)


def _uniform(like: Tensor, stream: Stream, precision: int, low: float, high: float) -> Tensor:
    # No finer than the grid: 1 - 2^-53 would round up to 1.0, which no uniform value may be.
    unit = _float(stream.uniform(like.numel(), precision), like.shape, like.dtype, like.device)
    return unit if (low, high) == (0.0, 1.0) else low + (high - low) * unit


def _bernoulli(like: Tensor, p: Tensor | float, stream: Stream) -> Tensor:
    # Compared in float64 whatever the compute dtype: 2^-53 steps do not survive a narrower one.
    unit = torch.from_numpy(stream.uniform(like.numel()).reshape(tuple(like.shape)))
    bound = p.detach().to(device="cpu", dtype=torch.float64) if isinstance(p, Tensor) else p
    return (unit < bound).to(device=like.device, dtype=like.dtype)


def _normal(like: Tensor, stream: Stream, functions: Functions) -> Tensor:
    return _float(stream.normal(like.numel(), functions), like.shape, like.dtype, like.device)


def _integers(like: Tensor, low: int, high: int, stream: Stream) -> Tensor:
    if high <= low:
        raise RuntimeError(f"random integers need low < high, not {low} and {high}")
    drawn = stream.integers(like.numel(), high - low) + low
    return torch.from_numpy(drawn.reshape(tuple(like.shape))).to(device=like.device, dtype=like.dtype)


def _random_range(like: Tensor, arguments: dict[str, Any]) -> tuple[int, int]:
    """Range of ``Tensor.random_``: [from, to), or all integers that the dtype holds exactly."""
    low, high = arguments.get("from") or 0, arguments.get("to")
    if high is None:
        high = (
            2 ** round(-math.log2(torch.finfo(like.dtype).eps) + 1)
            if like.is_floating_point()
            else (torch.iinfo(like.dtype).max)
        )
    return int(low), int(high)


def draw(
    name: str, like: Tensor, arguments: dict[str, Any], stream: Stream, precision: int = 53, exact: bool = False
) -> Drawn:
    """Draw the values of random operation ``name`` for an output like ``like`` (shape, dtype, device).

    ``arguments`` are the operation's arguments by schema name; uniform values have ``precision`` bits. With ``exact``
    no value depends on the machine's library. Raises NotImplementedError for a form that is not known, which the
    engine reports as a refused operation.
    """
    if name in ("uniform", "rand", "rand_like"):
        return Drawn(_uniform(like, stream, precision, arguments.get("from", 0.0), arguments.get("to", 1.0)))
    if name in _THROUGH_FUNCTIONS:
        made = _THROUGH_FUNCTIONS[name](like, arguments, stream, EXACT if exact else LIBRARY)
        return Drawn(made, inexact=not exact)
    form = _FORMS.get(name)
    if form is None:
        raise NotImplementedError(name)
    return Drawn(form(like, arguments, stream))


def _ours(core: Callable[..., Any]) -> Function:
    def function(x: np.ndarray[Any, Any]) -> Any:
        return elementary.apply(core, torch.from_numpy(np.ascontiguousarray(x))).numpy()

    return function


EXACT = Functions(_ours(_jit_elementary.log1p), _ours(_jit_trigonometric.cos), _ours(_jit_trigonometric.sin))
"""Ours: the same bits on every machine."""


def _draw_bernoulli(like: Tensor, a: dict[str, Any], stream: Stream) -> Tensor:
    # bernoulli(self) takes its probabilities from self, bernoulli_(self) is a fair coin.
    p = a.get("p", 0.5 if a["self"] is like else a["self"])
    return _bernoulli(like, p, stream)


def _draw_normal(like: Tensor, a: dict[str, Any], stream: Stream, functions: Functions) -> Tensor:
    scaled: Tensor = _normal(like, stream, functions) * a.get("std", 1.0) + a.get("mean", 0.0)
    return scaled


def _draw_exponential(like: Tensor, a: dict[str, Any], stream: Stream, functions: Functions) -> Tensor:
    values = -functions.log1p(-stream.uniform(like.numel())) / float(a.get("lambd", 1.0))
    return _float(values, like.shape, like.dtype, like.device)


def _draw_integers(like: Tensor, a: dict[str, Any], stream: Stream) -> Tensor:
    return _integers(like, int(a.get("low", 0) or 0), int(a["high"]), stream)


def _draw_random(like: Tensor, a: dict[str, Any], stream: Stream) -> Tensor:
    return _integers(like, *_random_range(like, a), stream)


def _draw_permutation(like: Tensor, a: dict[str, Any], stream: Stream) -> Tensor:
    return torch.from_numpy(stream.permutation(int(a["n"]))).to(device=like.device, dtype=like.dtype)


_THROUGH_FUNCTIONS: dict[str, Callable[[Tensor, dict[str, Any], Stream, Functions], Tensor]] = {
    "normal": _draw_normal,
    "normal_functional": _draw_normal,
    "randn": _draw_normal,
    "randn_like": _draw_normal,
    "exponential": _draw_exponential,
}
_FORMS: dict[str, Callable[[Tensor, dict[str, Any], Stream], Tensor]] = {
    "bernoulli": _draw_bernoulli,
    "randint": _draw_integers,
    "randint_like": _draw_integers,
    "random": _draw_random,
    "randperm": _draw_permutation,
}


def multinomial(weights: Tensor, count: int, replacement: bool, stream: Stream) -> Tensor:
    """Draw category numbers, shape (..., count), int64, in proportion to ``weights`` (..., categories).

    With replacement: inverse of the exact cumulative sum (in Python integers via float64 partial sums of
    weights scaled to 32 bits). Without: repeated draws with the chosen weight set to zero.
    """
    rows = weights.detach().to(device="cpu", dtype=torch.float64).reshape(-1, weights.shape[-1]).numpy()
    if not np.isfinite(rows).all() or (rows < 0).any() or (rows.sum(axis=1) <= 0).any():
        raise RuntimeError("multinomial needs finite, nonnegative weights with a positive sum in each row")
    # Integers make the cumulative sums exact, so the draw is the same on every machine.
    scaled = np.floor(rows / rows.max(axis=1, keepdims=True) * 2.0**32).astype(np.int64)
    chosen = np.empty((len(rows), count), dtype=np.int64)
    for i, row in enumerate(scaled):
        for j in range(count):
            total = int(row.sum())
            if total <= 0:
                raise RuntimeError("multinomial without replacement: more draws than nonzero weights")
            target = int(stream.integers(1, total)[0])
            chosen[i, j] = int(np.searchsorted(np.cumsum(row), target, side="right"))
            if not replacement:
                row[chosen[i, j]] = 0
    return torch.from_numpy(chosen.reshape(*weights.shape[:-1], count)).to(weights.device)
