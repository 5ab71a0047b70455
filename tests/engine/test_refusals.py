"""What has no common form on all devices is refused, with operation, module and what to do instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_support import TinyJob, assert_replays, floats, train, whole
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vt_core.errors import PrecisionError, SpecError, UnsupportedOperation


class Inner(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def job(function: Callable[[Tensor], Tensor]) -> TinyJob:
    return TinyJob(lambda: nn.Sequential(nn.Linear(6, 4), nn.Sequential(Inner(function)), nn.Linear(4, 2)))


@torch.library.custom_op("vt_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


def random_with_generator(x: Tensor) -> Tensor:
    return x + torch.rand(x.shape, generator=torch.Generator())


def with_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t() @ x


@pytest.mark.parametrize(
    ("function", "operation", "remedy"),
    [
        (lambda x: x + double(x.detach()), "vt_tests.double", "PyTorch's own operations"),
        (lambda x: torch._foreach_exp([x])[0], "aten._foreach_exp", "foreach=False"),
        (lambda x: torch.linalg.qr(x)[0], "aten.linalg_qr", "initialisation"),
        (lambda x: torch.linalg.svd(x)[1].sum() * x, "aten._linalg_svd", "initialisation"),
        (random_with_generator, "aten.rand", "generator="),
        (lambda x: x + torch.poisson(x.detach().abs()), "aten.poisson", "torch.rand"),
        (lambda x: F.rrelu(x, training=True), "aten.rrelu_with_noise", "torch.rand"),
        (lambda x: torch.fft.fft(x).abs(), "aten._fft_r2c", "convolution"),
        (lambda x: x * torch._fused_rms_norm(x, [4], None, None)[0] @ torch.linalg.eigh(x.t() @ x)[1],
         "aten._linalg_eigh", "initialisation"),
    ],
)  # fmt: skip
def test_an_operation_without_a_common_form(function: Callable[[Tensor], Tensor], operation: str, remedy: str) -> None:
    with pytest.raises(UnsupportedOperation) as caught:
        train(job(function), 1)
    assert caught.value.op.startswith(operation)
    assert caught.value.module == "1.0"
    assert remedy in str(caught.value)


def test_a_random_initialisation_by_factors_is_refused() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(6, 4)
        nn.init.orthogonal_(layer.weight)
        return layer

    with pytest.raises(UnsupportedOperation, match=r"linalg_qr.*'init'.*orthogonal_"):
        train(TinyJob(build), 0)


def test_autocast_inside_the_model() -> None:
    """It leaves float64 alone; float32 it would lower."""
    assert train(job(with_autocast), 2).roots == train(job(lambda x: x @ x.t() @ x), 2).roots
    low = job(with_autocast)
    low.train = {"compute_dtype": "float32", "grid": "bfloat16"}
    with pytest.raises(PrecisionError, match=r"in module '1\.0' made a torch\.bfloat16 tensor"):
        train(low, 1)


class Recomputed(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 5), nn.Dropout(p), nn.Tanh())
        self.again = True

    def forward(self, x: Tensor) -> Tensor:
        if self.again:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)


def test_recomputed_regions_replay_and_must_not_draw() -> None:
    """The second run of a checkpointed region gets the common forms too, but other random numbers."""
    recomputed = TinyJob(lambda: Recomputed(0.0))
    run = train(recomputed)
    assert_replays(recomputed, run)

    def build() -> nn.Module:
        model = Recomputed(0.0)
        model.again = False
        return model

    assert run.roots == train(TinyJob(build)).roots
    with pytest.raises(UnsupportedOperation, match=r"native_dropout.*backward pass.*torch\.utils\.checkpoint"):
        train(TinyJob(lambda: Recomputed(0.5)), 1)


def test_autocast_around_the_step() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UnsupportedOperation, match=r"autocast.*Remove"):
        train(job(torch.tanh), 1)


def test_a_compiled_model() -> None:
    with pytest.raises(UnsupportedOperation, match=r"torch\.compile.*without torch\.compile"):
        train(TinyJob(lambda: torch.compile(nn.Linear(6, 2))), 0)


def test_a_compiled_function_runs_as_it_is_written() -> None:
    compiled = job(torch.compile(lambda x: torch.tanh(x) * 0.3))
    run = train(compiled)
    assert run.roots == train(job(lambda x: torch.tanh(x) * 0.3)).roots
    assert_replays(compiled, run)


def test_a_scripted_model() -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(UnsupportedOperation, match=r"torch\.jit"):
        train(TinyJob(lambda: torch.jit.script(nn.Linear(6, 2))), 0)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_need_another_loop(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(SpecError, match=f"{kind.__name__} is not supported"):
        train(TinyJob(lambda: nn.Linear(6, 2), optimizer=lambda m: kind(m.parameters())), 0)


def test_sparse_gradients() -> None:
    sparse = TinyJob(lambda: nn.Embedding(7, 4, sparse=True), {"x": whole(7, 16, 3)})
    with pytest.raises(UnsupportedOperation, match="sparse=False"):
        train(sparse, 1)


def test_a_random_tensor_outside_the_state() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(6, 2)
        layer.noise = torch.randn(2)
        return layer

    with pytest.raises(SpecError, match=r"'noise'.*register_buffer"):
        train(TinyJob(build), 0)


def test_forcing_single_tensor_optimizers_changes_what_was_asked_for() -> None:
    def fused(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), foreach=True)

    asked = TinyJob(lambda: nn.Linear(6, 2), optimizer=fused)
    run = train(asked)
    assert not run.ran("aten._foreach") and run.ran("vt.adam_.default")
    assert_replays(asked, run)


def test_a_projected_lstm() -> None:
    projected = TinyJob(lambda: nn.LSTM(6, 4, proj_size=2), objective=lambda m, b: m(b["x"])[0].sum())
    with pytest.raises(UnsupportedOperation, match=r"proj_size.*linear layer"):
        train(projected, 1)


def test_packed_sequences_that_mean_a_fused_kernel() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            lengths = torch.full((len(x),), x.shape[1], device="cpu")
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.cells(packed)[1][0][0]

    recurrent = TinyJob(Packed, {"x": floats(16, 5, 3)})
    try:
        run = train(recurrent)
    except UnsupportedOperation as refusal:
        assert "padded" in str(refusal) and refusal.module == "cells"
        return
    assert_replays(recurrent, run)
