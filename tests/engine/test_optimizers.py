"""Every optimizer of torch.optim that needs no closure: state on the grid, resumable anywhere, replayable."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from engine_support import TinyJob, assert_on_grid, assert_replays, train
from torch import nn, optim

from vt_core.engine.rounding import Place, TrainerRounding
from vt_core.engine.scale import Bound
from vt_core.errors import PrecisionError
from vt_core.numerics import OpClass

Make = Callable[[nn.Module], optim.Optimizer]
STEPS = 4

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda m: optim.SGD(m.parameters(), lr=0.1),
    "SGD weight decay": lambda m: optim.SGD(m.parameters(), lr=0.1, weight_decay=0.01),
    "SGD momentum": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "SGD dampening": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.3),
    "SGD nesterov": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD maximize": lambda m: optim.SGD(m.parameters(), lr=0.01, momentum=0.9, maximize=True),
    "Adam": lambda m: optim.Adam(m.parameters(), lr=0.01),
    "Adam amsgrad": lambda m: optim.Adam(m.parameters(), lr=0.01, amsgrad=True, weight_decay=0.01),
    "Adam maximize": lambda m: optim.Adam(m.parameters(), lr=0.001, maximize=True),
    "AdamW": lambda m: optim.AdamW(m.parameters(), lr=0.01),
    "AdamW foreach": lambda m: optim.AdamW(m.parameters(), lr=0.01, foreach=True),
    "AdamW amsgrad": lambda m: optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=0.01),
    "NAdam decoupled": lambda m: optim.NAdam(m.parameters(), lr=0.01, weight_decay=0.01, decoupled_weight_decay=True),
    "RAdam": lambda m: optim.RAdam(m.parameters(), lr=0.01),
    "RAdam short memory": lambda m: optim.RAdam(m.parameters(), lr=0.01, betas=(0.5, 0.9)),
    "Adamax": lambda m: optim.Adamax(m.parameters(), lr=0.01),
    "Adagrad": lambda m: optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.1),
    "Adagrad start": lambda m: optim.Adagrad(m.parameters(), lr=0.1, initial_accumulator_value=0.1),
    "Adadelta": lambda m: optim.Adadelta(m.parameters(), lr=1.0, weight_decay=0.01),
    "RMSprop": lambda m: optim.RMSprop(m.parameters(), lr=0.01),
    "RMSprop centered": lambda m: optim.RMSprop(m.parameters(), lr=0.01, momentum=0.9, centered=True),
    "Rprop": lambda m: optim.Rprop(m.parameters(), lr=0.01),
    "ASGD": lambda m: optim.ASGD(m.parameters(), lr=0.1, t0=2.0),
    "Adafactor": lambda m: optim.Adafactor(m.parameters(), lr=0.01),
    "Muon": lambda m: optim.Muon([p for p in m.parameters() if p.dim() == 2], lr=0.02),
}


def job(name: str) -> TinyJob:
    return TinyJob(
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        optimizer=OPTIMIZERS[name],
        rate=lambda step: 0.02 / step if name == "AdamW" else None,
        train={"promote": name == "Muon"},
    )


def test_every_optimizer_of_this_pytorch_is_covered() -> None:
    found = {
        name for name, cls in vars(optim).items()
        if inspect.isclass(cls) and issubclass(cls, optim.Optimizer) and cls is not optim.Optimizer
    }  # fmt: skip
    refused = {"LBFGS", "SparseAdam"}  # by tests/engine/test_refusals.py
    assert found - refused <= {name.split()[0] for name in OPTIMIZERS}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_resumes_and_replays(name: str) -> None:
    run = train(job(name), STEPS)
    weights = "param.0.weight"
    for step in range(1, STEPS + 1):
        assert_on_grid(run.states[step])
        assert not torch.equal(run.states[step - 1].tensors[weights], run.states[step].tensors[weights])
    for stop in (1, 2):
        resumed = train(job(name), STEPS, start=run.states[stop])
        assert resumed.roots == run.roots[stop + 1 :]
        assert resumed.traces == {s: t for s, t in run.traces.items() if s > stop}
    assert_replays(job(name), run)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_that_an_optimizer_keeps_is_in_the_state(name: str) -> None:
    """Forgetting any one tensor of it changes the next step or the digest: nothing is left to chance."""
    run = train(job(name), 2)
    optimizer = run.session.optimizer
    assert optimizer is not None
    kept = {k for values in optimizer.state.values() for k, v in values.items() if isinstance(v, torch.Tensor)}
    stored = {n.rpartition(".")[2] for n in run.states[2].tensors if n.startswith("optim.")}
    assert stored == kept
    scalars = {k for values in run.states[2].scalars["state"].values() for k in values}
    plain = {k for values in optimizer.state.values() for k, v in values.items() if not isinstance(v, torch.Tensor)}
    assert scalars == plain


def test_muon_computes_in_bfloat16_unless_promoted() -> None:
    lowered = job("Muon")
    lowered.train = {}
    with pytest.raises(PrecisionError, match=r"in module 'optimizer' made a torch\.bfloat16 tensor.*promote: true"):
        train(lowered, 1)


@pytest.mark.parametrize("name", ["SGD momentum", "SGD nesterov", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"])
def test_an_optimizer_step_needs_no_log(name: str) -> None:
    """All of it is exact or canonical: no operation of the optimizer is rounded with an interval."""
    placed: list[str] = []
    one = job(name)
    session = one.session()

    class Watching(TrainerRounding):
        def inexact(self, x: torch.Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
            placed.append(" in ".join(place()))
            super().inexact(x, op_class, bound, place)

    rounding = Watching(session.grid, session.spec.policy, True)
    with session.open():
        for step in range(3):
            rounding.begin_step(step)
            _ = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
            rounding.end_step()
    assert [p for p in placed if p.endswith(" in optimizer")] == []
    assert len(placed) > 10
