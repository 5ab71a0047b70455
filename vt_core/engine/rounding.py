"""What happens at a rounding site: the trainer logs, the auditor checks, a dry run only rounds.

A *site* is one tensor rounded in one step, numbered in the order of execution. The dispatch mode calls
``inexact`` for outputs of inexact operations and ``plain`` for results that are equal on every machine and only
have to be put on the grid.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from vt_core.engine.rounding_log import StepLog
from vt_core.engine.scale import Bound
from vt_core.numerics import (
    Grid,
    OpClass,
    RoundingFinding,
    SiteEntries,
    TolerancePolicy,
    auditor_round_,
    round_plain_,
    trainer_round_,
)

Place = Callable[[], tuple[str, str]]  # -> (operation, module), asked only when something is found


@dataclass
class ClassCounts:
    """Counts for one op class: elements rounded, elements logged, and what the auditor saw of them."""

    elements: int = 0
    entries: int = 0
    disagreements: int = 0
    max_distance: float = 0.0  # largest certain divergence over tolerance

    def add(self, other: ClassCounts) -> None:
        """Add the counts of another step or segment."""
        self.elements += other.elements
        self.entries += other.entries
        self.disagreements += other.disagreements
        self.max_distance = max(self.max_distance, other.max_distance)


@dataclass(frozen=True)
class SiteFinding:
    """A finding of the auditor at one site; ``rounding`` is None where only the fingerprints differ."""

    site: int
    op: str
    module: str
    op_class: str
    rounding: RoundingFinding | None


@dataclass
class Counters:
    """Counts per op class over the life of a strategy; ``plain`` counts log-free roundings."""

    by_class: dict[OpClass, ClassCounts] = field(default_factory=lambda: {c: ClassCounts() for c in OpClass})
    plain: int = 0


class Rounding(ABC):
    """A strategy for rounding sites. ``begin_step`` and ``end_step`` frame each step."""

    def __init__(self, grid: Grid, policy: TolerancePolicy, fingerprints: bool) -> None:
        self.grid, self.policy, self.fingerprints = grid, policy, fingerprints
        self.counters = Counters()
        self._prints = array("I")
        self._words = array("Q")
        self._site = 0

    def begin_step(self, step: int) -> None:
        """Start step number ``step``."""
        self._prints = array("I")
        self._words = array("Q")
        self._site = 0

    @property
    def words(self) -> bytes:
        """The 64-bit fingerprints of the step's sites so far, little-endian, in the order of execution.

        Their high halves are in no file: who knows them has run the step (``evidence/work.py``).
        """
        return self._words.tobytes()

    @abstractmethod
    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place with the interval rule; ``bound``: what the tolerance depends on beside the class."""

    def plain(self, x: Tensor, place: Place) -> None:
        """Round ``x`` in place without a log: its value is the same on every machine."""
        self.counters.plain += x.numel()
        self._next_site(round_plain_(x, self.grid, True), place)

    def note(self, fingerprint: int, place: Place) -> None:
        """Count as a site what is not rounded here: the input batch, or a tensor that its operation put on the grid.

        ``fingerprint`` has up to 64 bits.
        """
        self._next_site(fingerprint, place)

    def _next_site(self, fingerprint: int, place: Place) -> None:
        if self.fingerprints:
            self._prints.append(fingerprint & 0xFFFFFFFF)
        self._words.append(fingerprint)
        self._site += 1


class DryRounding(Rounding):
    """Round without a log: for rebuilding a model whose values are loaded afterwards."""

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place."""
        round_plain_(x, self.grid, False)

    def plain(self, x: Tensor, place: Place) -> None:
        """Round ``x`` in place; nobody asks for its fingerprint."""
        round_plain_(x, self.grid, False)


class TrainerRounding(Rounding):
    """Round and log what could go either way."""

    def begin_step(self, step: int) -> None:
        """Start step number ``step`` with an empty log."""
        super().begin_step(step)
        self._step = step
        self._sites: dict[int, SiteEntries] = {}

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place and log the elements that another honest machine may round differently."""
        tolerance = self.policy.at(op_class, bound.growth)
        result = trainer_round_(x, tolerance, self.grid, True, bound.floor)
        counts = self.counters.by_class[op_class]
        counts.elements += x.numel()
        if result.entries is not None:
            counts.entries += len(result.entries.positions)
            self._sites[self._site] = result.entries
        self._next_site(result.fingerprint, place)

    def end_step(self) -> StepLog:
        """Return the log of the step."""
        return StepLog(self._step, self._sites, np.array(self._prints, dtype=np.uint32))


class AuditorRounding(Rounding):
    """Round with the trainer's log and collect findings; never stops, never trusts."""

    MAX_FINDINGS = 32
    scale_exp = 0
    """The exponent ``e`` that was used at the last inexact site."""

    def begin_replay(self, log: StepLog) -> None:
        """Start replaying the step that ``log`` belongs to."""
        super().begin_step(log.step)
        self._log = log
        self.findings: list[SiteFinding] = []
        self._located = False

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place, taking the trainer's decisions where the interval rule allows them."""
        tolerance = self.policy.at(op_class, bound.growth)
        entries = self._log.sites.get(self._site)
        result = auditor_round_(x, tolerance, self.grid, entries, True, bound.floor)
        self.scale_exp = result.scale_exp
        counts = self.counters.by_class[op_class]
        counts.elements += x.numel()
        counts.entries += result.entries
        counts.disagreements += result.disagreements
        counts.max_distance = max(counts.max_distance, result.max_distance)
        for finding in result.findings:
            self._find(place, str(op_class), finding)
        self._next_site(result.fingerprint, place)

    def _next_site(self, fingerprint: int, place: Place) -> None:
        prints = self._log.fingerprints
        known = self._site < len(prints)
        same = known and int(prints[self._site]) == fingerprint & 0xFFFFFFFF
        if self.fingerprints and not self._located and not same:
            self._located = True  # everything after the first difference follows from it
            self._find(place, "", None)
        super()._next_site(fingerprint, place)

    def end_replay(self) -> None:
        """Entries for sites that the replay never reached are a finding too."""
        beyond = [site for site in self._log.sites if site >= self._site]
        if beyond:
            finding = RoundingFinding("position", 0, None, float("nan"), float("inf"))
            self._find(lambda: ("(no such site)", ""), "", finding, site=min(beyond))

    def _find(self, place: Place, op_class: str, finding: RoundingFinding | None, site: int | None = None) -> None:
        if len(self.findings) < self.MAX_FINDINGS:
            op, module = place()
            where = self._site if site is None else site
            self.findings.append(SiteFinding(where, op, module, op_class, finding))
