"""Trainers that cheat: each does something else than was agreed and publishes evidence that looks honest.

A cheat is a session, since a session is all that a trainer runs: its evidence is then written by the honest code, with
the agreed spec's digest in the log's header, chained and sealed like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.rounding import DryRounding, Place, Rounding, TrainerRounding
from vt_core.engine.scale import Bound
from vt_core.numerics import Grid, OpClass, SiteEntries, Tolerance, fingerprint, max_magnitude, round_plain_
from vt_core.numerics.grid import lattice_index
from vt_core.numerics.scale import absolute_part, scale_exponent, stepped
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session, StepOutcome
from vt_core.training.spec import RunSpec
from vt_core.training.state import State, StateDigest, digest


def disguise(spec: RunSpec, **changes: Any) -> RunSpec:
    """Return ``spec`` with other values under the agreed spec's digest."""
    agreed = spec.digest()
    kind = type("DisguisedSpec", (RunSpec,), {"digest": lambda self: agreed})
    plain = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    disguised: RunSpec = kind(**{**plain, **changes})
    return disguised


class DatasetWith(Dataset):
    """The agreed dataset, but with every batch passed through ``change(indices, batch)``."""

    def __init__(self, honest: Dataset, change: Callable[[Any, dict[str, Any]], dict[str, Any]]) -> None:
        self.honest, self.change = honest, change

    def __len__(self) -> int:
        return len(self.honest)

    def batch(self, indices: Any, stream: Any) -> dict[str, Any]:
        return self.change(indices, {n: a.copy() for n, a in self.honest.batch(indices, stream).items()})

    def manifest(self) -> dict[str, str]:
        return self.honest.manifest()


class AtStep(Session):
    """Does something of its own at one step; honest at all others."""

    step = 3

    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        return self.cheat(step, rounding) if step == self.step else super().run_step(step, rounding)

    def honest(self, step: int, rounding: Rounding) -> StepOutcome:
        return Session.run_step(self, step, rounding)

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        raise NotImplementedError


class DropsStep(AtStep):
    """Runs the step for its log and trace and throws its result away."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        before = self.capture(step - 1)
        outcome = self.honest(step, rounding)
        keep = self.mode.trace.digest()
        self.restore(before)
        return StepOutcome(outcome.loss, keep, outcome.operations)


class DoublesStep(AtStep):
    """Trains twice on the batch of one step."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        self.honest(step, DryRounding(self.grid, self.spec.policy, False))
        return self.honest(step, rounding)


class ResetsMomentum(AtStep):
    """Forgets the momentum before one step."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        assert self.optimizer is not None
        for values in self.optimizer.state.values():
            values["momentum_buffer"].zero_()
        return self.honest(step, rounding)


class TampersStatistics(AtStep):
    """Doubles a running variance after one step."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        outcome = self.honest(step, rounding)
        with torch.no_grad():
            self.model.get_buffer("norm1.running_var").mul_(2.0)
        return outcome


