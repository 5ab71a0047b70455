"""``contractions: exact``: matrix products and convolutions without a rounding log, for their sums have no rounding.

Operands are quantised (``numerics/quantise.py``) so that every product and partial sum is exact in float64; the
device's own kernel then gives the same bits whatever its order, blocking or use of FMA. What remains (alpha, beta, a
bias, a second slice, chunks of a long sum) is a fixed sequence of correctly rounded operations. So nobody has a choice
to make: no tolerance, no log, and nothing for a lying log to steer.

One slice keeps ``b`` bits below the largest magnitude of a row, column or channel: 21 for sums of 2048 terms. With two
slices, ``x = hi + lo`` and three products, it is twice as many. A sum so long that fewer than ``MIN_BITS`` would be
left is cut into chunks that are summed in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vt_core.engine.plans import Plan, by_name
from vt_core.numerics.quantise import product_bits, quantise, sum_bits

if TYPE_CHECKING:
    from vt_core.engine.mode import VerifiedMode

MIN_BITS = 20
"""Fewest bits of an operand; sums of more than ``MAX_TERMS`` terms are cut."""
MAX_TERMS = 1 << (53 - 2 * MIN_BITS)

Product = Callable[[Tensor, Tensor], Tensor]
Form = Callable[[dict[str, Any], int], Tensor | tuple[Tensor | None, ...]]


def contract(
    a: Tensor, a_dims: Sequence[int], b: Tensor, b_dims: Sequence[int], terms: int, product: Product, slices: int
) -> Tensor:
    """Return ``product(a, b)``, a sum of ``terms`` products each, exact for the quantised operands.

    ``a_dims`` and ``b_dims`` are the dimensions that the sum runs over: each index of the others has a scale.
    """
    bits = product_bits(terms)
    high_a, high_b = quantise(a, a_dims, bits), quantise(b, b_dims, bits)
    high = product(high_a, high_b)
    if slices == 1:
        return high
    # What is left is below half a unit and has its own scale; its product with the other rest is too small to matter.
    low_a, low_b = quantise(a - high_a, a_dims, bits), quantise(b - high_b, b_dims, bits)
    return high + (product(high_a, low_b) + product(low_a, high_b))


def _chunks(length: int, terms_each: int) -> list[slice]:
    """Cut ``length`` indices, each of ``terms_each`` terms, so that no chunk has more than MAX_TERMS terms."""
    size = max(1, MAX_TERMS // terms_each)
    return [slice(i, min(i + size, length)) for i in range(0, length, size)] or [slice(0, 0)]


def _total(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def matmul(a: Tensor, b: Tensor, slices: int) -> Tensor:
    """Return ``a @ b`` for (M, K) and (K, N), or with the same leading batch dimension."""
    product = torch.bmm if a.dim() == 3 else torch.mm
    k = a.shape[-1]
    parts = [contract(a[..., s], (-1,), b[..., s, :], (-2,), s.stop - s.start, product, slices) for s in _chunks(k, 1)]
    return _total(parts)


def exact_sum(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the sum over ``dims``, exact for ``x`` quantised to about 51 - log2(terms) bits; dims are dropped."""
    terms = 1
    for d in dims:
        terms *= x.shape[d]
    return quantise(x, dims, sum_bits(terms)).sum(dim=tuple(dims))


def _scaled(arguments: dict[str, Any], bias: Tensor, product: Tensor) -> Tensor:
    """Return ``beta * bias + alpha * product``, each operation correctly rounded."""
    alpha, beta = arguments.get("alpha", 1), arguments.get("beta", 1)
    if alpha != 1:
        product = product * alpha
    if beta == 0:
        return product
    return product + (bias * beta if beta != 1 else bias)


