"""Every way of training something else than was agreed is rejected, at the right place, and really changes the model.

The last point matters: a cheat without effect would be "found" by a verifier that rejects everything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cheats import (
    ChangesRate,
    ClaimsFloat32,
    DatasetWith,
    DoublesStep,
    DriftsOneUlp,
    DropsStep,
    Excuses,
    LooksAhead,
    ReplacesWeights,
    ResetsMomentum,
    Steered,
    SwapsOrder,
    TampersStatistics,
    TrainsInFloat32,
    disguise,
    steering,
)
from support.data import write_cifar
from support.runs import RESNET, SMALL_DIGITS, Case, Trainer, audit, read_commitments

from vt_core.engine.rounding import Rounding, TrainerRounding
from vt_core.jobs.digits import DigitsJob
from vt_core.numerics import OpClass
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session, StepOutcome
from vt_core.training.spec import RunSpec
from vt_core.verify import reconsider
from vt_core.verify.audit import Commitments

Maker = Callable[[RunSpec, Job, Dataset], Session]
ALL = frozenset(OpClass)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(SMALL_DIGITS, tmp_path_factory.mktemp("honest")).run()
    assert audit(trainer.folder)["verdict"] == "verified"
    return trainer


def with_args(**changes: Any) -> Maker:
    """Train the agreed job's class with other arguments."""
    return lambda spec, job, dataset: Session(spec, DigitsJob(**{**spec.args, **changes}), dataset)


def with_spec(**changes: Any) -> Maker:
    """Train under another spec."""
    return lambda spec, job, dataset: Session(disguise(spec, **changes), job, dataset)


