"""Composite functions that PyTorch decomposes differently on each device get one common form here.

``dropout`` is ``bernoulli_`` and ``div_`` on a CPU and ``native_dropout`` on CUDA; attention has fused kernels that
differ by device, shape and version; recurrent layers are fused kernels or loops, and RMS norm is fused on some devices;
pooling to one pixel takes a step more in channels_last; gradient clipping uses multi-tensor kernels unless told
otherwise. A ``TorchFunctionMode`` replaces them before they reach autograd, so that every device runs the same sequence
of ATen operations. No model is edited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vt_core.engine import recurrent


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p): ``native_dropout``."""
    if not training or p == 0.0:
        return input
    result = torch.native_dropout(input, p, True)[0]
    return input.copy_(result) if inplace else result


def dropout_(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """In-place form of :func:`dropout`."""
    return dropout(input, p, training, inplace=True)


def torch_dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """``torch.dropout``: :func:`dropout` with its own argument names."""
    return dropout(input, p, train)


def torch_dropout_(input: Tensor, p: float, train: bool) -> Tensor:
    """``torch.dropout_``: in place."""
    return dropout(input, p, train, inplace=True)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention by its definition: softmax(q k^T * scale + mask) v.

    Shapes: query (..., L, E), key (..., S, E), value (..., S, Ev); returns (..., L, Ev). Same semantics as
    ``torch.nn.functional.scaled_dot_product_attention``.
    """
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if is_causal:
        keep = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        else:
            scores = scores + attn_mask
    weights = dropout(torch.softmax(scores, dim=-1), dropout_p)
    return weights @ value


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """``F.adaptive_avg_pool2d``: to a single pixel it is a mean, without the step that only channels_last takes."""
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    size = [given if one is None else one for one, given in zip(wanted, input.shape[-2:], strict=True)]
    if size == [1, 1]:
        return input.mean((-2, -1), keepdim=True)
    result: Tensor = torch._C._nn.adaptive_avg_pool2d(input, size)
    return result


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``F.rms_norm`` by its definition; some devices have a fused kernel for it."""
    dims = tuple(range(-len(normalized_shape), 0))
    if not dims or tuple(input.shape[-len(dims) :]) != tuple(normalized_shape):
        raise RuntimeError(f"rms_norm over {tuple(normalized_shape)} does not fit an input of {tuple(input.shape)}")
    mean_square = input.pow(2).mean(dims, keepdim=True)
    scaled = input * torch.rsqrt(mean_square + (torch.finfo(input.dtype).eps if eps is None else eps))
    return scaled if weight is None else scaled * weight


def foreach_norm(tensors: Sequence[Tensor], ord: float = 2.0, dtype: torch.dtype | None = None) -> list[Tensor]:
    """``torch._foreach_norm``, which gradient clipping calls: one norm after the other."""
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]


def _each(name: str) -> Callable[[Sequence[Tensor], Any], list[Tensor]]:
    """Return the multi-tensor in-place operation ``name`` as single operations with one common argument."""

    def run(tensors: Sequence[Tensor], argument: Any) -> list[Tensor]:
        if isinstance(argument, (list, tuple)):
            return [getattr(t, name)(a) for t, a in zip(tensors, argument, strict=True)]
        return [getattr(t, name)(argument) for t in tensors]

    return run


_REPLACED: dict[Any, Callable[..., Any]] = {
    F.dropout: dropout,
    torch.dropout: torch_dropout,
    torch.dropout_: torch_dropout_,
    F.scaled_dot_product_attention: attention,
    F.adaptive_avg_pool2d: adaptive_avg_pool2d,
    F.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    torch.lstm: recurrent.lstm,
    torch.gru: recurrent.gru,
    torch.lstm_cell: recurrent.lstm_cell,
    torch.gru_cell: recurrent.gru_cell,
    # What torch.nn.utils.clip_grad_norm_ and clip_grad_value_ call; other multi-tensor kernels are refused.
    torch._foreach_norm: foreach_norm,
    torch._foreach_mul_: _each("mul_"),
    torch._foreach_clamp_min_: _each("clamp_min_"),
    torch._foreach_clamp_max_: _each("clamp_max_"),
}


# PyTorch turns the mode off inside these, and with it everything that hooks and recomputed regions call.
_BACKWARD = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


# What ``F.multi_head_attention_forward`` calls by name. PyTorch turns the mode off inside such a function, so the
# names themselves are replaced while the mode is on.
_BY_NAME: dict[str, Callable[..., Tensor]] = {"dropout": dropout, "scaled_dot_product_attention": attention}


class CommonForms(TorchFunctionMode):
    """Replace the functions above wherever a model calls them, also inside ``nn.MultiheadAttention``."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._before: dict[str, Any] = {}

    def __enter__(self) -> CommonForms:
        """Start replacing."""
        if self._depth == 0:
            self._before = {name: getattr(F, name) for name in _BY_NAME}
            for name, common in _BY_NAME.items():
                setattr(F, name, common)
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back what was there before."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._depth -= 1
        if self._depth == 0:
            for name, original in self._before.items():
                setattr(F, name, original)

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the common form of ``func`` if it has one, else ``func`` itself."""
        common = _REPLACED.get(func)
        if common is not None:
            # The mode is off inside this method; the replacement must run under it as well.
            with self:
                return common(*args, **(kwargs or {}))
        if func in _BACKWARD:
            with self._kept_on():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    @contextmanager
    def _kept_on(self) -> Iterator[None]:
        """Turn the mode on again where autograd starts its engine."""
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return run_backward(*args, **kwargs)

        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
