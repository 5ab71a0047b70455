"""Recurrent layers in their common form compute what PyTorch's own compute, without a fused kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_support import TinyJob, assert_replays, floats, mean_square, train
from torch import Tensor, nn

from vt_core.engine.functions import CommonForms

LAYERS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (nn.LSTM, {"bias": False}),
    (nn.GRU, {}),
    (nn.GRU, {"num_layers": 3, "bidirectional": True, "batch_first": True}),
    (nn.GRU, {"bias": False, "dropout": 0.5, "num_layers": 2}),
    (nn.RNN, {"num_layers": 2}),
]


def flat(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for item in result for t in flat(item)]


@pytest.mark.parametrize(("kind", "settings"), LAYERS)
def test_a_layer_and_its_gradients_are_those_of_pytorch(kind: type[nn.RNNBase], settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, **settings).double().eval()
    found = []
    for x in (torch.from_numpy(floats(5, 2, 3)), torch.from_numpy(floats(5, 3))):  # with and without a batch
        x.requires_grad_()
        for mode in (None, CommonForms()):
            layer.zero_grad()
            if mode is None:
                outputs = flat(layer(x))
            else:
                with mode:
                    outputs = flat(layer(x))
            gradient = torch.autograd.grad(sum((o * o).sum() for o in outputs), [x, *layer.parameters()])
            found.append([*outputs, *gradient])
    for plain, common in ((found[0], found[1]), (found[2], found[3])):
        for a, b in zip(plain, common, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_that_of_pytorch(kind: type[nn.RNNCellBase], bias: bool) -> None:
    cell = kind(3, 4, bias=bias).double()
    x = torch.from_numpy(floats(5, 3))
    plain = flat(cell(x))
    with CommonForms():
        common = flat(cell(x))
    for a, b in zip(plain, common, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


class Last(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.cells = kind(3, 4, batch_first=True, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0][:, -1]


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_no_fused_kernel_runs(kind: type[nn.RNNBase], low: bool) -> None:
    """In float32 PyTorch would use oneDNN for an LSTM; dropout between layers comes from the run's streams."""
    settings = {"compute_dtype": "float32", "grid": "bfloat16"} if low else {}
    job = TinyJob(lambda: Last(kind, num_layers=2, dropout=0.5), {"x": floats(16, 5, 3)}, mean_square, train=settings)
    run = train(job)
    assert not run.ran("aten.mkldnn") and not run.ran("aten._thnn_fused")
    if kind is not nn.RNN:
        assert run.ran("aten.native_dropout")
    assert_replays(job, run)
