"""What the interval rule takes and returns: log entries, findings and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MAX_FINDINGS = 16

FindingKind = Literal["implausible", "scale", "position"]


@dataclass(slots=True)
class SiteEntries:
    """The logged rounding decisions of one rounding site in one step.

    ``positions`` are row-major element indexes (int64, ascending). Entry ``j`` is either a parity entry, with
    ``parity[j]`` (uint8) the parity of the last place of the rounded value, or a full entry: ``full_index``
    (int64, ascending) lists the entries that are full and ``full_values`` (float32) their values; ``parity``
    is 0 there. ``scale_exp`` is the exponent ``e`` of tau.
    """

    scale_exp: int | None
    positions: NDArray[np.int64]
    parity: NDArray[np.uint8]
    full_index: NDArray[np.int64]
    full_values: NDArray[np.float32]

    @staticmethod
    def empty(scale_exp: int | None) -> SiteEntries:
        """Return a site without entries, which may still name its exponent."""
        return SiteEntries(
            scale_exp,
            np.empty(0, np.int64),
            np.empty(0, np.uint8),
            np.empty(0, np.int64),
            np.empty(0, np.float32),
        )

    def __eq__(self, other: object) -> bool:
        # Values are compared as bits: NaN equals itself and -0 differs from +0.
        return (
            isinstance(other, SiteEntries)
            and self.scale_exp == other.scale_exp
            and np.array_equal(self.positions, other.positions)
            and np.array_equal(self.parity, other.parity)
            and np.array_equal(self.full_index, other.full_index)
            and self.full_values.tobytes() == other.full_values.tobytes()
        )


@dataclass(slots=True)
class TrainerResult:
    """``entries`` is None if nothing need be written; ``fingerprint`` is 0 if it was not wanted."""

    entries: SiteEntries | None
    fingerprint: int


@dataclass(frozen=True, slots=True)
class RoundingFinding:
    """A log entry that no honest trainer writes, if assumption A holds.

    ``distance`` is the least ``|x - x'| / tau`` at which the entry would be what the rule demands, ``x'``
    being the auditor's value: how far assumption A must have been missed for the trainer to be honest (inf if
    no distance explains it or it cannot be computed). ``trainer_value`` is None for a parity entry that fits
    no value, and the claimed exponent for kind "scale", whose position is -1.
    """

    kind: FindingKind
    position: int
    trainer_value: float | None
    auditor_value: float
    distance: float


@dataclass(slots=True)
class AuditorResult:
    """What the auditor found at one site.

    ``findings`` keeps the first 16, ``finding_count`` counts all. ``entries`` counts the accepted entries,
    ``disagreements`` those of them whose value is not the auditor's own rounding, and ``max_distance`` is the
    largest distance, in tau, from the auditor's value to the rounding boundary that the trainer's value lay
    beyond. ``scale_exp`` is the exponent ``e`` that was used.
    """

    fingerprint: int = 0
    findings: list[RoundingFinding] = field(default_factory=list)
    finding_count: int = 0
    entries: int = 0
    disagreements: int = 0
    max_distance: float = 0.0
    scale_exp: int = 0

    def add(self, finding: RoundingFinding) -> None:
        """Count a finding and keep it if it is among the first."""
        self.finding_count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