class DriftsOneUlp(AtStep):
    """Moves one weight by one unit in its last place after one step."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        outcome = self.honest(step, rounding)
        with torch.no_grad():
            weight = self.model.get_parameter("linear.weight").view(-1)
            value = weight[5].to(torch.float32)
            weight[5] = torch.nextafter(value, torch.tensor(torch.inf, dtype=torch.float32)).to(weight.dtype)
        return outcome


class ChangesRate(AtStep):
    """Takes one step with a learning rate that is one part in a million higher."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        return self.with_setting("lr", lambda rate: rate * (1 + 1e-6), step, rounding)

    def with_setting(self, name: str, change: Callable[[Any], Any], step: int, rounding: Rounding) -> StepOutcome:
        """Run one step with another optimizer setting, and put the agreed one back before anybody looks."""
        assert self.optimizer is not None
        agreed = [group[name] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group[name] = change(group[name])
        outcome = self.honest(step, rounding)
        for group, value in zip(self.optimizer.param_groups, agreed, strict=True):
            group[name] = value
        return outcome


class LooksAhead(ChangesRate):
    """Takes one step with Nesterov momentum: one operation more than agreed."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        return self.with_setting("nesterov", lambda _: True, step, rounding)


class SwapsOrder(Session):
    """Exchanges the batches of steps 3 and 4."""

    def __init__(self, spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu") -> None:
        super().__init__(spec, job, dataset, device)
        honest = self.sampler.indices
        self.sampler.indices = lambda step: honest({3: 4, 4: 3}.get(step, step))  # type: ignore[method-assign]


class ReplacesWeights(Session):
    """Publishes other weights than it trained at the end of segment 2 (step 4); the leaf is consistent with them."""

    def capture(self, step: int) -> State:
        state = super().capture(step)
        if step != 4:
            return state
        weight = state.tensors["param.linear.weight"]
        return State(step, {**state.tensors, "param.linear.weight": weight.flip(0).contiguous()}, state.scalars)

    def digest(self, step: int) -> StateDigest:
        return digest(self.capture(step))


class TrainsInFloat32(AtStep):
    """Computes one step in plain float32, without the engine, and publishes log and trace of an honest step."""

    def cheat(self, step: int, rounding: Rounding) -> StepOutcome:
        before = self.capture(step - 1)
        outcome = self.honest(step, rounding)
        trace = self.mode.trace.digest()
        self.restore(before)
        assert self.optimizer is not None
        self.model.float()
        for values in self.optimizer.state.values():
            values["momentum_buffer"] = values["momentum_buffer"].float()
        stream = self.streams.stream("augment", epoch=self.sampler.epoch(step), step=step)
        arrays = self.dataset.batch(self.sampler.indices(step), stream)
        batch = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
        self.optimizer.zero_grad(set_to_none=True)
        self.job.loss(self.model, batch).backward()
        self.optimizer.step()
        self.model.double()
        for values in self.optimizer.state.values():
            values["momentum_buffer"] = values["momentum_buffer"].double()
        return StepOutcome(outcome.loss, trace, outcome.operations)


class Steered(Rounding):
    """Rounds and logs as an honest trainer does, and then lets ``steer`` change what was rounded and logged."""

    def __init__(self, inner: TrainerRounding, classes: frozenset[OpClass], share: float, seed: int = 0) -> None:
        super().__init__(inner.grid, inner.policy, inner.fingerprints)
        self.inner, self.classes, self.share = inner, classes, share
        self._random = np.random.Generator(np.random.PCG64(seed))

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        before = x.detach().clone()
        site = self.inner._site
        self.inner.inexact(x, op_class, bound, place)
        if op_class in self.classes:
            changed = self.steer(before, x, self.inner._sites.get(site), self.policy.at(op_class, bound.growth))
            if changed is not None:
                self.inner._sites[site] = changed
                self.inner._words[site] = fingerprint(x)
                if self.fingerprints:
                    self.inner._prints[site] = fingerprint(x) & 0xFFFFFFFF

    def steer(self, before: Tensor, x: Tensor, entries: SiteEntries | None, tolerance: Tolerance) -> SiteEntries | None:
        """Flip a share of the logged roundings to the other neighbour, which an auditor cannot refuse."""
        if entries is None or not entries.positions.size:
            return None
        chosen = self._random.random(entries.positions.size) < self.share
        flat = x.detach().reshape(-1)  # logical order; a copy where x is not contiguous
        where = torch.from_numpy(entries.positions)
        wide = before.reshape(-1)[where]
        scale = int(entries.scale_exp or 0)
        tau, grid = wide.abs() * tolerance.rtol + absolute_part(scale, tolerance), stepped(self.grid, tolerance, scale)
        low, high = wide - tau, wide + tau
        for edge in (low, high):
            round_plain_(edge, grid, False)
        own = flat[where]
        other = torch.where(own == high, low, high)
        taken = torch.where(torch.from_numpy(chosen) & (other != own), other, own)
        flat = flat.clone()
        flat[where] = taken
        x.copy_(flat.view(x.shape))
        return relabelled(entries, taken.double().numpy(), grid)

    def plain(self, x: Tensor, place: Place) -> None:
        self.inner.plain(x, place)

    def note(self, fingerprint: int, place: Place) -> None:
        self.inner.note(fingerprint, place)


def relabelled(entries: SiteEntries, values: Any, grid: Grid) -> SiteEntries:
    """Return ``entries`` that name ``values`` (float64, one for each entry)."""
    parity = (lattice_index(values, grid) & 1).astype(np.uint8)
    parity[entries.full_index] = 0
    return dataclasses.replace(entries, parity=parity, full_values=values[entries.full_index].astype(np.float32))


class ClaimsFloat32(Steered):
    """Adds the errors of float32 arithmetic to every value and logs each element that came out differently."""

    def steer(self, before: Tensor, x: Tensor, entries: SiteEntries | None, tolerance: Tolerance) -> SiteEntries | None:
        honest = x.detach().reshape(-1).clone()
        noise = torch.from_numpy(self._random.uniform(-1, 1, honest.numel())) * 2.0**-23
        claimed = before.reshape(-1) * (1.0 + noise)
        round_plain_(claimed, self.grid, False)
        moved = torch.nonzero(claimed != honest).view(-1).numpy().astype(np.int64)
        if not moved.size:
            return None
        x.copy_(claimed.view(x.shape))
        scale = entries.scale_exp if entries is not None else int(np.frexp(float(before.abs().max()))[1])
        full = np.arange(moved.size, dtype=np.int64)
        values = claimed[torch.from_numpy(moved)].numpy().astype(np.float32)
        return SiteEntries(scale, moved, np.zeros(moved.size, np.uint8), full, values)


class Excuses(Steered):
    """Changes no rounding, but at one element near a boundary gives the fingerprint that the other rounding would have.

    An auditor who believed fingerprints would take that for a tolerance that is too narrow, whatever comes after it.
    """

    done = False

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        before, site = x.detach().clone().reshape(-1), self.inner._site
        self.inner.inexact(x, op_class, bound, place)
        if self.done or site in self.inner._sites:
            return
        tolerance = self.policy.at(op_class, bound.growth)
        scale = scale_exponent(max(max_magnitude(before), bound.floor), before.dtype)
        reach, grid = 16 * absolute_part(scale, tolerance), stepped(self.grid, tolerance, scale)
        low, high = before - reach, before + reach
        for edge in (low, high):
            round_plain_(edge, grid, False)
        near = torch.nonzero(low != high).view(-1)
        if near.numel():
            other = x.detach().reshape(-1).clone()
            i = near[0]
            other[i] = low[i] if other[i] == high[i] else high[i]
            self.inner._prints[site] = fingerprint(other) & 0xFFFFFFFF
            self.done = True


def steering(kind: type[Steered], classes: frozenset[OpClass], share: float, first: int = 1) -> type[Session]:
    """Return a session whose roundings are steered from step ``first`` on."""

    class SteeringSession(Session):
        def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
            if step < first:
                return super().run_step(step, rounding)
            assert isinstance(rounding, TrainerRounding)
            return super().run_step(step, kind(rounding, classes, share, seed=step))

    return SteeringSession
