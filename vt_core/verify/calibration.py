"""Measures how far honest machines differ: what a tolerance policy must cover, and what each choice costs.

One process *records*: it runs a job's first steps, and keeps at each rounding site the rounded values and a sample of
the unrounded ones. On the way it runs reductions again in another order (``permuted.py``) and counts what the logs of
other tolerances would hold (``log_cost.py``). Another process, on other code paths or another device, *compares*: it
runs the same steps, goes on with the recorded rounded values, so that both have the same inputs to the bit at every
operation, and measures how far its own unrounded values are from the recorded ones.

No tolerance decides here, so the measurement does not depend on the policy under test. Where no tolerance applies (an
exact operation, the state's update) both must have the same bits; if they do not, ``parted`` says where, and what was
compared up to there still counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vt_core.engine.cancellation import NORM_ORDER
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.plans import Plan, by_name
from vt_core.engine.rounding import Place, Rounding
from vt_core.engine.scale import Bound
from vt_core.numerics import Grid, OpClass, Tolerance, TolerancePolicy, max_magnitude, round_plain_
from vt_core.numerics.grid import IntArray
from vt_core.numerics.scale import scale_exponent, stepped
from vt_core.training.session import Session
from vt_core.verify.divergence import Measured, divergence
from vt_core.verify.log_cost import LogCost
from vt_core.verify.permuted import permuted_outputs

LARGEST_KEPT = 64  # of a site's elements, the largest magnitudes beside the random sample
_CHUNK = 1 << 20
_SIZES = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}

Progress = Callable[[int], None]
CostTable = dict[tuple[str, str], tuple[OpClass, LogCost]]


@dataclass(frozen=True)
class Calibration:
    """What is run: steps 0 (the initialisation) to ``steps``, ``samples`` random elements a site, and each reduction
    in ``permutations`` other orders.
    """

    steps: int = 3
    samples: int = 4096
    permutations: int = 2
    seed: int = 1


@dataclass(frozen=True)
class Recorded:
    """What the recording process measured: reordered reductions, and the cost of logs in steps 1 to ``steps``."""

    permuted: Measured
    costs: CostTable


@dataclass(frozen=True)
class Compared:
    """What a comparing process measured; ``parted`` (step, site, op, module) where it differs where nothing may."""

    measured: Measured
    parted: tuple[int, int, str, str] | None


class RecordingRounding(Rounding):
    """Rounds without a log, keeps rounded values and samples of unrounded ones, and measures reordered reductions."""

    def __init__(self, grid: Grid, policy: TolerancePolicy, plan: Calibration, folder: Path) -> None:
        super().__init__(grid, policy, True)
        self.plan, self.folder = plan, folder
        self.permuted = Measured()
        self.costs: CostTable = {}
        self.alternatives: list[list[Tensor]] = []  # of the outputs to come, in the order in which they are rounded
        self._step = 0

    def begin_step(self, step: int) -> None:
        """Start step number ``step``."""
        super().begin_step(step)
        self._step = step
        self._samples: list[dict[str, Any]] = []
        self._positions: list[IntArray] = []
        self._values: list[NDArray[Any]] = []
        self._rounded = (self.folder / f"rounded-{step:05d}.bin").open("wb")

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Keep a sample of ``x``, compare it with its alternatives, round it in place and keep the result."""
        op, module = place()
        tolerance = self.policy.at(op_class, bound.growth)
        flat = x.detach().reshape(-1)  # logical order, whatever the layout
        scale = scale_exponent(max(max_magnitude(flat), bound.floor), x.dtype)
        chosen, largest = self._choose(flat)
        positions = np.concatenate([chosen, largest])
        values = _take(flat, positions)
        self._samples.append({"site": self._site, "scale": scale, "random": chosen.size, "count": positions.size})
        self._positions.append(positions)
        self._values.append(values)
        if self._step > 0:
            cost = self.costs.setdefault((op, module), (op_class, LogCost()))[1]
            cost.add(values[: chosen.size], flat.numel(), tolerance, scale, self.grid)
        for other in self.alternatives.pop(0) if self.alternatives else []:
            if other.shape == x.shape and other.dtype == x.dtype:
                self._measure_permuted(flat, other.reshape(-1), chosen, op_class, tolerance, scale, (op, module))
        grid = stepped(self.grid, tolerance, scale)
        self._next_site(round_plain_(x, grid, True), place)
        self._rounded.write(_to_bytes(x, self.grid))

    def end_step(self) -> None:
        """Write the step's samples and the fingerprints of all its sites."""
        self._rounded.close()
        np.savez(
            self.folder / f"samples-{self._step:05d}.npz",
            sites=np.frombuffer(json.dumps(self._samples).encode(), np.uint8),
            positions=np.concatenate(self._positions or [np.empty(0, np.int64)]),
            values=np.concatenate(self._values or [np.empty(0)]),
            prints=np.array(self._prints, np.uint32),
        )

    def _choose(self, flat: Tensor) -> tuple[IntArray, IntArray]:
        """Return the positions of a random sample (ascending), and of the largest magnitudes outside it."""
        numel, wanted = flat.numel(), self.plan.samples
        if numel <= wanted:
            return np.arange(numel, dtype=np.int64), np.empty(0, np.int64)
        generator = np.random.Generator(np.random.Philox(key=[self.plan.seed, (self._step << 32) + self._site]))
        chosen = np.unique(generator.integers(0, numel, wanted))
        magnitude = torch.nan_to_num(flat.abs(), nan=0.0)
        largest = torch.topk(magnitude, min(LARGEST_KEPT, numel)).indices.cpu().numpy()
        return chosen, np.setdiff1d(largest, chosen)

    def _measure_permuted(
        self, x: Tensor, other: Tensor, chosen: IntArray, op_class: OpClass, tolerance: Tolerance, scale: int,
        where: tuple[str, str],
    ) -> None:  # fmt: skip
        found = self.permuted.at(*where, op_class)
        found.elements += x.numel()
        found.compared += x.numel()
        for start in range(0, x.numel(), _CHUNK):  # all elements count for the largest, the sample for the spread
            a, b = (t[start : start + _CHUNK].cpu().numpy() for t in (x, other))
            found.add(*divergence(a, b, tolerance, scale), 0.0)
        sampled = divergence(_take(x, chosen), _take(other, chosen), tolerance, scale)
        found.add(*sampled, x.numel() / chosen.size)


