"""One operation for the whole update of one parameter: ``vt::sgd_`` and ``vt::adam_``.

The sequence is that of the single-tensor form in ``torch.optim``, with the canonical forms of ``canonical`` and a
rounding after each operation that the engine rounds; :func:`reference` spells it out. On a CPU it runs as one compiled
pass over memory (``numerics._jit_optimizers``) with the same bits. Every operation in it is correctly rounded, so
results are the same on every machine and need no log. Each written tensor is one rounding site; what lies between has
none. A 0-dimensional parameter is not put on the grid, like all 0-dimensional state.

The scalars are worked out by ``optimizers`` as ``torch.optim`` does; the dispatch mode rounds them to float32 as
everywhere.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.canonical import apply_form
from vt_core.numerics import Grid, _jit_optimizers, correctly_rounded_sqrt, fingerprint, round_plain_
from vt_core.numerics.plan import grid_params, plan_for

_LIBRARY = torch.library.Library("vt", "DEF")  # type: ignore[no-untyped-call]
# shrink: 1 - lr * weight_decay; value: -lr / (1 - beta1**step); bias2: sqrt(1 - beta2**step). None: no such term.
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "adam_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!)? max_exp_avg_sq, *, "
    "bool maximize, float? shrink, float? weight_decay, float weight1, float beta2, float weight2, float bias2, "
    "float eps, float value) -> Tensor(a!)"
)
# weight: 1 - dampening; first: the buffer is new and takes the gradient as it is.
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "sgd_(Tensor(a!) param, Tensor grad, Tensor(b!)? momentum_buffer, *, bool maximize, float? weight_decay, "
    "float momentum, float weight, bool nesterov, bool first, float lr) -> Tensor(a!)"
)

ADAM, SGD = torch.ops.vt.adam_.default, torch.ops.vt.sgd_.default

Written = list[tuple[Tensor, int]]  # tensors that an update wrote, with their fingerprints

_WRITTEN = {
    "adam": ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "sgd": ("param", "momentum_buffer"),
}
_TENSORS = frozenset(("grad", *_WRITTEN["adam"], *_WRITTEN["sgd"]))
_OPTIONAL = frozenset({"max_exp_avg_sq", "momentum_buffer", "shrink", "weight_decay"})
_FLAGS = frozenset({"maximize", "nesterov", "first"})


def update(name: str, arguments: dict[str, Any], compute: torch.dtype, grid: Grid) -> Written:
    """Run update ``name`` ("adam" or "sgd") on its arguments by name; scalars are rounded to float32.

    Returns the tensors that it wrote, on the grid, with their fingerprints; none for 0-dimensional ones. Raises
    TypeError or ValueError for arguments that are no such update: a record of another party may hold anything.
    """
    _check(arguments, compute)
    targets = [arguments[key] for key in _WRITTEN[name] if arguments[key] is not None]
    param = targets[0]
    # The compiled pass rounds every sum, ``torch.optim``'s sequence not one with a factor of 1: see _Rounder.sum.
    unusual = param.dim() == 0 or 1.0 in (arguments["weight_decay"], arguments.get("momentum"))
    if unusual or param.device.type != "cpu" or os.environ.get("VT_REFERENCE_KERNELS") == "1":
        reference(name, arguments, grid)
        return [(t, fingerprint(t)) for t in targets if t.dim() > 0]
    return list(zip(targets, _compiled(name, arguments, targets, grid), strict=True))


def reference(name: str, arguments: dict[str, Any], grid: Grid) -> None:
    """Run an update operation by operation, in place: slow, on any device."""
    (_adam if name == "adam" else _sgd)(**arguments, to_grid=_Rounder(grid, arguments["param"].dim() > 0))


class _Rounder:
    """Puts results on the grid; what is written in place only if it ``has_dimensions``."""

    def __init__(self, grid: Grid, has_dimensions: bool) -> None:
        self.grid, self.has_dimensions = grid, has_dimensions

    def new(self, value: Tensor) -> Tensor:
        """Round a result that is a new tensor."""
        round_plain_(value, self.grid, False)
        return value

    def sum(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        """Return ``x + y * factor``: canonical and rounded, but for a factor of 1 exact, which is left as it is."""
        return x + y if factor == 1.0 else self.new(x + y * factor)

    def write(self, target: Tensor, value: Tensor) -> Tensor:
        """Write a result into a tensor."""
        target.copy_(value)
        return self.new(target) if self.has_dimensions else target


def _adam(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None, maximize: bool,
    shrink: float | None, weight_decay: float | None, weight1: float, beta2: float, weight2: float, bias2: float,
    eps: float, value: float, to_grid: _Rounder,
) -> None:  # fmt: skip
    if maximize:
        grad = -grad
    if shrink is not None:
        to_grid.write(param, param * shrink)
    if weight_decay is not None:
        grad = to_grid.sum(grad, param, weight_decay)
    to_grid.write(exp_avg, _form("lerp", self=exp_avg, end=grad, weight=weight1))
    to_grid.write(exp_avg_sq, exp_avg_sq * beta2)
    to_grid.write(exp_avg_sq, _form("addcmul", self=exp_avg_sq, tensor1=grad, tensor2=grad, value=weight2))
    bound = exp_avg_sq
    if max_exp_avg_sq is not None:
        bound = to_grid.write(max_exp_avg_sq, torch.maximum(max_exp_avg_sq, exp_avg_sq))
    root = to_grid.new(correctly_rounded_sqrt(bound))
    # By a tensor: CUDA divides by a number as a product with its reciprocal.
    denominator = root / torch.full((), bias2, dtype=root.dtype, device=root.device)
    to_grid.write(denominator, denominator + eps)
    to_grid.write(param, _form("addcdiv", self=param, tensor1=exp_avg, tensor2=denominator, value=value))


def _sgd(
    param: Tensor, grad: Tensor, momentum_buffer: Tensor | None, maximize: bool, weight_decay: float | None,
    momentum: float, weight: float, nesterov: bool, first: bool, lr: float, to_grid: _Rounder,
) -> None:  # fmt: skip
    if maximize:
        grad = -grad
    if weight_decay is not None:
        grad = to_grid.sum(grad, param, weight_decay)
    if momentum_buffer is not None:
        if first:
            used = grad  # as torch.optim uses it; the buffer is put on the grid for the next step
            to_grid.write(momentum_buffer, grad)
        else:
            to_grid.write(momentum_buffer, momentum_buffer * momentum)
            used = to_grid.write(momentum_buffer, momentum_buffer + grad * weight)
        grad = to_grid.sum(grad, used, momentum) if nesterov else used
    to_grid.write(param, param + grad * -lr)


def _form(name: str, **arguments: Any) -> Tensor:
    value = apply_form(name, arguments)
    assert value is not None
    return value


def _compiled(name: str, arguments: dict[str, Any], targets: list[Tensor], grid: Grid) -> list[int]:
    flat = {key: _flat(arguments[key]) for key in ("grad", *_WRITTEN[name])}
    scalars = {key: value for key, value in arguments.items() if key not in _TENSORS}
    decay = scalars.pop("weight_decay")
    params, tame = _constants(grid, targets[0].dtype)
    if name == "adam":
        found = _jit_optimizers.adam(
            flat["param"], flat["grad"], flat["exp_avg"], flat["exp_avg_sq"], flat["max_exp_avg_sq"],
            decay=decay, params=params, tame=tame, **scalars,
        )  # fmt: skip
    else:
        momentum = scalars["momentum"]
        found = _jit_optimizers.sgd(
            flat["param"], flat["grad"], flat["momentum_buffer"], maximize=scalars["maximize"], decay=decay,
            momentum=None if scalars["first"] else momentum, weight=scalars["weight"],
            nesterov=momentum if scalars["nesterov"] else None, step=-scalars["lr"], params=params, tame=tame,
        )  # fmt: skip
    for tensor, key in zip(targets, [k for k in _WRITTEN[name] if flat[k] is not None], strict=True):
        if not tensor.is_contiguous():
            tensor.detach().copy_(torch.from_numpy(flat[key]).view(tensor.shape))
    return found[: len(targets)]


def _flat(x: Tensor | None) -> Any:
    """Return ``x`` as a row-major vector that shares its memory if it is contiguous."""
    return None if x is None else x.detach().contiguous().numpy().reshape(-1)


@functools.lru_cache
def _constants(grid: Grid, compute: torch.dtype) -> tuple[_jit_optimizers.GridParams, _jit_optimizers.Tame | None]:
    """Return ``params`` and ``tame`` of the compiled loops."""
    if (grid.precision, grid.emin, grid.emax) == (24, -126, 127):
        return None, None
    return grid_params(grid), _jit_optimizers.tame_constants(plan_for(grid, None, compute).ints)


def _check(arguments: dict[str, Any], compute: torch.dtype) -> None:
    shape = None
    for key, value in arguments.items():
        if value is None and key in _OPTIONAL:
            continue
        kind = Tensor if key in _TENSORS else bool if key in _FLAGS else float
        if not isinstance(value, kind):
            raise TypeError(f"{key} must be a {kind.__name__}, not a {type(value).__name__}")
        if isinstance(value, Tensor):
            shape = value.shape if shape is None else shape
            if value.dtype is not compute or value.shape != shape:
                raise ValueError(f"{key} has shape {tuple(value.shape)} and dtype {value.dtype}, unlike its parameter")
