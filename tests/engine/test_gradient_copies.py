"""Who holds a gradient besides autograd changes nothing: neither trace nor log nor the records of a dispute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact_support import same_bits
from support.op_disputes import Bench
from support.runs import NO_LOG, SMALL_DIGITS, Case
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vt_core.dispute.recorder import StepClaim, record_step
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.rounding_log import encode_step
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid
from vt_core.training.session import Session


class Listing(TorchDispatchMode):
    """Writes down what autograd runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)).double()


def hold(net: nn.Module, kept: list[Tensor]) -> None:
    """Keep every gradient before autograd has put it into ``.grad``, as a frame does that nobody has cleared away."""
    for p in net.parameters():
        p.register_hook(lambda gradient: kept.append(gradient))  # type: ignore[no-untyped-call]


def backward(net: nn.Module) -> None:
    net(torch.ones(4, 8, dtype=torch.float64)).square().sum().backward()


def test_autograd_copies_what_somebody_holds() -> None:
    found = []
    for held in (False, True):
        net, mode = model(), Listing()
        if held:
            hold(net, [])
        with mode:
            backward(net)
        found.append(mode.names.count("aten.copy_.default"))
    assert found[1] > found[0], "or nothing is shown"


def run(prepare: Callable[[nn.Module], Any]) -> tuple[VerifiedMode, bytes, bytes, list[Tensor]]:
    """Return the mode after one backward pass, its log, its fingerprints, and the gradients."""
    rounding = TrainerRounding(Grid.parse("float32"), DEFAULT["float64"], True)
    mode = VerifiedMode(torch.float64, rounding, Streams(1), ModuleTracker(), False, "logged", "logged")
    rounding.begin_step(1)
    mode.begin_step(1, 1)
    net = model()
    prepare(net)
    with mode:
        backward(net)
    gradients = [p.grad for p in net.parameters()]
    return mode, encode_step(rounding.end_step()), rounding.words, gradients  # type: ignore[return-value]


def test_trace_log_and_gradients_are_the_same() -> None:
    plain, held = run(lambda net: None), run(lambda net: hold(net, []))
    assert plain[0].trace.lines == held[0].trace.lines and plain[1:3] == held[1:3]
    assert same_bits(tuple(plain[3]), tuple(held[3]))


def test_copies_that_a_hook_makes_are_in_the_trace() -> None:
    def meddle(net: nn.Module) -> None:
        def write(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.copy_(torch.zeros_like(parameter))

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(write)

    for held in (False, True):
        mode, _, _, gradients = run(lambda net, held=held: (meddle(net), hold(net, []) if held else None))
        assert mode.trace.lines.count("aten.copy_.default (6,)torch.float64") == 3
        assert not any(bool(g.any()) for g in gradients)


@pytest.mark.parametrize("case", [SMALL_DIGITS, NO_LOG], ids=["logged", "exact"])
def test_the_records_of_a_dispute_are_the_same(case: Case) -> None:
    bench, kept = Bench(case, agreed=False), []

    def record(held: bool) -> StepClaim:
        session: Session = bench.session(Session)
        if held:
            build = session.job.build_model

            def built() -> nn.Module:
                net: nn.Module = build()
                hold(net, kept)
                return net

            session.job.build_model = built  # type: ignore[method-assign]
        with session.open():
            return record_step(session, bench.before(2), 2)

    plain, held = record(False), record(True)
    assert kept and plain.hashes() == held.hashes()
    assert encode_step(plain.log) == encode_step(held.log)
