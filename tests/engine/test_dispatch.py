"""Shortcuts of the dispatch mode change nothing: treatments, traces and masks are those of the long way."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from update_support import bits, mode_of, values

from vt_core.engine import trace
from vt_core.engine.plans import by_name, make_plan, refine
from vt_core.engine.settings import common_settings
from vt_core.engine.streams import Streams
from vt_core.engine.trace import Trace
from vt_core.numerics import Grid, round_plain_

aten = torch.ops.aten


def rounded(x: Tensor) -> Tensor:
    round_plain_(x, Grid.parse("float32"), False)
    return x


A, B, C = (values((6, 5), seed, torch.float64).nan_to_num(0.5, 2.0, -2.0) for seed in (1, 2, 3))
THIRD = float(np.float32(1 / 3))
CALLS: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
    "add": (lambda: aten.add.Tensor(A, B), lambda: A + B),
    "add a number": (lambda: aten.add.Scalar(A, 1 / 3), lambda: A + THIRD),
    "add alpha": (lambda: aten.add.Tensor(A, B, alpha=1 / 3), lambda: rounded(A + B * THIRD)),
    "add alpha by position": (lambda: aten.add.Scalar(A, 1 / 3, 1 / 3), lambda: rounded(A + THIRD * THIRD)),
    "add alpha one": (lambda: aten.add.Tensor(A, B, alpha=1), lambda: A + B),
    "sub alpha by position": (lambda: aten.sub.Scalar(A, 1 / 3, 1 / 3), lambda: rounded(A - THIRD * THIRD)),
    "rsub": (lambda: aten.rsub.Scalar(A, 1 / 3), lambda: THIRD - A),
    "rsub alpha by position": (lambda: aten.rsub.Scalar(A, 1 / 3, 1 / 3), lambda: rounded(THIRD - A * THIRD)),
    "div": (lambda: aten.div.Tensor(A, B), lambda: A / B),
    "mul": (lambda: aten.mul.Tensor(A, 1 / 3), lambda: A * THIRD),
    "exp": (lambda: aten.exp.default(B.clamp(-1, 1)), lambda: rounded(torch.exp(B.clamp(-1, 1)))),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_form_of_a_call_gets_its_treatment(name: str) -> None:
    call, expected = CALLS[name]
    with common_settings(torch.float64):
        mode = mode_of(torch.float64, Grid.parse("float32"))
        mode.rounding.begin_step(1)
        with mode:
            found = call()
        assert bits(found) == bits(expected())


def test_refined_plans_settle_only_what_arguments_cannot_change() -> None:
    for packet in ("add", "sub", "rsub", "div"):
        for overload in getattr(aten, packet).overloads():
            plan = make_plan(getattr(getattr(aten, packet), overload))
            if "Tensor" in overload or "Scalar" in overload:
                assert plan.refined and plan.settled == 2
                assert refine(plan, by_name(plan, (A, B), {})) is plan.treatment
    for func in (aten.index_put.default, aten.arange.start_step, aten.scatter.value_reduce, aten.bincount.default):
        assert make_plan(func).refined and make_plan(func).settled == 0


def test_a_trace_is_the_same_from_memory() -> None:
    results = [
        torch.empty(shape, dtype=dtype) for shape in ((), (3,), (3, 1)) for dtype in (torch.float64, torch.int64)
    ]
    lines = [f"{name} {tuple(r.shape)}{r.dtype}" for name in ("a", "b") for r in results]
    found = Trace()
    for _ in range(2):
        found.begin()
        for name in ("a", "b"):
            for result in results:
                found.record(name, result)
        assert list(found.lines) == lines
    found.record("c", (results[1], None, 0.5))
    found.record("d", torch.nn.Parameter(results[2]))
    assert found.lines[-2:] == ("c [()torch.int64,NoneType,float]", "d (3,)torch.float64")


def test_what_a_trace_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MOST_KNOWN", 3)
    found = Trace()
    for n in (*range(8), *range(8)):
        found.record("a", torch.empty(n, dtype=torch.float64))
    assert found.lines == tuple(f"a ({n},)torch.float64" for n in (*range(8), *range(8)))
    assert len(found._known) <= 3


@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 1 - 2.0**-53, 1.0, 5e-324, 2.0**-53, 0.7])
def test_a_dropout_mask_compares_uniform_numbers(p: float) -> None:
    x = values((40, 50), 9, torch.float64)
    with common_settings(torch.float64):
        mode = mode_of(torch.float64, Grid.parse("float32"))
        mode.rounding.begin_step(1)
        mode.begin_step(2, 3)
        with mode:
            found, mask = torch.native_dropout(x, p, True)
        uniform = Streams(1).stream("op", epoch=2, step=3, site=0).uniform(x.numel()).reshape(x.shape)
        kept = torch.from_numpy(uniform >= p)
        assert torch.equal(mask, kept)
        scale = 0.0 if p == 1.0 else float(np.float32(1 / (1 - p)))
        assert bits(found) == bits(rounded(x * kept * scale))
    assert math.isclose(float(mask.double().mean()), 1 - p, abs_tol=0.05)
