"""Products of quantised matrices in panels: the bits of the plain product, for every layout and size of panel."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vt_core.errors import PrecisionError
from vt_core.numerics import exact_matmul as module
from vt_core.numerics._jit_quantise import PART
from vt_core.numerics.exact_matmul import exact_matmul
from vt_core.numerics.quantise import product_bits, reference_quantise
from vt_core.numerics.scratch import KEPT, Scratch


def values(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x * torch.exp2(torch.randint(-8, 8, shape, generator=generator).double())


def reference(a: Tensor, b: Tensor, bits: int, slices: int) -> Tensor:
    high_a, high_b = reference_quantise(a, (a.dim() - 1,), bits), reference_quantise(b, (b.dim() - 2,), bits)
    if slices == 1:
        return high_a @ high_b
    low_a = reference_quantise(a - high_a, (a.dim() - 1,), bits)
    low_b = reference_quantise(b - high_b, (b.dim() - 2,), bits)
    return high_a @ high_b + (high_a @ low_b + low_a @ high_b)


def same_bits(a: Tensor, b: Tensor) -> bool:
    equal = a.contiguous().view(torch.int64) == b.contiguous().view(torch.int64)
    return a.shape == b.shape and bool((equal | (a.isnan() & b.isnan())).all())


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x.contiguous(),
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every second column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
    "part of wider rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every second matrix": lambda x: torch.stack([x, x], 1)[:, 0] if x.dim() == 3 else x,
}
SHAPES = [(1, 1, 1), (3, 1, 5), (1, 40, 1), (20, 70, 30), (37, 513, 9), (9, 513, 37), (2, 3000, 1), (130, 64, 260)]


@pytest.fixture(params=["usual", "small"])
def panels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The usual panels, and ones so small that every loop runs more than once."""
    if request.param == "small":
        monkeypatch.setattr(module, "PANEL", 600)
        monkeypatch.setattr(module, "FEWEST_TERMS", 8)
        monkeypatch.setattr(module, "MOST_ROWS", 16)
    return str(request.param)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_equal_to_the_reference_for_all_layouts(left: str, right: str, slices: int, panels: str) -> None:
    for seed, (m, k, n) in enumerate(SHAPES):
        for batch in ((), (1,), (5,)):
            a, b = values(*batch, m, k, seed=seed), values(*batch, k, n, seed=seed + 1)
            bits = product_bits(k)
            found = exact_matmul(LAYOUTS[left](a), LAYOUTS[right](b), bits, slices)
            assert same_bits(found, reference(a, b, bits, slices)), (batch, m, k, n)


def test_large_enough_for_threads_and_several_panels() -> None:
    a, b = values(300, 4000, seed=1), values(4000, 1100, seed=2)
    assert a.shape[1] > module.PANEL // (300 + 1100) and b.numel() > 2 * PART
    for x, y in ((a, b), (LAYOUTS["transposed"](a), LAYOUTS["transposed"](b)), (b.t(), a.t())):
        assert same_bits(exact_matmul(x, y, 20, 1), reference(x, y, 20, 1))


def test_integers_are_multiplied_exactly(panels: str) -> None:
    generator = torch.Generator().manual_seed(3)
    a = torch.randint(-(1 << 20) + 1, 1 << 20, (30, 700), generator=generator)
    b = torch.randint(-(1 << 20) + 1, 1 << 20, (700, 40), generator=generator)
    a[:, 0], b[0] = (1 << 20) - 1, (1 << 20) - 1  # so that the unit is 1 in each row and column
    found = exact_matmul(a.double(), b.double(), product_bits(700), 1)
    assert torch.equal(found.long(), a @ b)


def test_neither_order_nor_panels_change_a_bit_but_with_more_bits_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(s, generator=generator, dtype=torch.float64) / 8 + 0.87 for s in ((40, 3000), (3000, 50)))
    monkeypatch.setattr(module, "PANEL", 1)
    results = []
    for terms in (8, 40, 3000):
        monkeypatch.setattr(module, "FEWEST_TERMS", terms)
        order = torch.randperm(3000, generator=generator)
        results.append([exact_matmul(a[:, order], b[order], product_bits(3000) + extra, 1) for extra in (0, 2)])
    assert all(same_bits(within, results[0][0]) for within, _ in results)
    assert not any(same_bits(beyond, results[0][1]) for _, beyond in results[1:])


def test_special_values(panels: str) -> None:
    a, b = values(40, 600, seed=1), values(600, 50, seed=2)
    a[3, 5], a[4, 599], a[5, 0], a[6, 300], a[7], b[20, 7] = (
        float("nan"), float("inf"), 2.0**490, 2.0**-1060, 0.0, float("-inf"),
    )  # fmt: skip
    found, expected = exact_matmul(a, b, 20, 1), reference(a, b, 20, 1)
    assert same_bits(found, expected)
    assert found[3].isnan().all() and found[4, 0].isinf() and found[7, 7].isnan() and bool((found[7, :7] == 0).all())


@pytest.mark.parametrize("place", [0, 1, 299, 598, 599])
@pytest.mark.parametrize("layout", ["row-major", "transposed"])
def test_the_scale_is_that_of_all_terms(place: int, layout: str, panels: str) -> None:
    a, b = values(17, 600, seed=1), values(600, 33, seed=2)
    a[:, place] *= 2.0**30
    b[place] *= 2.0**30
    found = exact_matmul(LAYOUTS[layout](a), LAYOUTS[layout](b), 20, 1)
    assert same_bits(found, reference(a, b, 20, 1))


def test_nothing_to_add_and_nothing_to_return() -> None:
    for slices in (1, 2):
        assert same_bits(exact_matmul(values(3, 0), values(0, 4), 20, slices), torch.zeros(3, 4).double())
        assert exact_matmul(values(0, 5), values(5, 4), 20, slices).shape == (0, 4)
        assert exact_matmul(values(0, 3, 5), values(0, 5, 4), 20, slices).shape == (0, 3, 4)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(PrecisionError):
        exact_matmul(torch.zeros(2, 2), torch.zeros(2, 2), 20, 1)


def test_operands_stay_and_results_live_in_memory_of_their_own() -> None:
    a, b = values(20, 30, seed=1), values(30, 40, seed=2)
    before = a.clone(), b.clone()
    first = exact_matmul(a, b, 20, 2)
    kept = first.clone()
    second = exact_matmul(values(20, 30, seed=5), b, 20, 2)
    assert torch.equal(first, kept) and torch.equal(a, before[0]) and torch.equal(b, before[1])
    assert len({t.untyped_storage().data_ptr() for t in (first, second, a, b)}) == 4


def test_threads_do_not_share_scratch() -> None:
    pairs = [(values(60, 900, seed=i), values(900, 70, seed=i + 9)) for i in range(3)]
    expected = [exact_matmul(a, b, 20, 2) for a, b in pairs]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(20) if not torch.equal(exact_matmul(*pairs[i], 20, 2), expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_scratch_is_kept_up_to_a_limit() -> None:
    scratch = Scratch()
    first = scratch.take("a", 10)
    assert scratch.take("a", 5).data_ptr() == first.data_ptr() != scratch.take("b", 5).data_ptr()
    large = scratch.take("a", KEPT + 1)
    assert large.numel() == KEPT + 1 and scratch.take("a", 10).data_ptr() == first.data_ptr()
