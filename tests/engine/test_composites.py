"""PyTorch's own attention layers run the common forms too, although they call them by name from inside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_support import Run, TinyJob, assert_replays, floats, train
from torch import Tensor, nn

from vt_core.engine.functions import CommonForms, attention

SEQUENCES = {"x": floats(16, 5, 12)}


class SelfAttention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


LAYERS: dict[str, Callable[[float], nn.Module]] = {
    "MultiheadAttention": SelfAttention,
    "TransformerEncoderLayer": lambda p: nn.TransformerEncoderLayer(12, 2, 16, p, batch_first=True),
}


def trained(layer: str, dropout: float) -> Run:
    job = TinyJob(lambda: LAYERS[layer](dropout), SEQUENCES)
    run = train(job, 2)
    assert_replays(job, run)
    return run


@pytest.mark.parametrize("layer", LAYERS)
def test_attention_without_dropout_is_not_left_to_a_fused_kernel(layer: str) -> None:
    run = trained(layer, 0.0)
    assert run.ran("aten._softmax")
    assert not run.ran("aten._scaled_dot_product")


@pytest.mark.parametrize("layer", LAYERS)
def test_attention_draws_its_dropout_as_every_device_does(layer: str) -> None:
    run = trained(layer, 0.25)
    assert run.ran("aten.native_dropout.default [(4, 2, 5, 5)")  # of the attention weights
    assert not run.ran("aten.bernoulli")  # the sequence that only a CPU takes


def test_the_common_attention_is_pytorchs_attention() -> None:
    q, k, v = (torch.from_numpy(floats(2, 4, n, 8, seed=n)) for n in (5, 7, 7))
    mask = torch.from_numpy(floats(5, 7))
    mask[1, 2] = -torch.inf
    for options in ({}, {"attn_mask": mask}, {"attn_mask": mask > 0}, {"is_causal": True}, {"scale": 0.3}):
        if "attn_mask" in options:
            assert (options["attn_mask"] != -torch.inf).any(-1).all()
        theirs = F.scaled_dot_product_attention(q, k, v, **options)
        torch.testing.assert_close(attention(q, k, v, **options), theirs, equal_nan=True)
    grouped = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    torch.testing.assert_close(attention(q, k[:, :2], v[:, :2], enable_gqa=True), grouped)


def test_the_functions_are_put_back_even_after_an_error() -> None:
    before = (F.dropout, F.scaled_dot_product_attention)
    with pytest.raises(ZeroDivisionError), CommonForms() as forms:
        assert (F.dropout, F.scaled_dot_product_attention) != before
        with forms:
            pass
        assert F.scaled_dot_product_attention is attention  # leaving the inner level changes nothing
        raise ZeroDivisionError
    assert (F.dropout, F.scaled_dot_product_attention) == before


@pytest.mark.parametrize("shape", [(8,), (4, 8)])
@pytest.mark.parametrize("eps", [None, 1e-3])
def test_the_common_rms_norm_is_pytorchs(shape: tuple[int, ...], eps: float | None) -> None:
    x, weight = torch.from_numpy(floats(3, 4, 8, seed=1)), torch.from_numpy(floats(*shape, seed=2))
    for given in (None, weight):
        expected = F.rms_norm(x, shape, given, eps)
        with CommonForms():
            assert torch.allclose(F.rms_norm(x, shape, given, eps), expected, rtol=1e-5)
            assert torch.allclose(torch.rms_norm(x, shape, given, eps), expected, rtol=1e-5)


def test_rms_norm_is_never_a_fused_kernel() -> None:
    job = TinyJob(lambda: nn.Sequential(nn.Linear(12, 6), nn.RMSNorm(6)), SEQUENCES)
    run = train(job, 2)
    assert_replays(job, run)
    assert run.ran("aten.rsqrt") and not run.ran("aten._fused_rms_norm")
