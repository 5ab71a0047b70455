"""``functions: exact`` for sums by index: embeddings' gradients, ``index_add``, ``scatter_add``, ``index_put``.

The terms that meet in one element have an exact sum, each rounded to ``51 - ceil(log2 n)`` bits below the largest of
the n (``numerics.scatter``); what is there already is added last, with one rounding. So no order and no atomic
addition changes a bit.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.forms import Form
from vt_core.numerics.scatter import add_elements_, add_rows_, rows_compiled


def _exactly(*tensors: Any) -> bool:
    """Tell whether these are dense float64 tensors."""
    return all(isinstance(t, Tensor) and t.dtype == torch.float64 and t.layout == torch.strided for t in tensors)


def _is_index(index: Tensor) -> bool:
    return index.dtype in (torch.int64, torch.int32)


def embedding_dense_backward(arguments: dict[str, Any]) -> Tensor | None:
    """Return the gradient of an embedding's weight; only the rows that occur are touched."""
    grad: Tensor = arguments["grad_output"]
    indices, size = arguments["indices"], arguments["num_weights"]
    by_frequency = arguments.get("scale_grad_by_freq", False)
    if grad.dtype == torch.float32 and (by_frequency or grad.dim() < 1 or not rows_compiled(grad)):
        grad = grad.double()
    if not (grad.dtype == torch.float32 or _exactly(grad)) or not _is_index(indices):
        return None
    if grad.shape[:-1] != indices.shape or grad.dim() < 1:
        return None
    index, terms = indices.reshape(-1).long(), grad.reshape(-1, grad.shape[-1])
    result = grad.new_zeros(size, grad.shape[-1])
    if not add_rows_(result, index, terms):
        return None
    if arguments.get("padding_idx", -1) >= 0:
        result[arguments["padding_idx"]] = 0.0
    if by_frequency:
        result = result / torch.bincount(index, minlength=size).clamp(min=1).double()[:, None]
    return result


