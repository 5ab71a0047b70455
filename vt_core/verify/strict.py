"""The auditor's rounding strategy with what a verdict needs beyond the interval rule.

One rule more: a log holds entries only where something is decided. Sites that need no log (results that are equal on
every machine, the input batch) ignore entries, so an entry there could not move anything. It is still a finding: no
honest trainer writes it. And two means to look again at a finding (see ``reconsider``): keep the values of the first
site that differs, and grant the trainer single roundings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.rounding import AuditorRounding, Place
from vt_core.engine.scale import Bound
from vt_core.numerics import (
    Grid,
    OpClass,
    RoundingFinding,
    Tolerance,
    TolerancePolicy,
    are_places,
    auditor_round_,
    fingerprint,
    values_at,
)
from vt_core.verify.bias import uses

_MOST_SITES = 4  # the first difference of fingerprints and the first entry at fault are among them
Where = tuple[int, int]  # (step, site)
Grants = Mapping[Where, Mapping[int, float]]  # -> element -> the value that the trainer claims


@dataclass(frozen=True)
class Values:
    """The auditor's values at one site, before and after rounding (any shape, compute dtype), tolerance and scale."""

    before: Tensor
    after: Tensor
    tolerance: Tolerance
    scale_exp: int


class StrictRounding(AuditorRounding):
    """An :class:`AuditorRounding` that finds entries at sites which take none.

    With ``grants`` it takes the trainer's value at single elements, whatever the interval rule says, and keeps the
    values of the first sites with findings in ``values``. That costs a copy of every tensor, so it is not the default.
    """

    def __init__(self, grid: Grid, policy: TolerancePolicy, fingerprints: bool, grants: Grants | None = None) -> None:
        super().__init__(grid, policy, fingerprints)
        self.grants = grants
        self.values: dict[Where, Values] = {}
        self.uses: dict[OpClass, Counter[str]] = {c: Counter() for c in OpClass}

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place, taking the trainer's decisions where the interval rule or a grant allows them."""
        if self.grants is None:
            self._round_and_tell(x, op_class, bound, place)
            return
        where = (self._log.step, self._site)
        before, found = x.detach().clone(), len(self.findings)
        granted = self.grants.get(where)
        if granted is None:
            super().inexact(x, op_class, bound, place)
        else:
            self._round_granted(x, op_class, bound, place, granted)
        if len(self.findings) > found and len(self.values) < _MOST_SITES:
            tolerance = self.policy.at(op_class, bound.growth)
            self.values[where] = Values(before, x.detach().clone(), tolerance, self.scale_exp)

    def _round_and_tell(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place, and count what its entries were used for (``verify/bias.py``)."""
        entries = self._log.sites.get(self._site)
        if entries is None or not entries.positions.size:
            super().inexact(x, op_class, bound, place)
            return
        at = entries.positions
        if not are_places(at, x.numel()):
            at = np.unique(at[(at >= 0) & (at < x.numel())])
        before = values_at(x, at)
        super().inexact(x, op_class, bound, place)
        used = values_at(x, at)
        tolerance = self.policy.at(op_class, bound.growth)
        self.uses[op_class].update(asdict(uses(before, used, tolerance, self.scale_exp, self.grid)))

    def _round_granted(
        self, x: Tensor, op_class: OpClass, bound: Bound, place: Place, granted: Mapping[int, float]
    ) -> None:
        entries = self._log.sites.get(self._site)
        result = auditor_round_(x, self.policy.at(op_class, bound.growth), self.grid, entries, False, bound.floor)
        self.scale_exp = result.scale_exp
        flat = x.detach().reshape(-1).clone()  # logical order, whatever the layout
        for position, value in granted.items():
            flat[position] = value
        with torch.no_grad():
            x.copy_(flat.view(x.shape))
        for finding in result.findings:
            if finding.position not in granted:
                self._find(place, str(op_class), finding)
        self._next_site(fingerprint(x), place)

    def plain(self, x: Tensor, place: Place) -> None:
        """Round ``x`` in place without a log."""
        self._expect_no_entry(place)
        super().plain(x, place)

    def note(self, fingerprint: int, place: Place) -> None:
        """Count something that is not rounded as a site."""
        self._expect_no_entry(place)
        super().note(fingerprint, place)

    def _expect_no_entry(self, place: Place) -> None:
        entries = self._log.sites.get(self._site)
        if entries is not None:
            position = int(entries.positions[0]) if entries.positions.size else 0
            self._find(place, "", RoundingFinding("position", position, None, math.nan, math.inf))
