"""Recomputes the one operation of a record on the CPU, under the engine's own treatment and the interval rule.

The operation gets its inputs from a witness and its rounding decisions from the record. Where a claimed result
differs, :func:`misfit` says how far two machines must have been apart for it to be honest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from vt_core.dispute import records as rec
from vt_core.dispute.tracking import Origin
from vt_core.dispute.views import apply, places
from vt_core.engine.mode import Moment, VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.opclass import UPDATES
from vt_core.engine.plans import make_plan
from vt_core.engine.rounding import Place, Rounding
from vt_core.engine.scale import Bound
from vt_core.engine.settings import common_settings
from vt_core.engine.streams import Streams
from vt_core.errors import EvidenceError
from vt_core.numerics import Grid, OpClass, RoundingFinding, SiteEntries, Tolerance, auditor_round_
from vt_core.numerics.grid import lattice_index, lattice_value, round_array
from vt_core.numerics.scale import absolute_part, stepped
from vt_core.training.spec import RunSpec
from vt_core.verify.reconsider import MAX_GRANTS

MOST = MAX_GRANTS
"""Roundings of one result that may be looked at as honest, as in an audit."""

_FORBIDDEN = frozenset({"from_file", "set", "resize", "record_stream"})


@dataclass(frozen=True)
class Site:
    """One rounding: the tensor that was rounded, its values before, the tolerance, and what the log says of it.

    ``logged`` holds the positions of its entries, ``refused`` those that the interval rule refused, with the distance
    in tolerances at which each would be honest.
    """

    tensor: Tensor
    before: Tensor
    tolerance: Tolerance
    scale_exp: int
    logged: frozenset[int]
    refused: Mapping[int, float]


class JudgeRounding(Rounding):
    """Rounds as an auditor with the decisions of one record, and keeps the values before rounding."""

    def __init__(self, spec: RunSpec, entries: Mapping[int, SiteEntries]) -> None:
        super().__init__(Grid.parse(spec.grid), spec.policy, False)
        self._entries = entries
        self.sites: list[Site] = []
        self.findings: list[RoundingFinding] = []
        self.begin_step(0)

    @property
    def position(self) -> int:
        """Number of sites so far."""
        return self._site

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place, taking the record's decisions where the interval rule allows them."""
        tolerance, before = self.policy.at(op_class, bound.growth), x.detach().clone()
        result = auditor_round_(x, tolerance, self.grid, self._entries.get(self._site), True, bound.floor)
        entries = self._entries.get(self._site)
        logged = frozenset(() if entries is None else entries.positions.tolist())
        refused = {f.position: f.distance for f in result.findings}
        self.sites.append(Site(x, before, tolerance, result.scale_exp, logged, refused))
        self.findings += result.findings
        self._next_site(result.fingerprint, place)


@dataclass(frozen=True)
class Recomputed:
    """What the operation gives here: its results as a record lists them, their values, and the roundings behind."""

    results: list[Any]
    out: list[str | None]
    values: dict[int, Tensor]
    sites: dict[int, Site]
    patches: dict[int, Tensor]  # where in a result (flat positions) the rounded part lies, if not everywhere
    counts: tuple[int, int]  # of rounding sites and of random draws
    findings: list[RoundingFinding]


def recompute(
    spec: RunSpec,
    step: int,
    record: Mapping[str, Any],
    inputs: Mapping[Origin, Tensor],
    entries: Mapping[int, SiteEntries],
) -> Recomputed:
    """Run the operation of a parsed ``record`` on ``inputs`` (values by origin, digests checked by the caller).

    ``entries`` are the log's for the record's sites, counted from the first. Raises EvidenceError for a record that
    names no such operation or does not fit it, UnsupportedOperation for one that the engine refuses.
    """
    func = _operation(record["op"])
    plan = make_plan(func)
    arguments, bases = _arguments(record, inputs, func)
    rounding = JudgeRounding(spec, entries)
    mode = VerifiedMode(
        spec.compute, rounding, Streams(spec.seed), ModuleTracker(), spec.promote, spec.contractions, spec.functions
    )
    epoch = (step - 1) // spec.steps_per_epoch if step else 0
    mode.moment = Moment(epoch, step, record["place"][2])
    args, kwargs = _call(func, arguments)
    try:
        with common_settings(spec.compute), torch.no_grad():
            result = mode.__torch_dispatch__(func, (), args, kwargs)
            if plan.name in rec.UNDEFINED:
                result.zero_()
    except (
        TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, RuntimeError, MemoryError,
    ) as error:  # fmt: skip
        raise EvidenceError("evidence_malformed", f"{record['op']} cannot run on these arguments: {error}") from error
    written = [t for _, n in plan.mutated for t in tree_leaves(arguments.get(n)) if isinstance(t, Tensor)]
    return _collect(result, written, bases, rounding, mode.moment.draws - record["place"][2])


def misfit(site: Site, own: Tensor, claimed: Tensor, grid: Grid) -> tuple[int, float]:
    """Return how many elements of ``claimed`` are not what came out here (``own``), and how far off the worst is.

    The distance, in tolerances, is the least by which the values of the two machines must differ for the claim to be
    honest. An element without an entry in the log lay at least one tolerance inside the cell of its grid value; there
    is no such place if the cell is narrower than that, or if the claim is no grid value: inf. So it is for more than
    ``MOST`` elements, which are not looked at.
    """
    x, y, z = (t.detach().reshape(-1) for t in (site.before, claimed, own))
    places = torch.nonzero((y != z) & ~(torch.isnan(y) & torch.isnan(z))).reshape(-1)
    if not places.numel():
        return 0, 0.0
    if places.numel() > MOST:
        return places.numel(), math.inf
    return places.numel(), max(_distance(site, i, float(x[i]), float(y[i]), grid) for i in places.tolist())


