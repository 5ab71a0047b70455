"""Recurrent layers by their definition: a loop of products and elementwise operations, the same on every device.

PyTorch runs LSTM and GRU as one fused kernel on CUDA, through oneDNN for float32 on a CPU, and step by step
otherwise. The equations are those of the documentation of ``torch.nn.LSTM`` and ``torch.nn.GRU``. Packed sequences
are left to PyTorch, and refused where that means a fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vt_core.errors import UnsupportedOperation

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State, Sequence[Tensor | None]], State]


def _lstm_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    h, c = state
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None and w_hh is not None
    gates = F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh)  # (B, 4 H): input, forget, cell, output
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    (h,) = state
    w_ih, w_hh, b_ih, b_hh = weights
    assert w_ih is not None and w_hh is not None
    from_x, from_h = F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)  # (B, 3 H): reset, update, new
    (r_x, z_x, n_x), (r_h, z_h, n_h) = from_x.chunk(3, 1), from_h.chunk(3, 1)
    z = torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return (n + z * (h - n),)


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:
    """``torch.lstm_cell``: input (B, I), hx two of (B, H); returns the new hidden and cell state."""
    return _lstm_step(input, tuple(hx), (w_ih, w_hh, b_ih, b_hh))


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """``torch.gru_cell``: input (B, I), hx (B, H); returns the new hidden state."""
    return _gru_step(input, (hx,), (w_ih, w_hh, b_ih, b_hh))[0]


def lstm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.lstm``: returns the outputs and the last hidden and cell states."""
    if isinstance(args[3], (list, tuple)):  # (data, batch_sizes, hx, parameters, ...): a packed sequence
        with torch._C.DisableTorchFunction():
            result: tuple[Tensor, Tensor, Tensor] = torch.lstm(*args)
        return result
    output, (h, c) = _layers(_lstm_step, *args)
    return output, h, c


def gru(*args: Any) -> tuple[Tensor, Tensor]:
    """``torch.gru``: returns the outputs and the last hidden states."""
    if isinstance(args[3], (list, tuple)):
        with torch._C.DisableTorchFunction():
            packed: tuple[Tensor, Tensor] = torch.gru(*args)
        return packed
    input, hx, *rest = args
    output, (h,) = _layers(_gru_step, input, (hx,), *rest)
    return output, h


def _layers(
    step: Cell,
    input: Tensor,
    hx: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, State]:
    """Run all layers; input (T, B, I), or (B, T, I) with ``batch_first``; each of hx (layers * directions, B, H)."""
    directions = 2 if bidirectional else 1
    width = len(parameters) // (num_layers * directions)
    if width != (4 if has_biases else 2):
        raise UnsupportedOperation(
            "torch.lstm", "nn.LSTM", "proj_size has no common form", "Add a linear layer behind the LSTM."
        )
    x = input.transpose(0, 1) if batch_first else input
    last: list[State] = []
    for layer in range(num_layers):
        sides = []
        for side in range(directions):
            k = layer * directions + side
            weights = [*parameters[k * width : (k + 1) * width], *([] if has_biases else [None, None])]
            state = tuple(part[k] for part in hx)
            outputs: list[Tensor] = []
            for t in range(x.shape[0]) if side == 0 else reversed(range(x.shape[0])):
                state = step(x[t], state, weights)
                outputs.append(state[0])
            sides.append(torch.stack(outputs if side == 0 else outputs[::-1]))
            last.append(state)
        x = sides[0] if directions == 1 else torch.cat(sides, -1)
        if dropout > 0 and train and layer + 1 < num_layers:
            x = F.dropout(x, dropout)
    return x.transpose(0, 1) if batch_first else x, tuple(torch.stack(part) for part in zip(*last, strict=True))
