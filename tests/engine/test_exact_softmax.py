"""Exact softmax functions: as PyTorch within rounding, the same bits everywhere, log-free in the dispatch mode."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from exact_support import make_mode, same_bits, under_profile
from softmax_worker import loss_cases, softmax_cases
from torch import Tensor

from vt_core.engine.exact_softmax import FORMS
from vt_core.engine.mode import VerifiedMode
from vt_core.errors import PrecisionError
from vt_core.numerics import _jit_base, _jit_quantise, _jit_softmax, elementary, softmax

PROFILES = ("default", "portable")
ROOT = Path(__file__).resolve().parents[2]
NAN, INF = float("nan"), float("inf")
MAPS = ("_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data", "_log_softmax_backward_data")


def tensor(*shape: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread


def arguments(name: str, x: Tensor, dim: int, grad: Tensor | None = None) -> dict[str, Any]:
    """Return arguments of one of MAPS; ``x`` is what the function was applied to."""
    if not name.endswith("_data"):
        return {"self": x, "dim": dim} | ({} if name == "_safe_softmax" else {"half_to_float": False})
    y = FORMS[name.removesuffix("_backward_data")]({"self": x, "dim": dim, "half_to_float": False})
    grad = tensor(*x.shape, seed=9) if grad is None else grad
    return {"grad_output": grad, "output": y, "dim": dim, "input_dtype": torch.float64}


def call(name: str, given: dict[str, Any]) -> Tensor:
    found = FORMS[name](given)
    assert isinstance(found, Tensor)
    return found


def by_tensors(monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any]) -> Tensor:
    """Return the result by plain tensor operations."""
    with monkeypatch.context() as patch:
        patch.setenv("VT_REFERENCE_KERNELS", "1")
        return call(name, given)


LAYOUTS: dict[str, tuple[Tensor, int]] = {
    "last": (tensor(4, 5, 6), -1),
    "first": (tensor(4, 5, 6), 0),
    "middle": (tensor(4, 5, 6), 1),
    "channels_last": (tensor(2, 5, 4, 3).contiguous(memory_format=torch.channels_last), 1),
    "not contiguous": (tensor(4, 5, 6).permute(2, 0, 1)[::2], -2),
    "expanded": (tensor(4, 1, 6).expand(4, 5, 6), 1),
    "images": (tensor(2, 21, 20, 30), 1),
    "long columns": (tensor(2500, 19), 0),
    "attention": (tensor(6, 64, 64).masked_fill(torch.ones(64, 64).triu(1).bool(), -INF), -1),
    "long": (tensor(3, 2500), -1),
    "threads": (tensor(40, 7000), -1),
    "one term": (tensor(4, 1), 1),
    "no dimension": (tensor(), 0),
    "nothing": (tensor(0), 0),
    "nothing along": (tensor(3, 0), 1),
    "nothing across": (tensor(0, 3), 1),
}


@pytest.mark.parametrize("name", MAPS)
def test_like_the_operations(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for layout, (x, dim) in LAYOUTS.items():
        given = arguments(name, x, dim)
        found, expected = call(name, given), getattr(torch.ops.aten, name)(**given)
        assert found.shape == expected.shape and found.is_contiguous(), layout
        assert torch.allclose(found, expected, rtol=1e-13, atol=1e-12), layout
        assert same_bits(found, by_tensors(monkeypatch, name, given)), layout
        assert not found.numel() or found.data_ptr() not in {v.data_ptr() for v in given.values() if torch.is_tensor(v)}


def test_logsumexp_like_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout, (x, dim) in LAYOUTS.items():
        for dims in ([dim], [0, -1]) if x.dim() > 1 else ([dim],):
            for keepdim in (False, True):
                given = {"self": x, "dim": dims, "keepdim": keepdim}
                if not x.numel() or not x.dim():
                    assert FORMS["logsumexp"](given) is None
                    continue
                found, expected = call("logsumexp", given), torch.logsumexp(x, dims, keepdim)
                assert found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-14), layout
                assert same_bits(found, by_tensors(monkeypatch, "logsumexp", given)), layout


SPECIAL = torch.tensor([
    [-INF, -INF, -INF, -INF], [1.0, INF, 2.0, -INF], [INF, INF, 0.0, 0.0], [1.0, NAN, 2.0, 3.0],
    [-INF, -NAN, -INF, -INF], [INF, NAN, 2.0, 3.0], [-INF, -INF, 2.0, -INF], [0.0, -0.0, 0.0, -INF],
    [-0.0, -0.0, -0.0, -0.0], [1e300, -1e300, 1e308, 1.7e308], [-1e308, -1.7e308, -1.6e308, -1e300],
    [5e-324, -5e-324, 0.0, 1e-310], [0.0, -700.0, -745.0, -800.0],
], dtype=torch.float64)  # fmt: skip


def test_no_number_of_threads_changes_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape, dim in (((50, 5000), 1), ((5, 50, 1000), 1)):
        x = tensor(*shape)
        for name in MAPS:
            given, found = arguments(name, x, dim), []
            for workers in (1, 3):
                monkeypatch.setattr(_jit_quantise, "worker_count", lambda workers=workers: workers)
                found.append(call(name, given))
            assert same_bits(*found), name


def test_special_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MAPS[:3]:
        given = arguments(name, SPECIAL, 1)
        found, expected = call(name, given), getattr(torch.ops.aten, name)(**given)
        assert torch.allclose(found, expected, rtol=1e-13, atol=0.0, equal_nan=True), name
        assert same_bits(found, by_tensors(monkeypatch, name, given)), name
    given = {"self": SPECIAL, "dim": [1]}
    found = call("logsumexp", given)
    assert torch.allclose(found, torch.logsumexp(SPECIAL, 1), rtol=1e-14, atol=0.0, equal_nan=True)
    assert same_bits(found, by_tensors(monkeypatch, "logsumexp", given))


def test_special_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(len(SPECIAL), 4)
    x[:, 3] = -INF
    big = torch.tensor([[1e306, -1e306, 1.0, 0.0], [2.0**1021, 1.0, 1.0, 1.0], [1e-306, 3e-307, 1e-300, 0.0]]).double()
    for values in (SPECIAL, torch.cat([big, tensor(len(SPECIAL) - 3, 4) * 1e-310])):
        for name in MAPS[3:]:
            given = arguments(name, x, 1, values)
            found, expected = call(name, given), getattr(torch.ops.aten, name)(**given)
            counted = (given["grad_output"].abs() < 2.0**1020).all(1)
            assert torch.equal(found[counted].isnan(), expected[counted].isnan()), name
            assert same_bits(found, by_tensors(monkeypatch, name, given)), name


@pytest.mark.parametrize("n", [1, 2, 1023, 1024, 1025, 5000])
def test_a_sum_has_no_error_but_that_of_its_terms(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """The terms of equal values are all 1, the most that a count must hold."""
    same = torch.full((2, n), 3.25, dtype=torch.float64)
    one = elementary.log(torch.tensor([float(n)], dtype=torch.float64))
    assert same_bits(softmax.softmax(same, 1), torch.full_like(same, 1.0) / n)
    assert same_bits(softmax.logsumexp(same, (1,)), (one + 3.25).expand(2))
    g = tensor(1, n, seed=n) * torch.exp2(tensor(1, n, seed=1).round())
    zero = torch.zeros_like(g)
    top = Fraction(2) ** (Fraction(float(g.abs().max())).__ceil__().bit_length() + 2)
    while top > abs(Fraction(float(g.abs().max()))):
        top /= 2
    unit = top * 2 / 2**51
    total = float(sum((round(Fraction(v) / unit) * unit for v in g[0].tolist()), Fraction(0)))
    expected = g - total  # exp(0) is 1
    assert same_bits(softmax.log_softmax_backward(g, zero, 1), expected)
    assert same_bits(softmax.softmax_backward(g, zero + 1.0, 1), expected)


def test_no_order_changes_a_bit() -> None:
    x, g = tensor(20, 3000), tensor(20, 3000, seed=1)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(2))
    assert not torch.equal(torch.softmax(x[:, order], 1), torch.softmax(x, 1)[:, order]), "or nothing is shown"
    for name in MAPS:
        found = call(name, arguments(name, x, 1, g))
        assert same_bits(call(name, arguments(name, x[:, order], 1, g[:, order])), found[:, order]), name
    assert same_bits(call("logsumexp", {"self": x[:, order], "dim": [1]}), call("logsumexp", {"self": x, "dim": [1]}))


@pytest.fixture(scope="module")
def by_profile() -> dict[str, Any]:
    return {profile: under_profile(profile, "softmax_worker") for profile in PROFILES}


def test_the_same_bits_on_every_profile(by_profile: dict[str, Any]) -> None:
    """Softmax functions and the losses of ``test_exact_losses``."""
    for name in softmax_cases() | loss_cases():
        assert len({by_profile[p][name]["exact"] for p in PROFILES}) == 1, name


def test_plain_kernels_differ_between_the_profiles(by_profile: dict[str, Any]) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("one kind of kernel only")
    same = {name for name in by_profile["default"] if len({by_profile[p][name]["plain"] for p in PROFILES}) == 1}
    assert not same & {"softmax", "log_softmax", "log_softmax_backward", "mse_loss", "huber_loss"}, same


@pytest.mark.parametrize(("n", "spread"), [(3, 1.0), (10, 30.0), (64, 3.0), (700, 10.0)])
def test_accuracy(n: int, spread: float) -> None:
    """Each rounding counts its share of the largest value it meets, and each term of a sum half a unit of 2**-52."""
    x, g = tensor(1, n, seed=n, spread=spread), tensor(1, n, seed=n + 1)
    y, z = softmax.softmax(x, 1), softmax.log_softmax(x, 1)
    back, log_back = softmax.softmax_backward(g, y, 1), softmax.log_softmax_backward(g, z, 1)
    of_sum, few = n * 2.0**-53, 3 * 2.0**-53
    with mpmath.workdps(40):
        xs, gs, ys, zs = ([mpmath.mpf(v) for v in t[0].tolist()] for t in (x, g, y, z))
        log_s = mpmath.log(mpmath.fsum(mpmath.exp(v) for v in xs))
        dot, total = mpmath.fsum(a * b for a, b in zip(ys, gs, strict=True)), mpmath.fsum(gs)
        top, biggest = max(xs), 2 * max(abs(v) for v in gs)
        assert abs(softmax.logsumexp(x, (1,)).item() - log_s) < of_sum + few * max(abs(top), abs(log_s), 1)
        for i, v in enumerate(xs):
            e, away = mpmath.exp(v - log_s), max(top - v, 1)
            assert abs(y[0, i].item() - e) < (of_sum + few * away) * e
            assert abs(z[0, i].item() - (v - log_s)) < of_sum + few * max(log_s - v, 1)
            assert abs(back[0, i].item() - ys[i] * (gs[i] - dot)) < (of_sum + few) * ys[i] * biggest
            p = mpmath.exp(zs[i])
            error = abs(log_back[0, i].item() - (gs[i] - p * total))
            assert error < of_sum * p * biggest + few * (abs(gs[i]) + p * abs(total))


def test_a_long_tail_of_small_terms_counts() -> None:
    x = torch.full((1, 50257), -30.0, dtype=torch.float64)
    x[0, 7] = 0.0
    with mpmath.workdps(40):
        expected = float(-mpmath.log(1 + 50256 * mpmath.exp(-30)))
    assert abs(softmax.log_softmax(x, 1)[0, 7].item() - expected) < 50257 * 2.0**-53
    assert float(x.float().log_softmax(1)[0, 7]) != pytest.approx(expected, rel=1e-3), "float32 is coarser"


def test_what_has_no_exact_form_is_left_to_pytorch() -> None:
    x = tensor(4, 5)
    for y, dim in ((x.half(), 1), (x, 2), (x, -3), (x.long(), 1), (x.to_sparse(), 1)):
        assert FORMS["_softmax"]({"self": y, "dim": dim, "half_to_float": False}) is None
        assert FORMS["_log_softmax"]({"self": y, "dim": dim, "half_to_float": False}) is None
        assert FORMS["_safe_softmax"]({"self": y, "dim": dim}) is None
        assert FORMS["logsumexp"]({"self": y, "dim": [dim]}) is None
    assert FORMS["_softmax"]({"self": x, "dim": 1, "half_to_float": True}) is None
    assert FORMS["_safe_softmax"]({"self": x, "dim": 1, "dtype": torch.float32}) is None
    assert FORMS["logsumexp"]({"self": x, "dim": []}) is None and FORMS["logsumexp"]({"self": x, "dim": [0, 0]}) is None
    for name in MAPS[3:]:
        given = {"grad_output": x, "output": x, "dim": 1, "input_dtype": torch.float64}
        assert FORMS[name](given | {"input_dtype": torch.float32}) is None
        assert FORMS[name](given | {"grad_output": x[:2]}) is None


def test_other_dtypes_are_refused() -> None:
    for function in (softmax.softmax, softmax.log_softmax):
        with pytest.raises(PrecisionError):
            function(torch.zeros(3, dtype=torch.float16), 0)


def test_the_cache_notices_changes_of_the_cores() -> None:
    for function in (_jit_softmax.softmax, _jit_softmax.log_softmax, _jit_softmax._exp_units, _jit_softmax.logsumexp):
        assert function.py_func.__qualname__.endswith(_jit_base.SOURCES)


@pytest.fixture
def mode() -> VerifiedMode:
    return make_mode()


RUNS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax over columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "safe_softmax": lambda x: torch._safe_softmax(x, -1),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_log_forward_and_backward(mode: VerifiedMode, name: str) -> None:
    x, g = tensor(64, 50).float().double().requires_grad_(), tensor(64, 50, seed=1).float().double()
    with mode:
        y = RUNS[name](x)
        y.backward(g[:, : y.shape[1]])
    assert all(c.elements == 0 for c in mode.rounding.counters.by_class.values())
    assert mode.rounding.counters.plain >= y.numel() + x.numel() and x.grad is not None
    found, x.grad = x.grad, None
    expected = RUNS[name](x)
    expected.backward(g[:, : y.shape[1]])
    assert same_bits(y.detach(), y.detach().float().double()) and torch.allclose(y, expected, rtol=1e-6)
    assert x.grad is not None and torch.allclose(found, x.grad, rtol=1e-5, atol=1e-6)


def test_the_error_of_pytorch_is_kept(mode: VerifiedMode) -> None:
    x = tensor(3, 4)
    with mode, pytest.raises(IndexError):
        x.softmax(5)
