"""An optimizer's step as a whole: its sites, hooks, state, and what runs operation by operation instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_support import TinyJob, assert_replays, train
from torch import nn, optim
from update_support import CONFIGURATIONS, bits, by_operations, mode_of, values

from vt_core.engine import optimizers, updates
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.rounding import Place, TrainerRounding
from vt_core.engine.rounding_log import StepLog
from vt_core.engine.settings import common_settings, force_single_tensor
from vt_core.numerics import DEFAULT, Grid, SiteEntries, _jit_optimizers, fingerprint
from vt_core.verify.strict import StrictRounding


class Watching(TrainerRounding):
    """Keeps what is counted as a site in the optimizer: (operation, module), and the value on the grid."""

    def note(self, fingerprint: int, place: Place) -> None:
        self.noted = [*getattr(self, "noted", []), (place(), fingerprint)]
        super().note(fingerprint, place)


def one_step(
    optimizer: optim.Optimizer, dtype: torch.dtype = torch.float64, rounding: TrainerRounding | None = None
) -> VerifiedMode:
    """Run one step on a gradient of ones."""
    with common_settings(dtype):
        force_single_tensor(optimizer)
        mode = mode_of(dtype, Grid.parse("float32"))
        mode.rounding = rounding or mode.rounding
        mode.rounding.begin_step(1)
        mode.tracker.phase = "optimizer"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        with mode:
            optimizers.step(optimizer, dtype)
    return mode


def parameter(*shape: int, dtype: torch.dtype = torch.float64) -> nn.Parameter:
    return nn.Parameter(torch.full(shape or (3,), 0.5, dtype=dtype))


@pytest.mark.parametrize("size", [5, 100_001])
def test_each_written_tensor_is_one_site_with_its_fingerprint(size: int) -> None:
    own = parameter(size)
    optimizer = optim.AdamW([own], amsgrad=True)
    rounding = Watching(Grid.parse("float32"), DEFAULT["float64"], True)
    mode = one_step(optimizer, rounding=rounding)
    state = optimizer.state[own]
    written = [own, state["exp_avg"], state["exp_avg_sq"], state["max_exp_avg_sq"]]
    place = ("vt.adam_.default", "optimizer")
    assert rounding.noted == [(place, fingerprint(t)) for t in written]
    assert rounding.end_step().fingerprints.tolist()[-4:] == [fingerprint(t) & 0xFFFFFFFF for t in written]
    words = np.frombuffer(rounding.words, "<u8").tolist()
    assert words[-4:] == [fingerprint(t) for t in written] and max(words) >> 32
    assert rounding.counters.plain >= 4 * size
    assert {mode.last_writer[t.untyped_storage().data_ptr()] for t in written} == {"vt.adam_.default"}


def test_an_entry_at_the_site_of_an_update_is_a_finding() -> None:
    """Nothing is decided there, so no honest trainer writes one."""
    grid = Grid.parse("float32")
    honest = TrainerRounding(grid, DEFAULT["float64"], True)
    one_step(optim.SGD([parameter()], lr=0.1), rounding=honest)
    log = honest.end_step()
    site = len(log.fingerprints) - 1
    entry = SiteEntries(0, np.array([1]), np.zeros(1, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    for sites, expected in (({}, []), ({site: entry}, [(site, "vt.sgd_.default", "position")])):
        auditor = StrictRounding(grid, DEFAULT["float64"], True)
        auditor.begin_replay(StepLog(1, sites, log.fingerprints))
        mode = mode_of(torch.float64, grid)
        mode.rounding = auditor
        own = parameter()
        own.grad = torch.ones_like(own)
        with common_settings(torch.float64), mode:
            optimizers.step(optim.SGD([own], lr=0.1, foreach=False), torch.float64)
        found = [(f.site, f.op, f.rounding.kind) for f in auditor.findings if f.rounding is not None]
        assert found == expected


@pytest.mark.parametrize("name", ["SGD nesterov", "Adam amsgrad", "AdamW"])
def test_training_ends_in_the_same_states(name: str) -> None:
    """As a whole session: resumed and replayed, with state digests and optimizer keys of the unfused steps."""

    def job(fused: bool) -> TinyJob:
        def make(model: nn.Module) -> optim.Optimizer:
            optimizer = CONFIGURATIONS[name](model.parameters())
            if not fused:
                by_operations(optimizer)
            return optimizer

        return TinyJob(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), optimizer=make)

    whole = train(job(True), 4)
    assert whole.roots == train(job(False), 4).roots
    assert whole.ran("vt.") and not train(job(False), 1).ran("vt.")
    resumed = train(job(True), 4, start=whole.states[2])
    assert resumed.roots == whole.roots[3:] and resumed.traces == {s: t for s, t in whole.traces.items() if s > 2}
    assert_replays(job(True), whole)


class OwnAdam(optim.Adam):
    """A subclass may do anything."""


def with_scheduler(p: nn.Parameter) -> optim.Optimizer:
    optimizer = optim.SGD([p], lr=0.1)
    optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


UNFUSED: dict[str, Callable[[nn.Parameter], optim.Optimizer]] = {
    "another class": lambda p: optim.NAdam([p]),
    "a subclass": lambda p: OwnAdam([p]),
    "a scheduler that replaces step": with_scheduler,
    "a rate in a tensor": lambda p: optim.AdamW([p], lr=torch.tensor(0.1, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", UNFUSED)
def test_what_is_not_ordinary_runs_operation_by_operation(name: str) -> None:
    own = parameter()
    mode = one_step(UNFUSED[name](own))
    assert not any(line.startswith("vt.") for line in mode.trace.lines)
    assert bits(own) != bits(parameter())


def test_a_gradient_in_the_parameters_own_memory_runs_operation_by_operation() -> None:
    own = parameter(4)
    own.grad = own.detach()
    mode = mode_of(torch.float64, Grid.parse("float32"))
    optimizer = optim.SGD([own], lr=0.1, foreach=False)
    with common_settings(torch.float64), mode:
        optimizers.step(optimizer, torch.float64)
    assert not any(line.startswith("vt.") for line in mode.trace.lines)


def test_hooks_run_and_what_they_change_counts() -> None:
    own = parameter()
    optimizer = optim.SGD([own], lr=0.1)
    seen: list[float] = []

    def before(optimizer: optim.Optimizer, *_: Any) -> None:
        optimizer.param_groups[0]["lr"] = 0.25

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: seen.append(float(own.detach()[0])))
    mode = one_step(optimizer)
    assert any(line.startswith("vt.sgd_") for line in mode.trace.lines)
    assert seen == [0.25]


def test_results_do_not_depend_on_the_number_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_with(workers: int) -> list[bytes]:
        monkeypatch.setattr(_jit_optimizers, "worker_count", lambda: workers)
        own = nn.Parameter(values((70_003,), 5, torch.float64))
        optimizer = optim.AdamW([own])
        mode = one_step(optimizer)
        return [bits(own), *(bits(t) for t in optimizer.state[own].values()), mode.rounding.words]

    assert run_with(1) == run_with(2) == run_with(7)


RECORDS: dict[str, dict[str, Any]] = {
    "another shape": {"grad": torch.ones(4, dtype=torch.float64)},
    "another dtype": {"grad": torch.ones(3)},
    "no tensor": {"grad": 1.0},
    "no number": {"lr": "0.1"},
    "an integer": {"lr": 10**400},
    "no gradient": {"grad": None},
    "no flag": {"maximize": 1},
}


@pytest.mark.parametrize("name", RECORDS)
def test_arguments_of_a_strange_record_are_refused(name: str) -> None:
    """The judge gets arguments from a party: none may reach the compiled loops unchecked."""
    x = torch.ones(3, dtype=torch.float64)
    good = {"param": x, "grad": x.clone(), "momentum_buffer": None, "maximize": False, "weight_decay": None,
            "momentum": 0.0, "weight": 1.0, "nesterov": False, "first": False, "lr": 0.5}  # fmt: skip
    grid = Grid.parse("float32")
    with pytest.raises((TypeError, ValueError)):
        updates.update("sgd", good | RECORDS[name], torch.float64, grid)
    assert bits(x) == bits(torch.ones(3, dtype=torch.float64))
    updates.update("sgd", good, torch.float64, grid)
    assert x.tolist() == [0.5] * 3


def test_an_update_with_an_argument_missing_is_refused() -> None:
    mode = mode_of(torch.float64, Grid.parse("float32"))
    with pytest.raises(TypeError, match="needs param, grad"):
        mode.__torch_dispatch__(updates.SGD, (), (torch.ones(3, dtype=torch.float64),), {})