def _distance(site: Site, place: int, x: float, y: float, grid: Grid) -> float:
    if place in site.logged:
        return site.refused.get(place, math.inf)  # an entry that stands names another value than is claimed
    at, grid = np.array([y]), stepped(grid, site.tolerance, site.scale_exp)
    if not math.isfinite(x) or math.isnan(y) or float(round_array(at, grid)[0]) != y:
        return math.inf
    tau = abs(x) * site.tolerance.rtol + absolute_part(site.scale_exp, site.tolerance)
    if y == 0.0:
        return abs(x) / tau  # by the zero rule a zero needs no entry
    index = lattice_index(at, grid) + np.array([-1, 0, 1])
    below, centre, above = (float(v) for v in lattice_value(index, grid))
    lower, upper = (below + centre) / 2, math.inf if math.isinf(y) else (above + centre) / 2
    if y < 0 and math.isinf(y):
        lower, upper = -math.inf, (above + centre) / 2
    if upper - lower < 2 * tau:
        return math.inf
    return max(lower - x, x - upper, 0.0) / tau + 1.0


def _operation(name: str) -> Any:
    """Return the ATen overload called ``aten.NAME.OVERLOAD``, or the engine's own operation of that name."""
    parts = name.split(".")
    known = name in UPDATES or parts[0] in ("aten", "prims")
    if len(parts) != 3 or not known or not all(p.isidentifier() for p in parts):
        raise EvidenceError("evidence_malformed", f"{name[:80]!r} is no operation")
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    if parts[1].rstrip("_") in _FORBIDDEN or packet is None or parts[2] not in packet.overloads():
        raise EvidenceError("evidence_malformed", f"{name[:80]!r} is no operation that a step may run")
    return getattr(packet, parts[2])


def _arguments(
    record: Mapping[str, Any], inputs: Mapping[Origin, Tensor], func: Any
) -> tuple[dict[str, Any], dict[int, tuple[Tensor, Tensor | None]]]:
    """Return the arguments by name, and for each written tensor (by id) its base and where in it it lies."""
    bases: dict[int, tuple[Tensor, Tensor | None]] = {}
    shared: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def build(value: Any) -> Any:
        if isinstance(value, rec.Constant):
            return value.value.clone()
        if isinstance(value, list):
            return [build(item) for item in value]
        if not isinstance(value, rec.Source):
            return value
        origin = value.record, value.result
        if value.at is None:
            return apply(inputs[origin], value.view).clone()
        key = (*origin, value.view, value.at)
        if key not in shared:
            base = apply(inputs[origin], value.view).clone()
            where = places(tuple(base.shape), value.at) if value.at else None
            tensor = base if where is None else apply(base, value.at).clone()
            bases[id(tensor)] = base, where
            shared[key] = tensor, base
        return shared[key][0]

    arguments = {name: build(rec.decode_argument(plain)) for name, plain in record["args"].items()}
    if "size" in arguments and rec.about_machine(func._schema.name.split("::")[1], "stride"):
        arguments["stride"] = list(torch.empty(arguments["size"], device="meta").stride())
    return arguments, bases


def _call(func: Any, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments in the schema's order. EvidenceError for a name it has not."""
    left = dict(arguments)
    args: list[Any] = []
    for argument in func._schema.arguments:
        if argument.kwarg_only or argument.name not in left:
            break
        args.append(left.pop(argument.name))
    unknown = left.keys() - {a.name for a in func._schema.arguments}
    if unknown:
        raise EvidenceError("evidence_malformed", f"{func} has no argument {min(unknown)[:80]!r}")
    return tuple(args), left


def _collect(
    result: Any,
    written: list[Tensor],
    bases: Mapping[int, tuple[Tensor, Tensor | None]],
    rounding: JudgeRounding,
    draws: int,
) -> Recomputed:
    targets = {t.untyped_storage()._cdata for t in written}
    results: list[Any] = []
    out: list[str | None] = []
    values: dict[int, Tensor] = {}
    sites: dict[int, Site] = {}
    patches: dict[int, Tensor] = {}

    def add(number: int, tensor: Tensor, rounded: Tensor) -> None:
        value = rec.canonical_value(tensor)
        results.append(rec.value_digest(value))
        out.append(rec.describe(tensor))
        values[number] = value
        site = next((s for s in reversed(rounding.sites) if s.tensor is rounded), None)
        if site is not None:
            sites[number] = site

    for value in result if isinstance(result, (tuple, list)) else (result,):
        if not isinstance(value, Tensor):
            results.append(rec.encode_argument(value, lambda _: None))
            out.append(rec.describe(value))
        elif value.untyped_storage()._cdata not in targets:
            add(len(results), value, value)
    for tensor in written:
        base, where = bases.get(id(tensor), (tensor, None))
        if where is not None:
            base.reshape(-1)[where] = tensor.reshape(-1)
            patches[len(results)] = where
        add(len(results), base, tensor)
    return Recomputed(results, out, values, sites, patches, (rounding.position, draws), rounding.findings)
