"""Exact running sums, variances and norms: no order changes a bit, as accurate as promised, log-free in the mode."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt
from typing import Any

import pytest
import torch
from exact_support import check_no_log, logged, make_mode, parts, same_bits
from pools_worker import FORMS, plain, reductions, tensor
from torch import Tensor

from vt_core.engine import exact_reductions, exact_sums
from vt_core.errors import PrecisionError
from vt_core.numerics.squares import squares_sum

CASES = reductions()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_like_the_operation(name: str) -> None:
    operation, arguments = CASES[name]
    before = arguments["self"].clone()
    for found, expected in zip(
        parts(FORMS[operation](arguments)), parts(plain(operation, arguments)), strict=True
    ):  # fmt: skip
        assert found.shape == expected.shape and found.dtype == torch.float64
        atol = 1e-11 * float(expected.nan_to_num().abs().max()) if expected.numel() else 0.0
        assert torch.allclose(found, expected, rtol=1e-11, atol=atol, equal_nan=True)
        assert not found.numel() or found.data_ptr() != arguments["self"].data_ptr()
    assert same_bits(arguments["self"], before)


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_loops_equal_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, arguments = CASES[name]
    compiled = FORMS[operation](arguments)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert same_bits(compiled, FORMS[operation](arguments))


def test_no_layout_changes_a_bit() -> None:
    for name, (operation, arguments) in CASES.items():
        if name.endswith(", channels last"):
            other, given = CASES[name.removesuffix(", channels last")]
            assert same_bits(FORMS[operation](arguments), FORMS[other](given)), name


def test_no_order_changes_a_bit() -> None:
    x = tensor(3000)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(1))
    for operation, arguments in (("var", {"correction": 1}), ("linalg_vector_norm", {}), ("std", {"correction": 0})):
        found = FORMS[operation]({"self": x, **arguments})
        assert same_bits(found, FORMS[operation]({"self": x[order], **arguments}))
    assert not same_bits(x.norm(), x[order].norm()), "or nothing is shown"


def test_every_sum_so_far_is_exact() -> None:
    x = tensor(1000, 3)
    found = FORMS["cumsum"]({"self": x, "dim": 0})
    unit = [Fraction(1, 2 ** (41 - e)) for e in (torch.frexp(x.abs().amax(0)).exponent).tolist()]  # 51 - 10 bits
    for column in range(3):
        total = Fraction(0)
        for i, v in enumerate(x[:, column].tolist()):
            total += round(Fraction(v) / unit[column]) * unit[column]
            assert Fraction(float(parts(found)[0][i, column])) == total


def test_long_lines_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(4, 21)
    whole = {name: FORMS[name]({"self": x.view(-1), "correction": 1}) for name in ("var", "linalg_vector_norm")}
    line = FORMS["cumsum"]({"self": x, "dim": 1})
    for module in (exact_reductions, exact_sums):
        monkeypatch.setattr(module, "MAX_SUM_TERMS", 8)
    monkeypatch.setattr(exact_reductions, "SQUARES", 8)
    for terms in (84, 81):  # the last chunk is shorter, or one element
        y = x.view(-1)[:terms]
        for name in whole:
            found = FORMS[name]({"self": y, "correction": 1})
            strided = FORMS[name]({"self": torch.stack([y, y], 1)[:, 0], "correction": 1})
            assert same_bits(found, strided)
            assert terms < 84 or torch.allclose(parts(found)[0], parts(whole[name])[0], rtol=1e-12)
    rows = FORMS["var"]({"self": x, "dim": [1], "correction": 1})
    assert torch.allclose(parts(rows)[0], x.var(1), rtol=1e-12)
    cut = parts(FORMS["cumsum"]({"self": x, "dim": 1}))[0]
    assert torch.allclose(cut, parts(line)[0], rtol=1e-12, atol=1e-12)
    for i in (8, 16):
        rest = parts(FORMS["cumsum"]({"self": x[:, i : i + 8], "dim": 1}))[0]
        assert same_bits(cut[:, i : i + 8], rest + cut[:, i - 1 : i])


def test_as_accurate_as_promised() -> None:
    x = tensor(500) + 1000.0
    terms = [Fraction(v) for v in x.tolist()]
    mean = sum(terms) / 500
    variance = sum((t - mean) ** 2 for t in terms) / 499
    found, middle = (Fraction(float(t)) for t in parts(FORMS["var_mean"]({"self": x, "correction": 1})))
    assert abs(middle - mean) <= max(terms) * Fraction(1, 2**42) and abs(found - variance) <= variance / 2**38
    norm = Fraction(float(parts(FORMS["linalg_vector_norm"]({"self": x}))[0]))
    exactly = Fraction(isqrt(int(sum(t * t for t in terms) * 2**120)), 2**60)
    assert abs(norm - exactly) <= exactly / 2**42


def test_special_values_go_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(6, 4)
    x[0, 0], x[1, 1], x[2, 2], x[3, 0], x[3, 1], x[4, 0] = torch.nan, torch.inf, 2.0**300, torch.inf, -torch.inf, 0.0
    found = []
    for reference in ("0", "1"):
        monkeypatch.setenv("VT_REFERENCE_KERNELS", reference)
        norm, var = (parts(FORMS[n]({"self": x, "dim": [1]}))[0] for n in ("linalg_vector_norm", "var"))
        assert norm[0].isnan() and norm[1] == torch.inf == norm[2] == norm[3] and norm[4:].isfinite().all()
        assert var[0].isnan() and var[1].isnan() and var[3].isnan() and var[4:].isfinite().all()
        sums = parts(FORMS["cumsum"]({"self": x, "dim": 1}))[0]
        assert torch.equal(sums.isnan(), x.cumsum(1).isnan()) and torch.equal(sums.isinf(), x.cumsum(1).isinf())
        found.append((norm, var, sums))
    assert same_bits(*found)


def test_what_has_no_form_is_left_to_pytorch() -> None:
    x = tensor(3, 4)
    for more in ({"dim": [2]}, {"dim": [0, 0]}, {"dim": ["rows"]}, {"self": x.float()}, {"self": x.to_sparse()}):
        for name in ("var", "std_mean", "linalg_vector_norm"):
            if (
                name in exact_reductions.FLOAT32
                and more.get("self") is not None
                and more["self"].dtype == torch.float32
            ):
                continue
            assert FORMS[name]({"self": x, **more}) is None, more
    assert FORMS["linalg_vector_norm"]({"self": x, "ord": 3}) is None
    assert FORMS["linalg_vector_norm"]({"self": x[:0], "ord": torch.inf}) is None
    assert FORMS["cumsum"]({"self": x, "dim": 2}) is None and FORMS["trace"]({"self": x[0]}) is None
    with pytest.raises(PrecisionError):
        squares_sum(x.half(), x[:, 0], 30)
    with pytest.raises(PrecisionError):
        squares_sum(x, x[:, 0].float(), 30)


CALLS: dict[str, Any] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum_": lambda x: (x * 1).cumsum_(0),
    "trace": lambda x: x.trace(),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(1, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, 0, correction=0)[0],
    "std_mean": lambda x: torch.std_mean(x, [0, 1])[0],
    "norm": lambda x: x.norm(),
    "norm, rows": lambda x: x.norm(dim=1, keepdim=True),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1, dim=0),
    "largest": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "normalise": lambda x: torch.nn.functional.normalize(x, dim=-1),
    "nansum": lambda x: x.nansum(0),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_log_forward_and_backward(name: str) -> None:
    check_no_log(CALLS[name], tensor(20, 6).float().double(), 1, 1e-5)


def test_clipping_gradients_has_no_log() -> None:
    parameters = [torch.nn.Parameter(tensor(30, 20, seed=i).float().double()) for i in range(3)]
    for p in parameters:
        p.grad = p.detach() * 3
    mode = make_mode()
    with mode:
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False)
    assert logged(mode) == {}
    expected = torch.cat([p.detach().reshape(-1) * 3 for p in parameters]).norm()
    assert torch.allclose(norm, expected, rtol=1e-6)
    assert torch.allclose(torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None]).norm(),
                          torch.ones((), dtype=torch.float64), rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("order", [0, 1, 2, float("inf")])
@pytest.mark.parametrize("dim", [None, [0], [1], [0, 2]])
def test_norms_of_float32_are_those_of_wide_values(
    dim: list[int] | None, order: float, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VT_REFERENCE_KERNELS", kernels)
    x = (tensor(7, 40, 30) * torch.exp2(torch.arange(30).double() * 9 - 140)).float()
    for given in (x, x.transpose(0, 1), torch.where(x > 1e30, torch.inf, x), x[:, :0], x[:, :1] * 1e-40):
        if given.numel() == 0 and order == float("inf"):
            continue
        wide = FORMS["linalg_vector_norm"]({"self": given.double(), "ord": order, "dim": dim})
        found = FORMS["linalg_vector_norm"]({"self": given, "ord": order, "dim": dim})
        assert isinstance(wide, Tensor) and isinstance(found, Tensor)
        assert same_bits(found.float().double(), wide.float().double())


def test_norms_of_many_float32_values_are_those_of_wide_values() -> None:
    x = tensor(exact_reductions.SQUARES + 1000).float()
    wide, found = (FORMS["linalg_vector_norm"]({"self": t}) for t in (x.double(), x))
    assert isinstance(wide, Tensor) and same_bits(found, wide)
