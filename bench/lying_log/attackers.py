"""Trainers that round as they like within the interval rule, and log what they did.

Each is a :class:`TrainerRounding`: the honest code writes the evidence. None leaves the accepted window, so a replay
finds nothing; only statistics over the log can.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.lying_log.compass import Directions, Objective, directions
from bench.lying_log.freedom import Bools, Doubles, Freedom, entries_for, freedom
from vt_core.engine.rounding import Place, Rounding, TrainerRounding
from vt_core.engine.scale import Bound
from vt_core.numerics import Grid, OpClass, TolerancePolicy, fingerprint, max_magnitude, round_plain_, trainer_round_
from vt_core.numerics.scale import absolute_part, scale_exponent
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session, StepOutcome
from vt_core.training.spec import RunSpec
from vt_core.verify.bias import most_flips, most_pushed

BACKWARD = " (backward)"


class OtherMachine(TrainerRounding):
    """No liar: an honest trainer on imagined hardware whose values differ by up to ``reach`` tolerances, uniformly.

    Far more than was ever measured between two real machines. What has at most one bit more than the grid stays: it was
    computed exactly (a sum of two grid values, which lies on a tie every other time), as on every machine.
    """

    reach = 0.3

    def __init__(self, grid: Grid, policy: TolerancePolicy, fingerprints: bool, seed: int = 0) -> None:
        super().__init__(grid, policy, fingerprints)
        self.random = np.random.Generator(np.random.PCG64(seed))

    def join(self, honest: TrainerRounding) -> None:
        """Write into the log, counters and fingerprints of the trainer's own strategy."""
        vars(self).update(vars(honest))

    def start(self, session: Session, step: int) -> None:
        """Look ahead before a step; nothing by default."""

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Disturb ``x`` as other hardware might, and round it honestly."""
        tolerance = self.policy.at(op_class, bound.growth)
        scale = scale_exponent(max(max_magnitude(x), bound.floor), x.dtype)
        tau = x.detach().abs() * tolerance.rtol + absolute_part(scale, tolerance)
        noise = torch.from_numpy(self.random.uniform(-self.reach, self.reach, tuple(x.shape))).to(x.dtype)
        exact = x.detach().clone()
        round_plain_(exact, dataclasses.replace(self.grid, precision=self.grid.precision + 1), False)
        alike = (exact == x.detach()) & ((x.detach() == 0) | (x.detach().abs() > tau))  # below tau it may be noise
        x.copy_(torch.where(alike, x.detach(), x.detach() + noise * tau))
        super().inexact(x, op_class, bound, place)


class Liar(OtherMachine):
    """Base of all attackers: asks ``wanted`` for a direction and takes the end of the window that lies there.

    ``pads`` logs every element that an auditor accepts, needed or not. ``limit`` names the tests that the liar hides
    from: None, "entries" (one over all entries) or "uses" (those of ``vt_core/verify/bias.py``).
    """

    pads = False
    limit: str | None = None
    sign = 1.0  # -1 to move against what is wanted, which tells a purpose from chance

    def __init__(self, grid: Grid, policy: TolerancePolicy, fingerprints: bool, seed: int = 0) -> None:
        super().__init__(grid, policy, fingerprints, seed)
        self.seen_entries: Counter[tuple[OpClass, str]] = Counter()
        self.spent: Counter[tuple[OpClass, str]] = Counter()

    def wanted(self, free: Freedom, shape: torch.Size, op_class: OpClass, place: Place) -> Doubles | None:
        """Return how much each free element is worth, by sign the direction to move in (float64); None: leave all."""
        raise NotImplementedError

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place, honestly first and then as wanted."""
        tolerance = self.policy.at(op_class, bound.growth)
        before = x.detach().clone()
        result = trainer_round_(x, tolerance, self.grid, True, bound.floor)
        counts = self.counters.by_class[op_class]
        counts.elements += x.numel()
        free = freedom(before, x, result.entries, tolerance, bound.floor, self.grid)
        worth = self.wanted(free, x.shape, op_class, place)
        chosen, flipped = self._choose(free, worth, op_class)
        logged: Bools = free.honest | flipped
        if self.pads:
            logged = np.ones_like(logged)
        entries = entries_for(free, logged, chosen, tolerance, self.grid)
        entries = result.entries if entries is None else entries  # a site may have to name its scale
        if entries is not None:
            counts.entries += len(entries.positions)
            self._sites[self._site] = entries
        if flipped.any():
            flat = x.detach().reshape(-1).clone()
            flat[torch.from_numpy(free.positions[flipped])] = torch.from_numpy(chosen[flipped]).to(x.dtype)
            x.copy_(flat.view(x.shape))
        self._next_site(fingerprint(x), place)

    def _choose(self, free: Freedom, worth: Doubles | None, op_class: OpClass) -> tuple[Doubles, Bools]:
        worth = np.zeros(free.own.size) if worth is None else self.sign * worth
        target = np.where(worth > 0, free.high, np.where(worth < 0, free.low, free.own))
        flipped: Bools = target != free.own
        gain = np.abs(worth * (target - free.own))
        if self.limit == "entries":
            count = free.positions.size if self.pads else int(free.honest.sum())
            flipped = self._afford(flipped, gain, (op_class, "entries"), count)
        elif self.limit == "uses":
            decisions = self._afford(flipped & free.decides, gain, (op_class, "decisions"), int(free.decides.sum()))
            flipped = decisions | self._afford(flipped & free.fine, gain, (op_class, "fine"), int(free.fine.sum()))
        return np.where(flipped, target, free.own), flipped

    def _afford(self, flipped: Bools, gain: Doubles, pool: tuple[OpClass, str], count: int) -> Bools:
        """Keep the best flips that a test over a pool of entries does not notice; ``count`` more are seen here."""
        self.seen_entries[pool] += count
        budget = most_pushed if pool[1] == "fine" else most_flips  # a fine flip pushes by one tolerance at most
        left = max(0, int(budget(self.seen_entries[pool])) - self.spent[pool])
        at = np.flatnonzero(flipped)
        if at.size > left:
            best = at[np.argsort(-gain[at], kind="stable")[:left]]
            flipped = np.zeros_like(flipped)
            flipped[best] = True
        self.spent[pool] += int(flipped.sum())
        return flipped