def sums_of_products(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a convolution is one: cuDNN may choose Winograd or FFT, which are not."""
    return torch.backends.cudnn.flags(enabled=False) if x.is_cuda else nullcontext()


def _mm(arguments: dict[str, Any], slices: int) -> Tensor:
    return matmul(arguments["self"], arguments["mat2"], slices)


def _mv(arguments: dict[str, Any], slices: int) -> Tensor:
    return matmul(arguments["self"], arguments["vec"][:, None], slices)[:, 0]


def _dot(arguments: dict[str, Any], slices: int) -> Tensor:
    other = arguments["tensor"] if "tensor" in arguments else arguments["other"]
    return matmul(arguments["self"][None], other[:, None], slices)[0, 0]


def _addmm(arguments: dict[str, Any], slices: int) -> Tensor:
    return _scaled(arguments, arguments["self"], matmul(arguments["mat1"], arguments["mat2"], slices))


def _addmv(arguments: dict[str, Any], slices: int) -> Tensor:
    product = matmul(arguments["mat"], arguments["vec"][:, None], slices)[:, 0]
    return _scaled(arguments, arguments["self"], product)


def _baddbmm(arguments: dict[str, Any], slices: int) -> Tensor:
    return _scaled(arguments, arguments["self"], matmul(arguments["batch1"], arguments["batch2"], slices))


def _convolution(arguments: dict[str, Any], slices: int) -> Tensor:
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
        with sums_of_products(a):
            return torch.ops.aten.convolution.default(a, b, None, *settings)  # type: ignore[no-any-return]

    if terms > MAX_TERMS:
        raise_too_long(terms)
    value = contract(x, x_dims, weight, weight_dims, terms, product, slices)
    return value if bias is None else value + bias.reshape(1, -1, *[1] * (x.dim() - 2))


def _convolution_backward(arguments: dict[str, Any], slices: int) -> tuple[Tensor | None, ...]:
    grad, x, weight = (arguments[k] for k in ("grad_output", "input", "weight"))
    wants = arguments["output_mask"]
    settings = [arguments[k] for k in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    transposed, groups = settings[3], settings[5]
    spatial = list(range(2, x.dim()))

    def run(g: Tensor, a: Tensor, b: Tensor, which: int) -> Tensor:
        mask = [which == i for i in range(3)]
        with sums_of_products(g):
            result = torch.ops.aten.convolution_backward.default(g, a, b, None, *settings, mask)
        return result[which]  # type: ignore[no-any-return]

    by_input = by_weight = by_bias = None
    if wants[0]:
        # A sum over the output channels of a group and the kernel; a scale a sample and an input channel.
        weight_dims = [1, *spatial] if transposed else [0, *spatial]
        terms = weight[0].numel() if transposed else weight[:, 0].numel() // groups
        if terms > MAX_TERMS:
            raise_too_long(terms)
        by_input = contract(
            grad, list(range(1, grad.dim())), weight, weight_dims, terms, lambda g, w: run(g, x, w, 0), slices
        )
    if wants[1]:
        # A sum over samples and places: long, so it is cut by samples; a scale a channel on both sides.
        places = x[0, 0].numel() if transposed else grad[0, 0].numel()
        parts = []
        for s in _chunks(x.shape[0], places):
            terms = (s.stop - s.start) * places
            parts.append(
                contract(grad[s], [0, *spatial], x[s], [0, *spatial], terms, lambda g, a: run(g, a, weight, 1), slices)
            )
        by_weight = _total(parts)
    if wants[2]:
        by_bias = exact_sum(grad, [0, *spatial])
    return by_input, by_weight, by_bias


def raise_too_long(terms: int) -> None:
    """Raise PrecisionError: a convolution's window cannot be cut."""
    from vt_core.errors import PrecisionError

    raise PrecisionError(
        f"a convolution sums {terms} products for each output: more than {MAX_TERMS} leave fewer than {MIN_BITS} bits. "
        f"Use fewer channels a group or a smaller kernel, or contractions: logged."
    )


FORMS: dict[str, Form] = {
    "mm": _mm,
    "bmm": _mm,
    "mv": _mv,
    "dot": _dot,
    "vdot": _dot,
    "addmm": _addmm,
    "addmv": _addmv,
    "baddbmm": _baddbmm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}


def treatment(slices: int) -> Callable[[VerifiedMode, Plan, Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return the treatment of contractions with one or two slices; other forms of them stay inexact, with a log."""

    def exact(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        form = FORMS.get(plan.name)
        arguments = by_name(plan, args, kwargs)
        floating = [v.dtype for v in arguments.values() if isinstance(v, Tensor)]
        if form is None or plan.in_place or any(d != torch.float64 for d in floating):
            return mode.run_inexact(plan, func, args, kwargs)
        result = form(arguments, slices)
        for tensor in result if isinstance(result, tuple) else (result,):
            if tensor is not None and tensor.numel():
                mode.put_on_grid(plan, tensor)
        return result

    return exact