class ComparingRounding(Rounding):
    """Compares unrounded values with the recorded ones and goes on with the recorded rounded ones."""

    def __init__(self, grid: Grid, policy: TolerancePolicy, folder: Path) -> None:
        super().__init__(grid, policy, True)
        self.folder = folder
        self.measured = Measured()
        self.parted: tuple[int, int, str, str] | None = None
        self._step = 0

    def begin_step(self, step: int) -> None:
        """Start step number ``step`` with what was recorded of it."""
        super().begin_step(step)
        self._step = step
        with np.load(self.folder / f"samples-{step:05d}.npz", allow_pickle=False) as stored:
            sites, self._known = json.loads(stored["sites"].tobytes()), stored["prints"]
            ends = np.cumsum([s["count"] for s in sites])[:-1].astype(np.int64)
            parts = (np.split(stored[name], ends) for name in ("positions", "values"))
            self._samples = {s["site"]: (s, *rest) for s, *rest in zip(sites, *parts, strict=False)}
        self._rounded = (self.folder / f"rounded-{step:05d}.bin").open("rb")

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Compare ``x`` with what was recorded at this site, and replace it by the recorded rounded values."""
        recorded = None if self.parted else self._samples.get(self._site)
        stored = b"" if recorded is None else self._rounded.read(_SIZES[self.grid.storage] * x.numel())
        if recorded is not None and len(stored) == _SIZES[self.grid.storage] * x.numel():
            self._compare(x, op_class, self.policy.at(op_class, bound.growth), place, *recorded)
            with torch.no_grad():
                x.copy_(_from_bytes(stored, self.grid).view(x.shape))
        self._next_site(round_plain_(x, self.grid, True), place)

    def end_step(self) -> None:
        """Close the record of the step."""
        self._rounded.close()

    def _next_site(self, fingerprint: int, place: Place) -> None:
        same = self._site < self._known.size and int(self._known[self._site]) == fingerprint & 0xFFFFFFFF
        if not same and self.parted is None:
            self.parted = (self._step, self._site, *place())
        super()._next_site(fingerprint, place)

    def _compare(
        self, x: Tensor, op_class: OpClass, tolerance: Tolerance, place: Place, site: dict[str, Any],
        positions: IntArray, values: Any,
    ) -> None:  # fmt: skip
        found = self.measured.at(*place(), op_class)
        found.elements += x.numel()
        found.compared += positions.size
        own = _take(x.detach().reshape(-1), positions)
        scaled, tolerances = divergence(values, own, tolerance, site["scale"])
        random = site["random"]
        found.add(scaled[:random], tolerances[:random], x.numel() / max(1, random))
        found.add(scaled[random:], tolerances[random:], 0.0)


def record(session: Session, plan: Calibration, folder: Path, progress: Progress | None = None) -> Recorded:
    """Run steps 0 to ``plan.steps`` of the open ``session`` and write into ``folder`` what :func:`compare` needs.

    That is ``grid.storage`` bytes an element, step and inexact operation: 4, or 2 for the 16-bit grids.
    """
    rounding = RecordingRounding(session.grid, session.spec.policy, plan, folder)
    if plan.permutations:
        _permute_reductions(session.mode, rounding)
    for step in range(plan.steps + 1):
        rounding.begin_step(step)
        _run(session, step, rounding)
        rounding.end_step()
        if progress is not None:
            progress(step)
    return Recorded(rounding.permuted, rounding.costs)


def compare(session: Session, plan: Calibration, folder: Path, progress: Progress | None = None) -> Compared:
    """Run in the open ``session`` what :func:`record` left in ``folder``, and measure the divergence."""
    rounding = ComparingRounding(session.grid, session.spec.policy, folder)
    for step in range(plan.steps + 1):
        rounding.begin_step(step)
        _run(session, step, rounding)
        rounding.end_step()
        if progress is not None:
            progress(step)
        if rounding.parted is not None:
            break
    return Compared(rounding.measured, rounding.parted)


def _run(session: Session, step: int, rounding: Rounding) -> None:
    if step == 0:
        session.initialise(rounding)
    else:
        session.run_step(step, rounding)


def _permute_reductions(mode: VerifiedMode, rounding: RecordingRounding) -> None:
    """Make ``mode`` run each contraction and reduction in other orders too, before the operation itself."""
    generator = np.random.Generator(np.random.Philox(key=rounding.plan.seed))

    def treatment(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        others = []
        if not plan.in_place:
            for _ in range(rounding.plan.permutations):
                others.append(permuted_outputs(plan.name, func, by_name(plan, args, kwargs), generator))
        rounding.alternatives = _in_order_of_rounding(plan, [o for o in others if o is not None], mode.compute)
        try:
            return mode.run_inexact(plan, func, args, kwargs)
        finally:
            rounding.alternatives = []

    for op_class in (OpClass.CONTRACTION, OpClass.REDUCTION):
        mode.treatments.setdefault(op_class, treatment)  # exact contractions stay as they are: they need no log


def _in_order_of_rounding(plan: Plan, others: list[list[Any]], compute: torch.dtype) -> list[list[Tensor]]:
    if not others:
        return []
    order = NORM_ORDER.get(plan.name, range(len(others[0])))
    rounded = [i for i in order if isinstance(t := others[0][i], Tensor) and t.dtype is compute and t.numel()]
    return [[other[i] for other in others] for i in rounded]


def _take(flat: Tensor, positions: IntArray) -> NDArray[Any]:
    values: NDArray[Any] = flat[torch.from_numpy(positions).to(flat.device)].cpu().numpy()
    return values


def _to_bytes(x: Tensor, grid: Grid) -> bytes:
    """Return grid values as raw bytes of the grid's storage dtype, row-major."""
    stored = x.detach().cpu().contiguous().view(-1).to(grid.storage)
    return stored.view(torch.uint8).numpy().tobytes()


def _from_bytes(data: bytes, grid: Grid) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(grid.storage)
