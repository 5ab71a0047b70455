"""Exact sums by index: no order changes a bit, as accurate as promised, log-free in the dispatch mode."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from exact_support import check_like, check_no_log, logged, make_mode, parts, same_bits
from pools_worker import FORMS, indices, plain, scatters, tensor
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics.scatter import add_elements_, add_rows_

CASES = scatters()


@pytest.mark.parametrize("name", CASES)
def test_like_the_operation(name: str) -> None:
    operation, arguments = CASES[name]
    before = {k: v.clone() for k, v in arguments.items() if isinstance(v, Tensor)}
    check_like(FORMS[operation](arguments), plain(operation, arguments), arguments, before, 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_loops_equal_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, arguments = CASES[name]
    compiled = FORMS[operation](arguments)
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert same_bits(compiled, FORMS[operation](arguments))


@pytest.mark.parametrize("width", [1, 3, 40, 600])
def test_no_order_changes_a_bit(width: int) -> None:
    index, terms = indices(20, 3000), tensor(3000, width) * torch.exp2(torch.arange(3000).double() % 40)[:, None]
    found, plainly = [], []
    for seed in range(3):
        order = torch.randperm(3000, generator=torch.Generator().manual_seed(seed))
        found.append(torch.ones(20, width, dtype=torch.float64))
        assert add_rows_(found[-1], index[order], terms[order])
        plainly.append(torch.ones(20, width, dtype=torch.float64).index_add_(0, index[order], terms[order]))
    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])
    assert not same_bits(plainly[0], plainly[1]), "or nothing is shown"


def test_as_accurate_as_promised() -> None:
    index, terms = indices(7, 400), tensor(400, 18)
    out = tensor(9, 18, seed=2)
    start = out.clone()
    assert add_rows_(out, index, terms)
    for row in range(9):
        mine = terms[index == row]
        for column in range(18):
            exactly = sum(map(Fraction, mine[:, column].tolist()), Fraction(0))
            bits = 51 - max(0, len(mine) - 1).bit_length()
            largest = max((abs(v) for v in mine[:, column].tolist()), default=0.0)
            error = abs(Fraction(float(out[row, column])) - Fraction(float(start[row, column])) - exactly)
            rounding = abs(Fraction(float(out[row, column]))) * Fraction(1, 2**53)
            assert error <= len(mine) * Fraction(largest) * Fraction(1, 2**bits) + rounding


@pytest.mark.parametrize("width", [1, 20])
def test_special_values_go_where_they_belong(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    index, terms = indices(8, 200), tensor(200, width)
    for row, values in enumerate(
        ([torch.nan], [torch.inf], [-torch.inf, torch.inf], [2.0**481], [-(2.0**490), torch.nan], [1e-300], [2.0**470])
    ):
        places = torch.nonzero(index == row)[:, 0]
        for place, value in zip(places.tolist(), values, strict=False):
            terms[place, 0] = value
    out = torch.zeros(8, width, dtype=torch.float64)
    assert add_rows_(out, index, terms)
    assert out[0, 0].isnan() and out[1, 0] == torch.inf and out[2, 0].isnan() and out[3, 0] == torch.inf
    assert out[4, 0].isnan() and out[5:, 0].isfinite().all() and (width == 1 or out[:, 1:].isfinite().all())
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    other = torch.zeros(8, width, dtype=torch.float64)
    assert add_rows_(other, index, terms) and same_bits(out, other)


def test_what_has_no_form_is_left_to_pytorch() -> None:
    x, index, source = tensor(5, 4), indices(5, 9), tensor(9, 4)
    add: dict[str, Any] = {"self": x, "dim": 0, "index": index, "source": source}
    changes: list[dict[str, Any]] = [
        {"self": x.float()}, {"dim": 2}, {"index": index[:3]}, {"index": index + 1}, {"index": index - 1},
        {"source": source.float()}, {"index": index[None]},
    ]  # fmt: skip
    for more in changes:
        assert FORMS["index_add"]({**add, **more}) is None, more
    scatter: dict[str, Any] = {"self": x, "dim": 0, "index": indices(5, 9, 4), "src": source}
    for more in ({"index": indices(5, 9, 5)}, {"index": indices(5, 10, 4)}, {"dim": 3}, {"src": source.float()}):
        assert FORMS["scatter_add"]({**scatter, **more}) is None, more
    for wrong in (scatter["index"] + 1, scatter["index"] - 1, scatter["index"][:3, :2] + 9):
        assert FORMS["scatter_add"]({**scatter, "index": wrong}) is None
    assert FORMS["scatter"]({**scatter, "reduce": "multiply"}) is None
    assert FORMS["scatter_reduce"]({**scatter, "reduce": "prod"}) is None
    put = {"self": x, "indices": [index], "values": source, "accumulate": True}
    for more in ({"accumulate": False}, {"values": source[:, :3]}, {"indices": [index + 1]}, {"indices": []}):
        assert FORMS["index_put"]({**put, **more}) is None, more
    embedding = {"grad_output": source, "indices": index, "num_weights": 4, "padding_idx": -1}
    assert FORMS["embedding_dense_backward"](embedding) is None


def test_other_dtypes_are_refused() -> None:
    for add in (add_rows_, add_elements_):
        with pytest.raises(PrecisionError):
            add(torch.zeros(3, 2), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2))


WHERE, ALONG, PLACES = indices(20, 50), indices(6, 20, 90), indices(120, 500)
FEW, COLUMN, ADDED = indices(4, 20, 6), indices(4, 20, 1), tensor(20, 9).float().double()
CALLS = {
    "embedding": lambda x: torch.nn.functional.embedding(WHERE.view(5, 10), x),
    "embedding, padded": lambda x: torch.nn.functional.embedding(WHERE, x, padding_idx=2, scale_grad_by_freq=True),
    "index": lambda x: x[WHERE],
    "index, two": lambda x: x[WHERE, WHERE % 6],
    "index, columns": lambda x: x[:, WHERE % 6],
    "index, mask": lambda x: x[x > 0],
    "index_select": lambda x: x.index_select(0, WHERE),
    "gather": lambda x: x.gather(1, ALONG),
    "take": lambda x: x.take(PLACES),
    "index_add": lambda x: x.new_ones(20, 6).index_add(0, WHERE[:20], x, alpha=0.5),
    "index_add_": lambda x: (x * 1).index_add_(1, WHERE[:9] % 6, ADDED),
    "scatter_add": lambda x: x.new_ones(4, 6).scatter_add(0, FEW, x),
    "scatter_add_": lambda x: x.new_ones(4, 6).scatter_add_(0, COLUMN.expand(20, 6), x),
    "scatter_reduce": lambda x: x.scatter_reduce(1, ALONG[:, :6], x, "mean", include_self=False),
    "index_put": lambda x: x.index_put((WHERE,), x[WHERE] * 2, accumulate=True),
    "index_put_": lambda x: (x * 1).index_put_((WHERE, WHERE % 6), x[0, 0], accumulate=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_log_forward_and_backward(name: str) -> None:
    check_no_log(CALLS[name], tensor(20, 6).float().double(), 1, 1e-6)


def test_bincount_has_no_log_and_keeps_integers() -> None:
    mode, weights = make_mode(), tensor(50).float().double()
    with mode:
        found, counts = torch.bincount(WHERE, weights), torch.bincount(WHERE)
    assert torch.allclose(found, torch.bincount(WHERE, weights)) and torch.equal(counts, torch.bincount(WHERE))
    assert logged(mode) == {} and len(parts(found)) == 1


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("width", [3, 40, 600])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_float32_gradients_of_embeddings_are_those_of_wide_ones(
    width: int, by_frequency: bool, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VT_REFERENCE_KERNELS", kernels)
    spread = (tensor(3000, width) * torch.exp2(torch.arange(3000).double() % 300 - 150)[:, None]).float()
    spread[5, 1], spread[6, 2], spread[7:9, 0] = float("nan"), float("inf"), 3e38
    arguments = {"indices": indices(20, 3000), "num_weights": 25, "scale_grad_by_freq": by_frequency, "padding_idx": 3}
    for terms in (spread, tensor(3000, width).float()):
        wide = FORMS["embedding_dense_backward"]({"grad_output": terms.double(), **arguments})
        found = FORMS["embedding_dense_backward"]({"grad_output": terms, **arguments})
        assert isinstance(wide, Tensor) and isinstance(found, Tensor)
        assert same_bits(found.float().double(), wide.float().double())