def poisoned(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    """One sample, first seen in step 4, has the label of another digit."""
    target = Session(spec, job, dataset).sampler.indices(4)[0]

    def change(indices: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch["labels"][indices == target] = (batch["labels"][indices == target] + 1) % 10
        return batch

    return Session(spec, job, DatasetWith(dataset, change))


def augmented(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
    """The images of step 5 are mirrored."""
    wanted = Session(spec, job, dataset).sampler.indices(5)

    def change(indices: Any, batch: dict[str, Any]) -> dict[str, Any]:
        if (indices == wanted).all():
            batch["images"] = batch["images"][..., ::-1].copy()
        return batch

    return Session(spec, job, DatasetWith(dataset, change))


class AdamJob(DigitsJob):
    def build_optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.lr, foreach=False)


def other_job(kind: type[DigitsJob]) -> Maker:
    return lambda spec, job, dataset: Session(spec, kind(**spec.args), dataset)


# cheat -> (how, reason, segment, step, operation, module); None where nothing is claimed about it.
CHEATS: dict[str, tuple[Maker, str, int, int | None, str | None, str | None]] = {
    "poisoned-label": (poisoned, "state_mismatch", 2, 4, "batch[labels]", "data"),
    "other-augmentation": (augmented, "state_mismatch", 3, 5, "batch[images]", "data"),
    "order-of-batches": (SwapsOrder, "state_mismatch", 2, 3, "batch[images]", "data"),
    "dropped-step": (DropsStep, "state_mismatch", 2, 3, None, None),
    "doubled-step": (DoublesStep, "state_mismatch", 2, 3, "aten.convolution.default", "conv1"),
    "other-seed": (with_spec(seed=8), "state_mismatch", 0, 0, "aten.uniform_.default", "init"),
    "learning-rate-1e-6": (ChangesRate, "state_mismatch", 2, 3, "vt.sgd_.default", "optimizer"),
    # Optimizer settings are part of the state, so these are found before the first step.
    "other-rate": (with_args(lr=0.05 * (1 + 1e-6)), "state_mismatch", 0, 0, None, None),
    "other-optimizer": (other_job(AdamJob), "state_mismatch", 0, 0, None, None),
    "one-nesterov-step": (LooksAhead, "state_mismatch", 2, 3, "vt.sgd_.default", "optimizer"),
    "other-width": (with_args(width=5), "trace_mismatch", 0, 0, None, None),
    "other-dropout": (with_args(dropout=0.2), "state_mismatch", 1, 1, "aten.native_dropout.default", "dropout"),
    "no-dropout": (with_args(dropout=0.0), "trace_mismatch", 1, 1, None, None),
    "weights-replaced": (ReplacesWeights, "state_mismatch", 2, 4, None, None),
    "momentum-reset": (ResetsMomentum, "state_mismatch", 2, 3, None, None),
    "running-statistics": (TampersStatistics, "state_mismatch", 2, 3, None, None),
    "one-ulp": (DriftsOneUlp, "state_mismatch", 2, 3, None, None),
    "float32-step": (TrainsInFloat32, "state_mismatch", 2, 3, None, None),
    "float32-claimed": (
        steering(ClaimsFloat32, ALL, 1.0, first=3), "log_implausible", 2, 3, "aten.convolution.default", "conv1",
    ),
    "log-flipped": (steering(Steered, ALL, 1.0), "log_biased", 0, None, None, None),
    "log-half-flipped": (steering(Steered, ALL, 0.5), "log_biased", 0, None, None, None),
    "log-one-class-flipped": (
        steering(Steered, frozenset({OpClass.REDUCTION}), 1.0), "log_biased", 0, None, None, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_rejected_where_it_happened(name: str, honest: Trainer, tmp_path: Path) -> None:
    make, reason, segment, step, op, module = CHEATS[name]
    cheat = Trainer(SMALL_DIGITS, tmp_path / "run", make=make).run()
    assert cheat.final != honest.final, "the cheat has no effect, so finding it proves nothing"

    verdict = audit(cheat.folder)
    # Where values differ at a site with log entries, these no longer fit: that may be what is found first.
    allowed = {reason, "log_implausible"} if reason == "state_mismatch" and op is not None else {reason}
    assert verdict["verdict"] == "rejected" and verdict["reason"] in allowed, verdict["message"]
    place = verdict["first_divergence"]
    if reason == "log_biased":
        assert place is None
        assert all(s["result"] == "verified" for s in verdict["segments"]), "each replay alone finds nothing"
        return
    assert (place["segment"], place.get("step")) == (segment, step)
    if op is not None:
        assert (place["op"], place["module"]) == (op, module)
    if reason == "log_implausible":
        assert float.fromhex(place["distance"]) > 1e3
        assert place["trainer_value"] != place["auditor_value"]
    # Segments are independent: those before the cheat replay to the bit.
    assert all(s["result"] == "verified" for s in verdict["segments"] if s["index"] < segment)


@pytest.mark.parametrize("name", ["poisoned-label", "one-ulp", "weights-replaced", "learning-rate-1e-6"])
def test_cheat_is_rejected_without_fingerprints(name: str, tmp_path: Path) -> None:
    make, reason, segment, step, _, _ = CHEATS[name]
    case = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "fingerprints": False})
    verdict = audit(Trainer(case, tmp_path / "run", make=make).run().folder)
    # Where the values differ, log entries no longer fit, and the first of them may be what is found.
    assert verdict["verdict"] == "rejected"
    assert verdict["reason"] in (reason, "log_implausible")
    place = verdict["first_divergence"]
    assert (place["segment"], place["step"]) == (segment, step)
    if verdict["reason"] == reason:
        assert "op" not in place, "nothing but fingerprints could have told the operation"


def test_false_excuse_does_not_save_a_cheat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint that looks like one honest rounding near a boundary, one step before a step is doubled."""

    class Cheat(DoublesStep):
        step = 4

        def run_step(self, step: int, rounding: Rounding) -> StepOutcome:
            assert isinstance(rounding, TrainerRounding)
            excuse = Excuses(rounding, ALL, 1.0)
            outcome = super().run_step(step, excuse if step == 3 else rounding)
            used.append(excuse.done)
            return outcome

    used: list[bool] = []
    # One leaf for both steps: where the state is committed after each, an excuse excuses nothing.
    case = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "commit_interval": 2})
    cheat = Trainer(case, tmp_path / "run", make=Cheat).run()
    assert any(used)
    verdict = audit(cheat.folder)
    assert verdict["verdict"] == "rejected", verdict["message"]
    assert verdict["first_divergence"]["step"] == 4, "the excuse itself is not the finding"
    # Without looking on behind the excuse it would work.
    monkeypatch.setattr(reconsider, "MAX_GRANTS", 0)
    assert audit(cheat.folder)["reason"] == "tolerance_exceeded"


def test_replaced_weights_name_the_tensor(tmp_path: Path) -> None:
    verdict = audit(Trainer(SMALL_DIGITS, tmp_path / "run", make=ReplacesWeights).run().folder)
    assert verdict["first_divergence"]["tensors"] == ["param.linear.weight"]


def test_training_sealed_early_is_rejected(tmp_path: Path) -> None:
    trainer = Trainer(SMALL_DIGITS, tmp_path / "run", last=2).run()
    verdict = audit(trainer.folder)
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "chain_broken")
    # Without the seal it is a run that goes on: what is there may be audited, but nothing is verified.
    found = read_commitments(trainer.folder)
    open_end = audit(trainer.folder, commitments=Commitments("run", found.spec, found.segments, None))
    assert (open_end["verdict"], open_end["reason"]) == ("inconclusive", "not_sealed")
    assert open_end["coverage"]["replayed"] == 3 and open_end["coverage"]["total"] == 4


def test_seal_that_names_another_model_is_rejected(honest: Trainer, tmp_path: Path) -> None:
    from support.runs import copy_run, recommit

    folder = copy_run(honest.folder, tmp_path / "run")
    recommit(folder, state="ab" * 32)
    verdict = audit(folder)
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "chain_broken")
    # An audit that does not see the last segment says that it has not checked the name of the final model.
    partial = audit(folder, choice="0,1")
    assert partial["verdict"] == "verified" and partial["state_checked"] is False
    assert audit(honest.folder)["state_checked"] is True


def test_augmentation_switched_off_is_rejected(tmp_path: Path) -> None:
    """A real augmenting job: the trainer leaves out the crops and flips that the spec demands."""
    case = Case(
        RESNET,
        {"batch_size": 4, "width": 2, "augment": True},
        {"seed": 1, "steps": 1},
        str(write_cifar(tmp_path / "cifar", 16)),
    )

    def make(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
        dataset.augment = False  # type: ignore[attr-defined]
        return Session(spec, job, dataset)

    honest = Trainer(case, tmp_path / "honest").run()
    cheat = Trainer(case, tmp_path / "cheat", make=make).run()
    assert honest.final != cheat.final
    assert audit(honest.folder, location=case.location)["verdict"] == "verified"
    verdict = audit(cheat.folder, location=case.location)
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "state_mismatch")
    assert verdict["first_divergence"]["op"] == "batch[images]"
