"""``functions: exact``: sums, normalisations, softmax, losses and elementary functions without a rounding log.

Each operation here has a *form*: a fixed sequence of correctly rounded IEEE operations and exact sums, whose result is
the same on every machine. It is then rounded onto the grid like any exact result: no tolerance, no log, and nothing
for a lying log to steer. Forms compute in float64; float32 arguments are widened, and results cut to float32.
Whatever has no form here, or none for its arguments, stays inexact, with a log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vt_core.engine import (
    exact_elementary,
    exact_losses,
    exact_norms,
    exact_pools,
    exact_reductions,
    exact_scatter,
    exact_softmax,
    exact_sums,
)
from vt_core.engine.forms import Form
from vt_core.engine.plans import Plan, by_name

if TYPE_CHECKING:
    from vt_core.engine.mode import VerifiedMode

_MODULES = (
    exact_elementary, exact_sums, exact_losses, exact_softmax, exact_norms, exact_pools, exact_reductions,
    exact_scatter,
)  # fmt: skip
FORMS: dict[str, Form] = {name: form for module in _MODULES for name, form in module.FORMS.items()}
FLOAT32: frozenset[str] = frozenset().union(*(getattr(module, "FLOAT32", ()) for module in _MODULES))
"""Forms that read float32 tensors themselves: the same results as widened, without the passes over memory."""

AFTER_CANONICAL: dict[str, Form] = {"pow": exact_elementary.pow_form}
"""For arguments for which an operation has no canonical form (``canonical.py``)."""

_STATISTICS = frozenset({"running_mean", "running_var"})


def exact_function(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Treat an operation by its form in ``FORMS``; one without stays inexact, with a log."""
    given = by_name(plan, args, kwargs)
    names = {name for _, name in plan.mutated}
    onto_self = plan.mutated == ((0, plan.argument_names[0]),)
    floating = [v for v in given.values() if isinstance(v, Tensor) and v.is_floating_point()]
    if (
        not (onto_self or names <= _STATISTICS)  # out= variants
        or any(v.dtype is not mode.compute for v in floating)
        or given.get("dtype") not in (None, mode.compute)
    ):
        return mode.run_inexact(plan, func, args, kwargs)
    narrow = mode.compute is not torch.float64
    widen = narrow and plan.name not in FLOAT32
    arguments = {k: _wide(v) for k, v in given.items()} if widen else given
    form = FORMS.get(plan.name) or AFTER_CANONICAL[plan.name]
    result = form(arguments)
    if result is None:
        return mode.run_inexact(plan, func, args, kwargs)
    written = mode.mutated(plan, args, kwargs) if plan.mutated else []
    if onto_self:
        assert isinstance(result, Tensor)
        written[0].copy_(result)
        mode.put_on_grid(plan, written[0])
        return written[0]
    if narrow:
        result = (
            tuple(_narrow(t, mode.compute) for t in result)
            if isinstance(result, tuple)
            else _narrow(result, mode.compute)
        )
        for name in names if widen else ():
            if isinstance(given.get(name), Tensor):
                given[name].copy_(arguments[name])
    for tensor in (*(result if isinstance(result, tuple) else (result,)), *written):
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            mode.put_on_grid(plan, tensor)
    return result


def treatments() -> dict[str, Callable[[VerifiedMode, Plan, Any, tuple[Any, ...], dict[str, Any]], Any]]:
    """Return the treatment of every operation that has a form, by name."""
    return dict.fromkeys((*FORMS, *AFTER_CANONICAL), exact_function)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _narrow(value: Tensor | None, compute: torch.dtype) -> Tensor | None:
    return value.to(compute) if value is not None and value.is_floating_point() else value
