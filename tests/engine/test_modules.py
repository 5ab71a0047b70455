"""An operation is placed in the module that ran it, in the forward and in the backward pass."""

from __future__ import annotations

import pytest
import torch
from engine_support import TinyJob, mean_square, train
from torch import Tensor, nn

from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import Place, TrainerRounding
from vt_core.engine.scale import Bound
from vt_core.numerics import OpClass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mlp(self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(torch.sigmoid(x))


class Placing(TrainerRounding):
    """Notes where each rounding site was."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.places: list[tuple[str, str]] = []

    def inexact(self, x: Tensor, op_class: OpClass, bound: Bound, place: Place) -> None:
        self.places.append(place())
        super().inexact(x, op_class, bound, place)


def places(job: TinyJob, step: int = 2) -> list[tuple[str, str]]:
    session = job.session()
    rounding = Placing(session.grid, session.spec.policy, True)
    with session.open():
        for number in range(step + 1):
            rounding.places.clear()
            rounding.begin_step(number)
            _ = session.initialise(rounding) if number == 0 else session.run_step(number, rounding)
            rounding.end_step()
    return rounding.places


def of(found: list[tuple[str, str]], operation: str) -> list[str]:
    """Return the modules in which ``operation`` was rounded, each once, in order."""
    return list(dict.fromkeys(module for op, module in found if op.split(".")[1] == operation))


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str]]:
    return places(TinyJob(Model))


def test_forward_operations(found: list[tuple[str, str]]) -> None:
    assert of(found, "native_layer_norm") == ["blocks.0.norm", "blocks.1.norm"]
    assert of(found, "addmm") == ["blocks.0.mlp.0", "blocks.0.mlp.2", "blocks.1.mlp.0", "blocks.1.mlp.2", "head"]
    assert of(found, "gelu") == ["blocks.0.mlp.1", "blocks.1.mlp.1"]
    assert of(found, "tanh") == ["blocks.0", "blocks.1"]
    assert of(found, "sigmoid") == ["Model"]
    assert of(found, "mean") == ["forward"]


def test_backward_operations(found: list[tuple[str, str]]) -> None:
    assert of(found, "native_layer_norm_backward") == ["blocks.1.norm (backward)", "blocks.0.norm (backward)"]
    assert of(found, "gelu_backward") == ["blocks.1.mlp.1 (backward)", "blocks.0.mlp.1 (backward)"]
    assert of(found, "tanh_backward") == ["blocks.1 (backward)", "blocks.0 (backward)"]
    assert of(found, "sigmoid_backward") == ["Model (backward)"]
    assert of(found, "mm") == [
        f"{name} (backward)"
        for name in ("head", "blocks.1.mlp.2", "blocks.1.mlp.0", "blocks.0.mlp.2", "blocks.0.mlp.0")
    ]


def test_initialisation_and_optimizer() -> None:
    def adadelta(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adamax(model.parameters())

    assert {module for _, module in places(TinyJob(lambda: nn.Embedding(5, 4)), 0)} == {"init"}
    later = places(TinyJob(Model, optimizer=adadelta))
    assert {m for _, m in later} >= {"head", "head (backward)"}


def test_a_module_that_is_shared_and_one_that_is_called_by_hand() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 6)
            self.two = self.one

        def forward(self, x: Tensor) -> Tensor:
            return self.two(nn.Softmax(1)(self.one(x)))

    result = places(TinyJob(Shared))
    assert of(result, "addmm") == ["one"]
    assert of(result, "_softmax") == ["Softmax"]
    assert of(result, "_softmax_backward_data") == ["Softmax (backward)"]


def test_an_error_inside_a_module_leaves_nothing_behind() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 2)
            self.fail = False

        def forward(self, x: Tensor) -> Tensor:
            if self.fail:
                raise RuntimeError("broken")
            return self.first(x)

    job = TinyJob(Fails)
    session = job.session()
    rounding = Placing(session.grid, session.spec.policy, True)
    with session.open():
        rounding.begin_step(0)
        session.initialise(rounding)
        session.model.fail = True  # type: ignore[assignment]
        rounding.begin_step(1)
        with pytest.raises(RuntimeError, match="broken"):
            session.run_step(1, rounding)
        session.model.fail = False  # type: ignore[assignment]
        rounding.begin_step(1)
        rounding.places.clear()
        session.run_step(1, rounding)
    assert of(rounding.places, "addmm") == ["first"]
    nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.float32))  # the hooks are gone: nothing is tracked
    assert session.tracker._stack == []


def test_two_trackers_follow_each_other() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    for _ in range(2):
        tracker = ModuleTracker()
        tracker.watch(model)
        with tracker:
            seen: list[str] = []
            handle = model[0].register_forward_pre_hook(lambda *_: seen.append(tracker.current()))  # noqa: B023
            model(torch.ones(1, 2))
            handle.remove()
        assert seen == ["0"] and tracker.current() == "init"


def test_names_do_not_change_the_numbers() -> None:
    """Places are for people: a model whose parts have other names runs the same operations on the same values."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.zzz = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.zzz(x)

    one, two = train(TinyJob(Other, objective=mean_square)), train(TinyJob(lambda: nn.Sequential(nn.Linear(6, 3))))
    assert one.traces == two.traces and one.logs == two.logs
