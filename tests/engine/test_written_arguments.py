"""What a random operation or a constant writes to: its own result or the ``out=`` tensor, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_support import TinyJob, assert_replays, train
from torch import Tensor, nn

COUNT = 2000
SEEN: list[Tensor] = []


class Calls(nn.Module):
    """Runs ``function`` in its forward pass and keeps what it returned in ``SEEN``."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(6, 3), function

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(self.function())
        y: Tensor = self.layer(x)
        return y + SEEN[-1].to(y.dtype).mean()


def result_of(function: Callable[[], Tensor]) -> Tensor:
    """Train one step, replay it, and return what the function made; both made the same."""
    SEEN.clear()
    job = TinyJob(lambda: Calls(function))
    assert_replays(job, train(job, 1))
    trained, replayed = SEEN
    assert torch.equal(trained, replayed)
    return trained


def bernoulli_out() -> Tensor:
    p, out = torch.full((COUNT,), 0.25), torch.empty(0)
    torch.bernoulli(p, out=out)
    assert bool((p == 0.25).all())  # the probabilities are an input
    return out


def normal_out() -> Tensor:
    mean, out = torch.full((COUNT,), 0.25), torch.empty(COUNT)
    torch.normal(mean, 1.0, out=out)
    assert bool((mean == 0.25).all())
    return out


WITH_OUT: dict[str, tuple[Callable[[], Tensor], float, float]] = {  # name -> (call, expected mean, tolerance)
    "bernoulli": (bernoulli_out, 0.25, 0.05),
    "normal": (normal_out, 0.25, 0.12),
    "rand": (lambda: torch.rand(COUNT, out=torch.empty(0)), 0.5, 0.04),
    "randn": (lambda: torch.randn(COUNT, out=torch.empty(0)), 0.0, 0.12),
    "randint": (lambda: torch.randint(0, 11, (COUNT,), out=torch.empty(0, dtype=torch.int64)), 5.0, 0.4),
    "randperm": (lambda: torch.randperm(COUNT, out=torch.empty(0, dtype=torch.int64)), (COUNT - 1) / 2, 1e-9),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 0.0, 3.0]), COUNT, True, out=torch.empty(0, dtype=torch.int64)),
        1.5,
        0.15,
    ),
}


@pytest.mark.parametrize("name", WITH_OUT)
def test_a_random_operation_writes_to_out(name: str) -> None:
    function, mean, tolerance = WITH_OUT[name]
    made = result_of(function)
    assert made.numel() == COUNT
    assert abs(made.to(torch.float64).mean().item() - mean) <= tolerance


def test_out_is_the_very_tensor_that_was_passed() -> None:
    def call() -> Tensor:
        out = torch.zeros(COUNT)
        assert torch.rand(COUNT, out=out) is out
        return out

    assert bool((result_of(call) > 0).any())


def test_a_coin_without_a_probability_is_fair() -> None:
    """``x.bernoulli_()`` has the default 0.5; it does not read its probabilities from ``x``."""
    assert abs(result_of(lambda: torch.zeros(COUNT).bernoulli_()).mean().item() - 0.5) <= 0.06


@pytest.mark.parametrize("convert", [torch.from_numpy, torch.as_tensor])
def test_a_numpy_table_is_put_on_the_grid_as_a_copy(convert: Callable[[np.ndarray], Tensor]) -> None:
    table = np.array([0.1, 0.2, 1 / 3])
    made = result_of(lambda: convert(table))
    assert made.tolist() == table.astype(np.float32).astype(np.float64).tolist()
    assert table.tolist() == [0.1, 0.2, 1 / 3]