class OneDirection(Liar):
    """Rounds everything up that it may."""

    def wanted(self, free: Freedom, shape: torch.Size, op_class: OpClass, place: Place) -> Doubles | None:
        """Up."""
        return np.ones(free.own.size)


class Coins(Liar):
    """The control: as many flips as a steering attacker, without a purpose."""

    def wanted(self, free: Freedom, shape: torch.Size, op_class: OpClass, place: Place) -> Doubles | None:
        """Up or down by a coin."""
        signs: Doubles = np.where(self.random.random(free.own.size) < 0.5, -1.0, 1.0)
        return signs


class GradientSign(Liar):
    """Moves every value in the direction that lowers an objective after the update (see ``compass``)."""

    only: str | None = None  # a module path: touch nothing else

    def __init__(
        self, grid: Grid, policy: TolerancePolicy, fingerprints: bool, objective: Objective, only: str | None = None
    ) -> None:
        super().__init__(grid, policy, fingerprints)
        self.objective, self.only = objective, only
        self.compass = Directions()
        self.seen: Counter[Any] = Counter()

    def start(self, session: Session, step: int) -> None:
        """Find the directions of the step."""
        self.compass, self.seen = directions(session, step, self.objective), Counter()

    def wanted(self, free: Freedom, shape: torch.Size, op_class: OpClass, place: Place) -> Doubles | None:
        """Along the compass, nothing where it knows no direction."""
        _, where = place()
        module, backward = where.removesuffix(BACKWARD), where.endswith(BACKWARD)
        if self.only is not None and module != self.only:
            return None
        key = (module, backward, tuple(shape))
        direction = self.compass.of(module, backward, shape, self.seen[key])
        self.seen[key] += 1
        if direction is None:
            return None
        worth: Doubles = direction.detach().reshape(-1).to(torch.float64).cpu().numpy()[free.positions]
        return worth


class Padded(GradientSign):
    """Logs everything that is accepted, to dilute its rate in a test over all entries, and spends what that allows."""

    pads = True
    limit = "entries"


class BelowEntries(GradientSign):
    """As many flips as a test over all entries lets pass, without padding."""

    limit = "entries"


class BelowBoth(GradientSign):
    """As much as the tests over decisions and over fine entries let pass; padding would not help."""

    limit = "uses"


class FineOnly(GradientSign):
    """Moves only values near zero, where the grid is finer than the tolerance, which no test over decisions sees."""

    def wanted(self, free: Freedom, shape: torch.Size, op_class: OpClass, place: Place) -> Doubles | None:
        """Along the compass, but no decisions."""
        worth = super().wanted(free, shape, op_class, place)
        return None if worth is None else np.where(free.decides, 0.0, worth)


class LyingSession(Session):
    """A session whose training steps are rounded by ``liar``; the initialisation is the usual one."""

    liar: OtherMachine

    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        """Run a step under the liar's strategy, which writes the log that the honest code publishes."""
        if not isinstance(rounding, TrainerRounding):
            return super().run_step(step, rounding)
        self.liar.join(rounding)
        self.liar.start(self, step)
        return super().run_step(step, self.liar)


def lying(spec: RunSpec, job: Job, dataset: Dataset, liar: OtherMachine | None) -> Session:
    """Return a session that lies by ``liar``, or an honest one."""
    if liar is None:
        return Session(spec, job, dataset)
    session = LyingSession(spec, job, dataset)
    session.liar = liar
    return session
