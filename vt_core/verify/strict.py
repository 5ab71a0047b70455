"""The auditor's rounding strategy, and one rule more: a log holds entries only where something is decided.

Sites that need no log (results that are equal on every machine, the input batch) ignore entries, so an entry there
could not move anything. It is still a finding: no honest trainer writes it, and a log must have one form.
"""

from __future__ import annotations

import math

from torch import Tensor

from vt_core.engine.rounding import AuditorRounding, Place
from vt_core.numerics import RoundingFinding


class StrictRounding(AuditorRounding):
    """An :class:`AuditorRounding` that finds entries at sites which take none."""

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