def index_add(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``index_add``: ``self`` plus the exact sums of ``alpha * source``."""
    x: Tensor = arguments["self"]
    index, source = arguments["index"], arguments["source"]
    if not _exactly(x, source) or not _is_index(index) or index.dim() > 1 or x.dim() != source.dim():
        return None
    alpha = arguments.get("alpha", 1)
    if alpha != 1:
        source = source * alpha
    if x.dim() == 0:
        result = x.reshape(1, 1).clone()
        done = index.numel() == 1 and add_rows_(result, index.reshape(1).long(), source.reshape(1, 1))
        return result.reshape(()) if done else None
    dim = arguments["dim"]
    if not -x.dim() <= dim < x.dim():
        return None
    dim %= x.dim()
    if source.shape != (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]):
        return None
    return _add_slices(x, dim, index.reshape(-1).long(), source)


def _add_slices(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor | None:
    """Return ``x`` plus the slices of ``source`` along ``dim``; None for an index outside."""
    first = x.movedim(dim, 0)
    result = first.clone(memory_format=torch.contiguous_format)
    columns = prod(first.shape[1:])
    terms = source.movedim(dim, 0).reshape(len(index), columns)
    if not add_rows_(result.view(x.shape[dim], columns), index, terms):
        return None
    return result.movedim(0, dim)


def scatter_add(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``scatter_add``: ``self`` plus the exact sums of the elements of ``src`` that meet."""
    x: Tensor = arguments["self"]
    dim, index, source = (arguments[name] for name in ("dim", "index", "src"))
    if not _exactly(x, source) or not _is_index(index):
        return None
    if index.numel() == 0:
        return x.clone(memory_format=torch.contiguous_format)
    if x.dim() == 0 or not x.dim() == index.dim() == source.dim() or not -x.dim() <= dim < x.dim():
        return None
    dim %= x.dim()
    sizes = list(zip(index.shape, source.shape, x.shape, strict=True))
    if any(i > s or (i > n and d != dim) for d, (i, s, n) in enumerate(sizes)):
        return None
    terms, index = source[tuple(map(slice, index.shape))], index.long()
    others = [d for d in range(x.dim()) if d != dim]
    if all(index.stride(d) == 0 and index.shape[d] == x.shape[d] for d in others):  # one row for all columns
        row = index[tuple(slice(None) if d == dim else 0 for d in range(x.dim()))]
        return _add_slices(x, dim, row, terms)
    result = x.clone(memory_format=torch.contiguous_format)
    if all(index.shape[d] == x.shape[d] for d in others):
        inner = prod(x.shape[dim + 1 :])
        shape = (-1, index.shape[dim], inner)
        done = add_elements_(result.view(-1, x.shape[dim], inner), index.reshape(shape), terms.reshape(shape))
        return result if done else None
    if int(index.min()) < 0 or int(index.max()) >= x.shape[dim]:
        return None
    flat = index * result.stride(dim)
    for d in others:
        places = torch.arange(index.shape[d], device=x.device) * result.stride(d)
        flat += places.view([-1 if d == e else 1 for e in range(x.dim())])
    return result if add_rows_(result.view(-1, 1), flat.reshape(-1), terms.reshape(-1, 1)) else None


def scatter(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``scatter`` with ``reduce="add"``."""
    if arguments.get("reduce") != "add" or not _exactly(arguments["self"]):
        return None
    if "src" in arguments:
        return scatter_add(arguments)
    value = arguments["self"].new_full((), arguments["value"]).expand(arguments["index"].shape)
    return scatter_add({**arguments, "src": value})


def scatter_reduce(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``scatter_reduce`` with "sum" or "mean"; of the others "amax" and "amin" are exact as they are."""
    x, index, how = arguments["self"], arguments["index"], arguments["reduce"]
    if how in ("amax", "amin"):
        return torch.ops.aten.scatter_reduce.two(**arguments)  # type: ignore[no-any-return]
    if how not in ("sum", "mean") or not _exactly(x):
        return None
    total, included = scatter_add(arguments), arguments.get("include_self", True)
    if total is not None and not included:
        total = scatter_add({**arguments, "self": x.scatter(arguments["dim"], index, 0.0)})
    if total is None or how == "sum":
        return total
    ones = torch.ones_like(index, dtype=torch.float64)
    counts = torch.full_like(x, float(included)).scatter_add(arguments["dim"], index, ones)
    return total / counts.clamp(min=1.0)


def index_put(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``index_put`` with ``accumulate=True``: ``self`` plus the exact sums of the values that meet."""
    x, indices, values = arguments["self"], list(arguments["indices"]), arguments["values"]
    if not _exactly(x, values) or not arguments.get("accumulate", False) or not indices or x.dim() == 0:
        return None
    used = sum(1 if i is None or i.dtype not in (torch.bool, torch.uint8) else i.dim() for i in indices)
    if used > x.dim() or all(i is None for i in indices):
        return None
    if any(i is None for i in indices):
        used = x.dim()  # where the result has which dimension is PyTorch's business
    leading, rest = x.shape[:used], x.shape[used:]
    numbers = torch.arange(prod(leading), device=x.device).view(leading)
    try:
        index = torch.ops.aten.index.Tensor(numbers, indices)
        terms = values.expand(*index.shape, *rest)
    except (RuntimeError, IndexError):
        return None
    result = x.clone(memory_format=torch.contiguous_format)
    columns = prod(rest)
    done = add_rows_(result.view(prod(leading), columns), index.reshape(-1), terms.reshape(index.numel(), columns))
    return result if done else None


def put(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``put`` with ``accumulate=True``: places are counted through all of ``self``."""
    x: Tensor = arguments["self"]
    index, source = arguments["index"], arguments["source"]
    if not _exactly(x, source) or not arguments.get("accumulate", False) or not _is_index(index):
        return None
    if index.numel() != source.numel():
        return None
    flat = index.reshape(-1).long()
    result = x.clone(memory_format=torch.contiguous_format)
    places = torch.where(flat < 0, flat + x.numel(), flat)
    return result if add_rows_(result.view(-1, 1), places, source.reshape(-1, 1)) else None


def bincount(arguments: dict[str, Any]) -> Tensor | None:
    """Return ``bincount`` with weights."""
    x, weights, least = arguments["self"], arguments["weights"], arguments.get("minlength", 0)
    if not _exactly(weights) or not _is_index(x) or x.dim() != 1 or weights.shape != x.shape or least < 0:
        return None
    result = weights.new_zeros(max(least, int(x.max()) + 1) if x.numel() else least)
    return result if add_rows_(result.view(-1, 1), x.long(), weights.reshape(-1, 1)) else None


FORMS: dict[str, Form] = {
    "_index_put_impl": index_put,
    "_unsafe_index_put": index_put,
    "bincount": bincount,
    "embedding_dense_backward": embedding_dense_backward,
    "index_add": index_add,
    "index_put": index_put,
    "put": put,
    "scatter": scatter,
    "scatter_add": scatter_add,
    "scatter_reduce": scatter_reduce,
}
FLOAT32 = frozenset({"embedding_dense_backward"})
