"""``aten.convolution`` and its backward pass by the products of ``numerics/convolution.py``, where those are faster.

Everything here returns None for what they do not cover (groups, transposed and three-dimensional convolutions, other
dtypes and devices, small ones): then PyTorch's own kernel runs. One-dimensional convolutions are images of one row.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vt_core.numerics import convolution as fast

NAMES = frozenset({"convolution", "convolution_backward"})


def run(name: str, arguments: dict[str, Any], kernel: Any) -> Any:
    """Return the results of the operation ``name`` of NAMES, or None; ``kernel`` is the operation itself."""
    return forward(arguments) if name == "convolution" else backward(arguments, kernel)


def settings_of(arguments: dict[str, Any]) -> fast.Settings | None:
    """Return stride, padding and dilation of an operation on one group of images or rows; None for any other."""
    weight = arguments["weight"]
    dims = weight.dim() - 2
    if dims not in (1, 2) or arguments["input"].dim() != weight.dim():
        return None
    if arguments.get("transposed", False) or arguments.get("groups", 1) != 1:
        return None

    def pair(name: str, missing: int) -> tuple[int, int]:
        values = [int(v) for v in arguments[name]]
        return (missing, values[0]) if dims == 1 else (values[0], values[-1])

    return fast.Settings(pair("stride", 1), pair("padding", 0), pair("dilation", 1))


def forward(arguments: dict[str, Any], bits: int | None = None) -> Tensor | None:
    """Return the result of ``aten.convolution``, or None; see ``convolution_forward`` for ``bits``."""
    settings = settings_of(arguments)
    if settings is None:
        return None
    x, weight = arguments["input"], arguments["weight"]
    found = fast.convolution_forward(_image(x), _image(weight), arguments.get("bias"), settings, bits)
    return _like(found, x)


def input_gradient(arguments: dict[str, Any], grad: Tensor, weight: Tensor, bits: int | None = None) -> Tensor | None:
    """Return the input's gradient of ``aten.convolution_backward`` for this ``grad`` and ``weight``, or None."""
    settings = settings_of(arguments)
    if settings is None:
        return None
    x = arguments["input"]
    height, width = _image(x).shape[2:]
    return _like(fast.convolution_backward_input(_image(grad), _image(weight), (height, width), settings, bits), x)


def weight_gradient(arguments: dict[str, Any], grad: Tensor, x: Tensor, bits: int | None = None) -> Tensor | None:
    """Return the weight's gradient of ``aten.convolution_backward`` for this ``grad`` and ``x``, or None."""
    settings = settings_of(arguments)
    if settings is None:
        return None
    weight = arguments["weight"]
    height, width = _image(weight).shape[2:]
    return _like(fast.convolution_backward_weight(_image(grad), _image(x), (height, width), settings, bits), weight)


def backward(arguments: dict[str, Any], kernel: Any) -> tuple[Tensor | None, ...] | None:
    """Return the results of ``aten.convolution_backward``, or None if neither gradient is faster here.

    ``kernel`` is the operation itself: it computes what is wanted and not covered.
    """
    grad, x, weight = (arguments[k] for k in ("grad_output", "input", "weight"))
    wants = list(arguments["output_mask"])
    by_input = input_gradient(arguments, grad, weight) if wants[0] else None
    by_weight = weight_gradient(arguments, grad, x) if wants[1] else None
    if by_input is None and by_weight is None:
        return None
    left = [wants[0] and by_input is None, wants[1] and by_weight is None, wants[2]]
    rest = kernel(**{**arguments, "output_mask": left}) if any(left) else (None, None, None)
    return (rest[0] if by_input is None else by_input, rest[1] if by_weight is None else by_weight, rest[2])


def _image(x: Tensor) -> Tensor:
    return x.unsqueeze(2) if x.dim() == 3 else x


def _like(found: Tensor | None, x: Tensor) -> Tensor | None:
    return found.squeeze(2) if found is not None and x.dim() == 3 else found
