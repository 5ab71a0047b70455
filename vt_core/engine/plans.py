"""Per-operation plans: what the schema says, looked up once for each ATen overload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vt_core.engine.cancellation import NORM_ORDER, first_floor
from vt_core.engine.opclass import (
    GRID_PRESERVING_IN_PLACE,
    LAYOUT,
    SILENT_MUTATIONS,
    UNMARKED_VIEWS,
    UPDATES,
    Treatment,
    base_name,
    tolerance_class,
    treatment_of,
)
from vt_core.engine.scale import growths, scale_floors
from vt_core.numerics import OpClass

_KNOWN_NAMESPACES = frozenset({"aten", "prim", "prims", "profiler"})
_FACTORIES = frozenset({"arange", "linspace", "logspace"})


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about an overload that does not depend on its arguments."""

    name: str  # packet name without the in-place underscore
    full_name: str  # 'aten.add_.Tensor'
    treatment: Treatment
    op_class: OpClass
    argument_names: tuple[str, ...]
    mutated: tuple[tuple[int, str], ...]  # arguments that the operation writes, by schema or silently
    in_place: bool
    keeps_grid: bool  # an in-place result is on the grid whenever the arguments are
    rounds_scalars: bool
    refined: bool  # the treatment depends on arguments, see `refine`
    settled: int  # with no more than so many positional arguments, and no others, it is ``treatment``
    has_floor: bool  # the scale of a result has a lower bound that comes from the arguments
    traced: bool  # a step's trace lists it
    known: bool  # an operation of PyTorch's own or of the engine, not of an extension


def make_plan(func: torch._ops.OpOverload) -> Plan:
    """Read the schema of an overload once."""
    packet = func._schema.name.split("::")[1]
    name = base_name(packet)
    arguments = func._schema.arguments
    written = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    silent = [(i, n) for i, n in SILENT_MUTATIONS.get(packet, ()) if (i, n) not in written]
    is_view = bool(getattr(func, "is_view", False)) and not written and name != "lift_fresh"
    treatment = Treatment.VIEW if is_view or name in UNMARKED_VIEWS else treatment_of(name)
    if name in ("index_put", "scatter", "div", "_unsafe_index_put", "_index_put_impl"):
        treatment = Treatment.EXACT  # unless an argument says otherwise, see `refine`
    is_update = str(func) in UPDATES
    if is_update:
        treatment = Treatment.UPDATE
    return Plan(
        name=name,
        full_name=str(func),
        treatment=treatment,
        op_class=tolerance_class(name),
        argument_names=tuple(a.name for a in arguments),
        mutated=tuple(written + silent),
        in_place=bool(written),
        keeps_grid=name in GRID_PRESERVING_IN_PLACE,
        rounds_scalars=name not in _FACTORIES and treatment is not Treatment.VIEW,
        refined=name in REFINED,
        settled=_SETTLED.get(name, 0),
        has_floor=name in NORM_ORDER or _asks_for_arguments(name),
        traced=name not in LAYOUT,
        known=is_update or func.namespace in _KNOWN_NAMESPACES,
    )


def _asks_for_arguments(name: str) -> bool:
    """Tell whether the scale of a result of this operation has a lower bound other than 0."""
    try:
        return any((*scale_floors(name, {}, 3), first_floor(name, {}), *growths(name, {}, 3)))
    except KeyError:
        return True


def refine(plan: Plan, arguments: dict[str, Any]) -> Treatment:
    """Return the treatment for these arguments: some operations are exact only for some of them."""
    name = plan.name
    if name in ("add", "sub", "rsub"):
        return Treatment.CANONICAL if arguments.get("alpha", 1) != 1 else Treatment.EXACT
    if name == "div":
        return Treatment.INEXACT if arguments.get("rounding_mode") is not None else Treatment.EXACT
    if name in ("index_put", "_unsafe_index_put", "_index_put_impl"):
        return Treatment.INEXACT if arguments.get("accumulate", False) else Treatment.EXACT
    if name == "scatter":
        return Treatment.INEXACT if arguments.get("reduce") is not None else Treatment.EXACT
    if name == "bincount":  # with weights it sums them
        return Treatment.INEXACT if arguments.get("weights") is not None else Treatment.EXACT
    if name == "arange":  # start + i * step: vector code splits it by its own width
        bounds = (arguments.get(key, 0) for key in ("start", "end", "step"))
        return Treatment.EXACT if all(float(b).is_integer() for b in bounds) else Treatment.INEXACT
    return plan.treatment


# Two operands alone: no alpha and no rounding mode.
_SETTLED = {"add": 2, "sub": 2, "rsub": 2, "div": 2}

# Treatments that look at arguments before they are final.
REFINED = frozenset(
    ["add", "sub", "rsub", "div", "index_put", "_unsafe_index_put", "_index_put_impl", "scatter", "bincount", "arange"]
)


def by_name(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by schema name; those left at their default are absent."""
    arguments = dict(zip(plan.argument_names, args, strict=False))
    if kwargs:
        arguments.update(kwargs)
    return arguments
