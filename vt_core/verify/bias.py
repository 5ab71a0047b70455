"""Does the log lie within its freedom? A binomial test over the entries of an audit.

Every accepted entry is one of the two roundings that an honest machine could have chosen. Honest hardware takes
another one than the auditor rarely (about E|dx| / 2 tau of the entries); a trainer who steers the weights through
the log flips about half of them or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HONEST_RATE = 0.10
"""Upper bound of the share of entries on which two honest machines disagree, see docs/threat-model.md."""

SIGNIFICANCE = 1e-9
"""An honest trainer is accused by chance less often than this, per op class and audit."""


@dataclass(frozen=True)
class Bias:
    """An op class whose log disagrees with the auditor's own rounding more often than honest hardware does."""

    op_class: str
    entries: int
    disagreements: int
    p_value: float


def biased_class(
    counts: Mapping[str, Mapping[str, Any]],
    honest_rate: float = HONEST_RATE,
    significance: float = SIGNIFICANCE,
) -> Bias | None:
    """Return the op class with the smallest p value below ``significance``, or None.

    ``counts`` maps op class to ``entries`` and ``disagreements``. One-sided exact binomial test of
    H0: rate <= honest_rate.
    """
    from scipy.stats import binom

    worst: Bias | None = None
    for op_class, n in counts.items():
        entries, disagreements = int(n.get("entries", 0)), int(n.get("disagreements", 0))
        if entries == 0 or disagreements == 0:
            continue
        p_value = float(binom.sf(disagreements - 1, entries, honest_rate))
        if p_value < significance and (worst is None or p_value < worst.p_value):
            worst = Bias(op_class, entries, disagreements, p_value)
    return worst
