"""Reductions in another order: how another machine might have summed, without having that machine.

The elements along the reduced dimensions of an operation's inputs are permuted, and what is left of the permutation in
the outputs is undone. In exact arithmetic nothing changes; in floating point another order of summation gives another
rounding error, as another blocking or vector width does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Arguments = dict[str, Any]
Order = Callable[[int], Tensor]  # length -> a permutation (int64) on the operation's device
Undo = Mapping[int, Sequence[tuple[int, Tensor]]]  # output -> (dimension, permutation to undo) in turn
Permuted = tuple[Arguments, Undo]


def permuted_outputs(
    name: str, func: Callable[..., Any], arguments: Arguments, generator: np.random.Generator
) -> list[Any] | None:
    """Run operation ``name`` with its reduction permuted; None where that changes nothing or is not known.

    ``arguments`` are those of the ATen schema, by name. Returns the outputs in the order of the operation's own.
    Nothing is written to the arguments.
    """
    form = _FORMS.get(name)
    if form is None:
        return None
    device = next((v.device for v in arguments.values() if isinstance(v, Tensor)), torch.device("cpu"))

    def order(length: int) -> Tensor:
        return torch.from_numpy(generator.permutation(length)).to(device)

    made = form(arguments, order)
    if made is None:
        return None
    changed, undo = made
    result = func(**changed)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    for i, steps in undo.items():
        if i < len(outputs) and isinstance(outputs[i], Tensor):
            for dim, permutation in steps:
                outputs[i] = outputs[i].index_select(dim, torch.argsort(permutation))
    return outputs


def _product(left: str, right: str) -> Callable[[Arguments, Order], Permuted | None]:
    def form(a: Arguments, order: Order) -> Permuted | None:
        x, y = a[left], a[right]
        if x.shape[-1] < 2:
            return None
        p = order(x.shape[-1])
        return {**a, left: x.index_select(-1, p), right: y.index_select(-2 if y.dim() > 1 else 0, p)}, {}

    return form


def _convolution(a: Arguments, order: Order) -> Permuted | None:
    """Permute the input channels of each group."""
    x, weight, groups = a["input"], a["weight"], a["groups"]
    if a["transposed"] or weight.shape[1] < 2:
        return None
    p = order(weight.shape[1])
    return {**a, "input": x.index_select(1, _in_groups(p, groups)), "weight": weight.index_select(1, p)}, {}


def _convolution_backward(a: Arguments, order: Order) -> Permuted | None:
    """Permute the samples, and the output channels where there is one group."""
    grad, x, weight = a["grad_output"], a["input"], a["weight"]
    samples = order(x.shape[0])
    grad, x = grad.index_select(0, samples), x.index_select(0, samples)
    undo: dict[int, list[tuple[int, Tensor]]] = {0: [(0, samples)]}
    if a["groups"] == 1:
        channels, dim = order(grad.shape[1]), 1 if a["transposed"] else 0
        grad, weight = grad.index_select(1, channels), weight.index_select(dim, channels)
        undo |= {1: [(dim, channels)], 2: [(0, channels)]}
    return {**a, "grad_output": grad, "input": x, "weight": weight}, undo


def _in_groups(p: Tensor, groups: int) -> Tensor:
    first = torch.arange(groups, device=p.device)[:, None] * p.numel()
    return (first + p[None]).reshape(-1)


def _reduction(a: Arguments, order: Order) -> Permuted | None:
    x = a["self"]
    if not x.is_floating_point() or x.numel() < 2:
        return None
    dims = a.get("dim")
    if dims is None or (not isinstance(dims, int) and not len(dims)):
        return {**a, "self": x.reshape(-1).index_select(0, order(x.numel())).reshape(x.shape)}, {}
    for dim in [dims] if isinstance(dims, int) else dims:
        x = x.index_select(dim, order(x.shape[dim])) if x.dim() else x
    return {**a, "self": x}, {}


def _along(*names: str) -> Callable[[Arguments, Order], Permuted | None]:
    """For softmax and its kin: the tensors ``names`` and the output have the same layout."""

    def form(a: Arguments, order: Order) -> Permuted | None:
        dim, shape = a["dim"], a[names[0]].shape
        if not shape or shape[dim] < 2:
            return None
        p = order(shape[dim])
        return {**a, **{n: a[n].index_select(dim, p) for n in names}}, {0: [(dim, p)]}

    return form


def _layer_norm(a: Arguments, order: Order) -> Permuted | None:
    if len(a["normalized_shape"]) != 1 or a["input"].shape[-1] < 2:
        return None
    p = order(a["input"].shape[-1])
    changed = {n: _select(a.get(n), -1, p) for n in ("input", "weight", "bias")}
    return {**a, **changed}, {0: [(-1, p)]}


def _layer_norm_backward(a: Arguments, order: Order) -> Permuted | None:
    """Permute the features (the reduction of the input's gradient) and the rows (that of the weight's)."""
    x = a["input"]
    if len(a["normalized_shape"]) != 1 or x.dim() < 2:
        return None
    p, rows = order(x.shape[-1]), order(x.shape[0])
    changed = {n: a[n].index_select(-1, p).index_select(0, rows) for n in ("grad_out", "input")}
    changed |= {n: _select(a.get(n), 0, rows) for n in ("mean", "rstd")}
    changed |= {n: _select(a.get(n), -1, p) for n in ("weight", "bias")}
    return {**a, **changed}, {0: [(-1, p), (0, rows)], 1: [(-1, p)], 2: [(-1, p)]}


def _batch_norm(a: Arguments, order: Order) -> Permuted | None:
    samples = order(a["input"].shape[0])
    running = {n: a[n].clone() for n in ("running_mean", "running_var") if isinstance(a.get(n), Tensor)}
    return {**a, **running, "input": a["input"].index_select(0, samples)}, {0: [(0, samples)]}


def _batch_norm_backward(a: Arguments, order: Order) -> Permuted | None:
    samples = order(a["input"].shape[0])
    return {**a, **{n: a[n].index_select(0, samples) for n in ("grad_out", "input")}}, {0: [(0, samples)]}


def _embedding_backward(a: Arguments, order: Order) -> Permuted | None:
    grad = a["grad_output"].reshape(-1, a["grad_output"].shape[-1])
    p = order(grad.shape[0])
    return {**a, "grad_output": grad.index_select(0, p), "indices": a["indices"].reshape(-1).index_select(0, p)}, {}


def _loss(a: Arguments, order: Order) -> Permuted | None:
    """A loss over samples, unless it is not reduced at all."""
    x = a["self"]
    if a.get("reduction", 1) == 0 or x.dim() == 0:
        return None
    p = order(x.shape[0])
    return {**a, "self": x.index_select(0, p), "target": a["target"].index_select(0, p)}, {}


def _select(x: Tensor | None, dim: int, p: Tensor) -> Tensor | None:
    return None if x is None else x.index_select(dim, p)


_FORMS: dict[str, Callable[[Arguments, Order], Permuted | None]] = {
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "mv": _product("self", "vec"),
    "addmv": _product("mat", "vec"),
    "dot": _product("self", "tensor"),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "sum": _reduction,
    "mean": _reduction,
    "var": _reduction,
    "std": _reduction,
    "var_mean": _reduction,
    "logsumexp": _reduction,
    "linalg_vector_norm": _reduction,
    "_softmax": _along("self"),
    "_log_softmax": _along("self"),
    "_softmax_backward_data": _along("grad_output", "output"),
    "_log_softmax_backward_data": _along("grad_output", "output"),
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "embedding_dense_backward": _embedding_backward,
    "nll_loss_forward": _loss,
    "mse_loss": _loss,
}
