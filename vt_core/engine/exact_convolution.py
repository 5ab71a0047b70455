"""Convolutions and their backward passes as exact sums of products; see ``exact_contractions.py``.

Products are those of ``convolutions.py`` where they are faster, else the device's own: exact sums have the same bits.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from vt_core.engine import convolutions
from vt_core.engine.exact_products import MAX_TERMS, MIN_BITS, chunks, contract, total
from vt_core.engine.exact_sums import exact_sum
from vt_core.errors import PrecisionError
from vt_core.numerics.quantise import product_bits


def sums_of_products(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a convolution is one: cuDNN may choose Winograd or FFT, which are not."""
    return torch.backends.cudnn.flags(enabled=False) if x.is_cuda else nullcontext()


def convolution(arguments: dict[str, Any], slices: int) -> Tensor:
    """Return the result of ``aten.convolution`` with these arguments; PrecisionError for too large a window."""
    x, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    if arguments.get("transposed", False):
        terms = weight[:, 0].numel() // arguments.get("groups", 1)
        weight_dims = [0, *range(2, weight.dim())]  # (in, out / groups, kernel): a scale for each output channel
    else:
        terms = weight[0].numel()
        weight_dims = list(range(1, weight.dim()))
    x_dims = list(range(1, x.dim()))
    settings = [arguments[k] for k in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]

    def product(a: Tensor, b: Tensor) -> Tensor:
        found = convolutions.forward({**arguments, "input": a, "weight": b, "bias": None}) if slices == 2 else None
        if found is not None:
            return found
        with sums_of_products(a):
            return torch.ops.aten.convolution.default(a, b, None, *settings)  # type: ignore[no-any-return]

    if terms > MAX_TERMS:
        cuts = _channel_chunks(x.shape[1], terms, arguments)
        parts = [convolution({**arguments, "input": x[:, c], "weight": _of_inputs(arguments, c), "bias": None}, slices)
                 for c in cuts]  # fmt: skip
        return _with_bias(total(parts), bias)
    if slices == 1:
        found = convolutions.forward(arguments, product_bits(terms))
        if found is not None:
            return found
    return _with_bias(contract(x, x_dims, weight, weight_dims, terms, product, slices), bias)


def convolution_backward(arguments: dict[str, Any], slices: int) -> tuple[Tensor | None, ...]:
    """Return the results of ``aten.convolution_backward``: gradients of input, weight and bias, None if unwanted."""
    grad, x, weight = (arguments[k] for k in ("grad_output", "input", "weight"))
    wants = arguments["output_mask"]
    settings = [arguments[k] for k in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    transposed, groups = settings[3], settings[5]
    spatial = list(range(2, x.dim()))

    def kernel(g: Tensor, a: Tensor, b: Tensor, which: int) -> Tensor:
        mask = [which == i for i in range(3)]
        with sums_of_products(g):
            result = torch.ops.aten.convolution_backward.default(g, a, b, None, *settings, mask)
        return result[which]  # type: ignore[no-any-return]

    def input_product(g: Tensor, w: Tensor) -> Tensor:
        found = convolutions.input_gradient(arguments, g, w) if slices == 2 else None
        return kernel(g, x, w, 0) if found is None else found

    def weight_product(g: Tensor, a: Tensor) -> Tensor:
        found = convolutions.weight_gradient(arguments, g, a) if slices == 2 else None
        return kernel(g, a, weight, 1) if found is None else found

    by_input = by_weight = by_bias = None
    if wants[0]:
        # A sum over the output channels of a group and the kernel; a scale a sample and an input channel.
        weight_dims = [1, *spatial] if transposed else [0, *spatial]
        terms = weight[0].numel() if transposed else weight[:, 0].numel() // groups
        over = list(range(1, grad.dim()))
        parts = []
        cuts = [slice(0, grad.shape[1])] if terms <= MAX_TERMS else _channel_chunks(grad.shape[1], terms, arguments)
        for c in cuts:
            g, w = grad[:, c], weight[:, c] if transposed else weight[c]
            summed = terms if len(cuts) == 1 else terms // grad.shape[1] * g.shape[1]
            bits = product_bits(summed)
            part = convolutions.input_gradient(arguments, g, w, bits) if slices == 1 else None
            parts.append(contract(g, over, w, weight_dims, summed, input_product, slices) if part is None else part)
        by_input = total(parts)
    if wants[1]:
        # A sum over samples and places: long, so it is cut by samples; a scale a channel on both sides.
        places = (x if transposed else grad).shape[2:].numel()
        over = [0, *spatial]
        parts = []
        for s in chunks(x.shape[0], places):
            terms = (s.stop - s.start) * places
            bits = product_bits(terms)
            part = convolutions.weight_gradient(arguments, grad[s], x[s], bits) if slices == 1 else None
            parts.append(contract(grad[s], over, x[s], over, terms, weight_product, slices) if part is None else part)
        by_weight = total(parts)
    if wants[2]:
        by_bias = exact_sum(grad, [0, *spatial])
    return by_input, by_weight, by_bias


def _channel_chunks(channels: int, terms: int, arguments: dict[str, Any]) -> list[slice]:
    """Cut the channels that a sum of ``terms`` products runs over; PrecisionError where that does not help."""
    if arguments.get("groups", 1) != 1 or terms // channels > MAX_TERMS:
        raise PrecisionError(
            f"a convolution sums {terms} products for each output: more than {MAX_TERMS} leave fewer than {MIN_BITS} "
            f"bits, and it cannot be cut by channels. Use a smaller kernel, or contractions: logged."
        )
    return chunks(channels, terms // channels)


def _of_inputs(arguments: dict[str, Any], channels: slice) -> Tensor:
    """Return the part of the weight that belongs to some input channels."""
    weight: Tensor = arguments["weight"]
    return weight[channels] if arguments.get("transposed", False) else weight[:, channels]


def _with_bias(value: Tensor, bias: Tensor | None) -> Tensor:
    return value if bias is None else value + bias.reshape(1, -1, *[1] * (value.dim() - 2))
