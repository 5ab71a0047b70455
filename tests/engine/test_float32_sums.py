"""Exact sums and means of float32 tensors: the bits are those of widened tensors."""

from __future__ import annotations

import itertools

import pytest
import torch
from exact_support import logged, same_bits
from torch import Tensor

from vt_core.engine import exact_functions, exact_sums
from vt_core.engine.exact_sums import FLOAT32, FORMS, exact_sum, exact_sum_of_single
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid, _jit_quantise, sums

INF = float("inf")


def tensor(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x * torch.exp2(torch.randint(-30, 30, shape, generator=generator).float())


INPUTS: dict[str, Tensor] = {
    "no dimension": tensor(),
    "line": tensor(1001),
    "rows": tensor(5, 9),
    "columns": tensor(65, 1301),
    "one term": tensor(4, 1, 6),
    "nothing": tensor(3, 0, 2),
    "images": tensor(3, 5, 7, 4),
    "channels_last": tensor(3, 5, 7, 4).contiguous(memory_format=torch.channels_last),
    "not contiguous": tensor(4, 5, 6).permute(2, 0, 1)[::2],
    "expanded": tensor(4, 1, 6).expand(4, 5, 6),
    "many dimensions": tensor(2, 3, 2, 3, 2, 2),
}


def choices(x: Tensor) -> list[list[int]]:
    return [list(d) for count in range(1, x.dim() + 1) for d in itertools.combinations(range(x.dim()), count)]


@pytest.mark.parametrize("name", INPUTS)
def test_the_same_bits_as_widened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = INPUTS[name]
    before = x.clone()
    for reference in (False, True):
        if reference:
            monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
        for dims in [[], *choices(x)]:
            assert same_bits(exact_sum_of_single(x, dims), exact_sum(x.double(), dims)), dims
            for form in FLOAT32:
                given = {"self": x, "dim": dims, "keepdim": True}
                found = FORMS[form]({**given, "dtype": torch.float32})
                assert found is not None and same_bits(found, FORMS[form]({**given, "self": x.double()})), (form, dims)
    assert torch.equal(x, before)


@pytest.mark.parametrize("value", [float("nan"), INF, -INF, 3.4e38, 1e-40, -1e-45, 0.0, -0.0])
def test_unusual_values(value: float) -> None:
    for shape in ((40, 9), (6, 4, 10)):
        for x in (tensor(*shape), torch.full(shape, value)):
            x[0, 1] = value
            for dims in choices(x):
                assert same_bits(exact_sum_of_single(x, dims), exact_sum(x.double(), dims))


def test_nothing_is_widened_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, expected = tensor(300, 200), exact_sum(tensor(300, 200).double(), [0])
    monkeypatch.setattr(Tensor, "double", None)
    assert same_bits(exact_sum_of_single(x, [0]), expected)


def test_long_sums_are_cut_at_the_same_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sums, "MAX_SUM_TERMS", 16)
    x = tensor(6, 50, 3)
    whole = [exact_sum(x.double(), dims) for dims in choices(x)]
    for dims, expected in zip(choices(x), whole, strict=True):
        assert same_bits(exact_sum_of_single(x, dims), expected)
    monkeypatch.undo()
    assert not all(same_bits(exact_sum_of_single(x, dims), e) for dims, e in zip(choices(x), whole, strict=True))


def test_neither_threads_nor_tiles_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(400, 700)
    for y in (x, x.double()):
        add = exact_sum if y is not x else exact_sum_of_single
        expected = [add(y, dims) for dims in ([0], [1])]
        for workers, tile in ((1, 1024), (5, 64), (5, 100)):
            with monkeypatch.context() as changed:
                changed.setattr(_jit_quantise, "worker_count", lambda workers=workers: workers)
                changed.setattr(sums, "TILE", tile)
                assert all(same_bits(add(y, dims), e) for dims, e in zip(([0], [1]), expected, strict=True))


def test_what_only_float64_forms_compute_has_no_log_in_float32_either() -> None:
    assert not {"cumsum", "var"} & exact_functions.FLOAT32, "or another operation must stand here"
    rounding = TrainerRounding(Grid.parse("bfloat16"), DEFAULT["float32"], True)
    mode = VerifiedMode(torch.float32, rounding, Streams(1), ModuleTracker(), False, "logged", "exact")
    mode.begin_step(1, 1)
    rounding.begin_step(1)
    x = tensor(7, 40).bfloat16().float()
    with mode:
        found = x.cumsum(1), x.var(1)
    assert logged(mode) == {}
    for value, wide in zip(found, (x.double().cumsum(1), x.double().var(1)), strict=True):
        assert value.dtype == torch.float32 and torch.allclose(value.double(), wide, rtol=2.0**-8, atol=2.0**-8)
