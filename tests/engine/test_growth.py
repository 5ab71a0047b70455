"""The tolerance grows with the length of a sum, by a rule that both sides compute alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_support import TinyJob, train
from torch import Tensor, nn

from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.scale import Bound, growth, growths
from vt_core.numerics import DEFAULT, OpClass, Tolerance

CONV = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}


def zeros(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta", dtype=torch.float64)


def test_a_power_of_two_for_each_doubling_within_limits() -> None:
    assert [growth(n) for n in (1, 2048, 2049, 4096, 4097, 32768)] == [0, 0, 1, 1, 2, 4]
    assert [growth(n, -3) for n in (1, 256, 257, 512, 1024, 2048)] == [-3, -3, -2, -2, -1, 0]
    assert growth(1 << 40) == 6 and growth(0) == 0


CALLS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "mm": ("mm", {"self": zeros(3, 8192), "mat2": zeros(8192, 5)}, (2,)),
    "mm, transposed": ("mm", {"self": zeros(256, 70000).t(), "mat2": zeros(256, 5)}, (-3,)),
    "bmm": ("bmm", {"self": zeros(4, 64, 600), "mat2": zeros(4, 600, 2)}, (-1,)),
    "addmm": ("addmm", {"self": zeros(5), "mat1": zeros(3, 768), "mat2": zeros(768, 5)}, (-1,)),
    "addbmm": ("addbmm", {"batch1": zeros(64, 5, 512), "batch2": zeros(64, 512, 5)}, (4,)),
    "mv": ("mv", {"self": zeros(3, 4096), "vec": zeros(4096)}, (1,)),
    "dot": ("dot", {"self": zeros(1 << 20), "tensor": zeros(1 << 20)}, (6,)),
    "3x3 over 512 channels": (
        "convolution", {"input": zeros(2, 512, 8, 8), "weight": zeros(64, 512, 3, 3), "transposed": False, **CONV},
        (2,),
    ),
    "transposed convolution": (
        "convolution", {"input": zeros(2, 512, 8, 8), "weight": zeros(512, 64, 3, 3), "transposed": True, **CONV},
        (2,),
    ),
    "gradients of the first layer of a ResNet": (
        "convolution_backward",
        {"grad_output": zeros(32, 64, 32, 32), "input": zeros(32, 3, 32, 32), "weight": zeros(64, 3, 3, 3),
         "transposed": False, **CONV},
        (-1, 4, 4),
    ),
    "batch norm": ("native_batch_norm", {"input": zeros(32, 64, 32, 32)}, (4, 4, 4)),
    "softmax": ("_softmax", {"self": zeros(2, 50257)}, (0,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_length_of_a_sum(name: str) -> None:
    operation, arguments, expected = CALLS[name]
    assert growths(operation, arguments, len(expected)) == expected


def test_a_policy_moves_both_exponents_and_stays_in_range() -> None:
    policy = DEFAULT["float64"]
    assert policy.at(OpClass.CONTRACTION, 0) is policy[OpClass.CONTRACTION]
    assert policy.at(OpClass.CONTRACTION, 4) == Tolerance(None, -40, 5)
    assert policy.at(OpClass.CONTRACTION, 4) is policy.at(OpClass.CONTRACTION, 4)
    assert policy.at(OpClass.TRANSCENDENTAL, -3) == Tolerance(-51, -53, 5)
    assert DEFAULT["float32"].at(OpClass.CONTRACTION, 6).atol_exp == -12


def test_the_engine_rounds_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Bound]] = []
    plain = TrainerRounding.inexact

    def spy(self: TrainerRounding, x: Tensor, op_class: Any, bound: Bound, place: Any) -> None:
        seen.append((place()[0], bound))
        plain(self, x, op_class, bound, place)

    monkeypatch.setattr(TrainerRounding, "inexact", spy)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3000, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out

    arrays = {"x": torch.randn(16, 3000, generator=torch.Generator().manual_seed(1)).numpy()}
    train(TinyJob(Model, arrays, lambda m, b: m(b["x"]).square().sum()), 1)
    found = {op: bound.growth for op, bound in seen if op.startswith(("aten.addmm", "aten.mm"))}
    assert found == {"aten.addmm.default": 1, "aten.mm.default": -3}
