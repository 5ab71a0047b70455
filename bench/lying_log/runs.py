"""Train a run in this process, honestly or not, audit it with the real auditor, and compare where it ended."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.lying_log.attackers import OtherMachine, lying
from vt_core.engine.rounding import Place, Rounding
from vt_core.engine.scale import Bound
from vt_core.evidence.merkle import root
from vt_core.evidence.records import SegmentRecord
from vt_core.numerics import OpClass, max_magnitude
from vt_core.numerics.scale import scale_exponent
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.job import Dataset, Job
from vt_core.training.segment import train_segment
from vt_core.training.session import Session, StepOutcome
from vt_core.training.spec import RunSpec
from vt_core.verify.bias import Bias, Uses, biased_class, uses
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.replay import replay_segment
from vt_core.verify.strict import StrictRounding
from vt_core.verify.verdict import SegmentResult

Counts = dict[str, dict[str, Any]]


@dataclass
class Published:
    """A run in a folder: one folder for each segment, and their records."""

    folder: Path
    records: list[SegmentRecord] = field(default_factory=list)

    def segment(self, index: int) -> Path:
        """Return the folder of a segment's files."""
        return self.folder / f"segment-{index:05d}"

    def final(self) -> dict[str, Tensor]:
        """Return the tensors of the last checkpoint."""
        return load_checkpoint(self.segment(len(self.records) - 1)).tensors

    def save_records(self) -> None:
        """Write the records, for an auditor in another process."""
        for record in self.records:
            (self.folder / f"{record.index:05d}.json").write_bytes(record.to_bytes())


def train(spec: RunSpec, job: Job, dataset: Dataset, folder: Path, liar: OtherMachine | None) -> Published:
    """Train and publish a whole run under ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    session = lying(spec, job, dataset, liar)
    run, state = Published(folder), None
    with session.open():
        for index in range(spec.segment_count):
            segment = train_segment(session, index, state, run.segment(index))
            state = segment.state
            hashes = [leaf.hash() for leaf in segment.leaves]
            first, last = spec.segment_range(index)
            run.records.append(
                SegmentRecord(
                    run_id="lying-log", spec=spec.digest(), index=index, first_step=first, last_step=last,
                    previous=run.records[-1].digest() if run.records else None, files=segment.files,
                    leaves=[h.hex() for h in hashes], root=root(hashes).hex(), pointer={},
                )
            )  # fmt: skip
    return run


class CountingRounding(StrictRounding):
    """The auditor's strategy, which also counts what entries were used for (``vt_core/verify/bias.py``)."""

    found: dict[OpClass, list[Uses]]

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        """Round ``x`` in place and look at the entries before and after."""
        entries = self._log.sites.get(self._site)
        if entries is None or not entries.positions.size:
            super().inexact(x, op_class, bound, place)
            return
        where = torch.from_numpy(entries.positions)
        before, scale = x.detach().reshape(-1)[where], entries.scale_exp  # indexing copies
        if scale is None:
            scale = scale_exponent(max(max_magnitude(x), bound.floor), x.dtype)
        super().inexact(x, op_class, bound, place)
        used = x.detach().reshape(-1)[where].to(torch.float64)
        tolerance = self.policy.at(op_class, bound.growth)
        found = uses(before.cpu().numpy(), used.cpu().numpy(), tolerance, scale, self.grid)
        self.found[op_class].append(found)


class CountingSession(Session):
    """The auditor's session: replays under :class:`CountingRounding`."""

    def __init__(self, spec: RunSpec, job: Job, dataset: Dataset) -> None:
        super().__init__(spec, job, dataset)
        self.found: dict[OpClass, list[Uses]] = {c: [] for c in OpClass}

    def initialise(self, rounding: Rounding) -> StepOutcome:
        """Replay step 0."""
        return self._counted(super().initialise, rounding)

    def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
        """Replay a training step."""
        return self._counted(lambda counting: super(CountingSession, self).run_step(step, counting), rounding)

    def _counted(self, run: Callable[[Rounding], StepOutcome], rounding: Rounding) -> StepOutcome:
        """Run under a counting strategy; the caller's one is left as if it had done it."""
        if type(rounding) is not StrictRounding or rounding.grants is not None:
            return run(rounding)
        counting = CountingRounding(self.grid, self.spec.policy, self.spec.fingerprints)
        vars(counting).update(vars(rounding))
        counting.found = self.found
        outcome = run(counting)
        vars(rounding).update({name: value for name, value in vars(counting).items() if name != "found"})
        return outcome


def audit(spec: RunSpec, job: Job, dataset: Dataset, run: Published) -> tuple[list[SegmentResult], Counts]:
    """Replay every segment; return the results and the counts per op class, with their uses."""
    limits = AuditorLimits.default()
    session = CountingSession(spec, job, dataset)
    results: list[SegmentResult] = []
    with session.open():
        for record in run.records:
            start = None
            if record.index:
                start = (run.records[record.index - 1], run.segment(record.index - 1))
            results.append(replay_segment(session, record, run.segment(record.index), start, limits))
    counts: Counts = {}
    for c in OpClass:
        seen = [r.counts[c] for r in results]
        counts[str(c)] = {key: sum(n[key] for n in seen) for key in ("elements", "entries", "disagreements")} | {
            **{f.name: sum(getattr(u, f.name) for u in session.found[c]) for f in dataclasses.fields(Uses)},
            "max_distance": max(float(n["max_distance"]) for n in seen),
        }
    return results, counts


def entries_only(counts: Mapping[str, Mapping[str, Any]]) -> Counts:
    """Return counts as an auditor sees them who does not tell entries apart."""
    return {name: {k: n[k] for k in ("elements", "entries", "disagreements")} for name, n in counts.items()}


@dataclass(frozen=True)
class Outcome:
    """What one attacker got: counts, both tests, and how far it moved the model from the honest run."""

    case: str
    attacker: str
    plausible: bool
    counts: Counts
    by_entries: Bias | None
    by_uses: Bias | None
    l2: float
    largest: float
    loss: float
    gain: float
    success: float

    def total(self, key: str) -> int:
        """Return a count over all op classes."""
        return sum(int(n[key]) for n in self.counts.values())

    def farthest(self) -> float:
        """Return the farthest rounding boundary that an accepted entry crossed, in tolerances."""
        return max(float(n["max_distance"]) for n in self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return dataclasses.asdict(self) | {"farthest": self.farthest()}


def both_tests(counts: Counts) -> tuple[Bias | None, Bias | None]:
    """Return what a test over all entries says, and what the tests over their uses say."""
    return biased_class(entries_only(counts)), biased_class(counts)


def parameters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's parameters in a checkpoint, by name, as float64."""
    return {n.removeprefix("param."): t.double() for n, t in tensors.items() if n.startswith("param.")}


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return the 2-norm and the largest magnitude of the difference of two sets of tensors of the same names."""
    differences = [(a[n].double() - b[n].double()).reshape(-1) for n in a]
    whole = torch.cat(differences)
    return float(whole.norm()), float(whole.abs().max())
