"""The dispatch mode: whatever a model does, its state ends on the grid and a replay gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_support import (
    Run,
    TinyJob,
    assert_on_grid,
    assert_replays,
    floats,
    mean_square,
    train,
    whole,
)
from torch import Tensor, nn

from vt_core.engine import opclass
from vt_core.engine.profiles import CHANNELS_LAST
from vt_core.errors import OffGridError, PrecisionError, SpecError
from vt_core.training.session import Session


class Wrapped(nn.Module):
    """A linear layer, then any function of its output."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.first(x))


def check(job: TinyJob, steps: int = 3) -> Run:
    run = train(job, steps)
    assert_on_grid(run.states[steps])
    assert len(set(run.roots)) == steps + 1, "training moved nothing"
    assert_replays(job, run)
    return run


def function_job(function: Callable[[Tensor], Tensor], **more: Any) -> TinyJob:
    return TinyJob(lambda: Wrapped(function), **more)


def views(x: Tensor) -> Tensor:
    a, b = x.t().reshape(-1, x.shape[0]).split([2, 3])
    first, *rest = torch.cat([a, b]).unbind(0)
    return torch.stack([first.unsqueeze(1).expand(-1, 2)[:, 0], *rest], 1)[:, ::2].flip(1)


def in_place(x: Tensor) -> Tensor:
    y = x * 0.7
    y += 0.1
    y.mul_(x.detach()).sub_(0.3).clamp_(-2, 2)
    y[:, 0] = y[:, 1] * 0.3
    y[:, 2:].add_(x[:, 2:], alpha=0.3)
    y.masked_fill_(y > 1.5, 1.5).neg_()
    return y


def out_variants(x: Tensor) -> Tensor:
    with torch.no_grad():
        held = torch.empty_like(x)
        torch.mul(x, 0.3, out=held)
        torch.add(held, x, alpha=0.7, out=held)
        torch.exp(held, out=held)
        torch.sqrt(held, out=held)
        norm = torch.empty(x.shape[0], x.shape[0])
        torch.mm(held, held.t(), out=norm)
    return x * held + norm.sum(1, keepdim=True)


def scatters(x: Tensor) -> Tensor:
    index = torch.tensor([0, 2, 0, 1, 2])
    y = torch.zeros(x.shape[0], 3).index_add(1, index, x)
    y = y + torch.zeros_like(y).scatter_add(1, index.expand(x.shape[0], -1), x * 0.3)
    y = y.index_put((torch.tensor([0, 0, 1]),), x[:3, :3], accumulate=True)
    y = y.index_put((torch.tensor([2]),), x[:1, :3])
    y = y.scatter_reduce(1, index.expand(x.shape[0], -1), x, "mean")
    return y[:, index] * x


def orders(x: Tensor) -> Tensor:
    top = x.topk(3, dim=1)
    ordered = x.sort(dim=1, descending=True)
    return torch.cat([top.values, ordered.values * 0.3, x.gather(1, x.argsort(1)), x.cumsum(1), x.max(1, True)[0]], 1)


def tuples(x: Tensor) -> Tensor:
    kinds = (torch.max(x, 1), torch.min(x, 1), torch.kthvalue(x, 2, 1), torch.median(x, 1), torch.mode(x, 1))
    var, mean = torch.var_mean(x, 1)
    return torch.stack([k.values for k in kinds] + [var, mean], 1)


@pytest.mark.parametrize("function", [views, in_place, out_variants, scatters, orders, tuples])
def test_every_way_to_make_a_tensor_replays(function: Callable[[Tensor], Tensor]) -> None:
    check(function_job(function))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))


def test_running_statistics_that_no_schema_mentions_are_rounded() -> None:
    run = check(TinyJob(batch_norm))
    assert run.ran("aten.native_batch_norm.default")
    assert run.states[3].tensors["buffer.1.running_mean"].abs().min() > 0
    assert run.states[3].tensors["buffer.1.num_batches_tracked"].item() == 3


def test_a_mutation_that_nobody_knows_of_ends_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(opclass.SILENT_MUTATIONS, "native_batch_norm")
    with pytest.raises(OffGridError, match=r"buffer\.1\.running_mean .*float32 grid"):
        train(TinyJob(batch_norm))


def test_a_write_past_the_engine_names_the_last_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that is off the grid after an ordinary operation wrote it: the message names that operation."""
    end = Session._end_step

    def spoil(session: Session, *args: Any) -> None:
        if session.mode.moment.step == 2:
            parameter = next(session.model.parameters())
            parameter.detach().numpy()[0, 0] += 2.0**-40
        end(session, *args)

    monkeypatch.setattr(Session, "_end_step", spoil)
    with pytest.raises(OffGridError, match=r"param\.0\.weight .*last written by vt\.sgd_\.default"):
        train(TinyJob(batch_norm))


class Average(nn.Module):
    """Keeps an average that is replaced, not written in place, and a table of thirds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.register_buffer("thirds", torch.arange(5) / 3)
        self.register_buffer("average", torch.zeros(5))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * self.thirds
        self.average = self.average * 0.9 + y.detach()[0] * 0.1
        self.seen += 1
        return torch.cat([y, self.average.expand(len(y), -1) * y], 1)


def test_buffers_that_a_model_replaces_are_put_on_the_grid() -> None:
    run = check(TinyJob(Average))
    assert run.states[3].tensors["buffer.seen"].item() == 3
    resumed = train(TinyJob(Average), start=run.states[2])
    assert resumed.roots == run.roots[3:]


class Tied(nn.Module):
    """Embedding and output layer share one weight; another layer is never used; one index is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6, padding_idx=0)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table(x)).flatten(1)


def test_tied_weights_unused_parameters_and_embeddings() -> None:
    run = check(TinyJob(Tied, {"x": whole(7, 16, 3)}))
    assert "param.head.weight" not in run.states[3].tensors
    first, last = run.states[0].tensors, run.states[3].tensors
    assert torch.equal(first["param.unused.weight"], last["param.unused.weight"])
    assert not torch.equal(first["param.table.weight"][1:], last["param.table.weight"][1:])
    assert run.ran("aten.embedding_dense_backward")


def accumulated(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    half = len(batch["x"]) // 2
    mean_square(model, {"x": batch["x"][:half]}).backward()
    return mean_square(model, {"x": batch["x"][half:]})


def test_gradients_that_add_up_and_are_clipped() -> None:
    job = TinyJob(batch_norm, objective=accumulated, clip=0.1)
    assert train(job).roots != check(TinyJob(batch_norm, clip=0.1)).roots
    assert train(job).roots != train(TinyJob(batch_norm, objective=accumulated)).roots
    check(job)


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def test_overlapping_max_pools_and_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory layout is a matter of the machine: a run replays on one that lays images out in another way."""
    job = TinyJob(pooled, {"x": floats(16, 2, 6, 6)})
    run = check(job)
    monkeypatch.setenv(CHANNELS_LAST, "1")
    assert_replays(job, run)


def clipped_by_value(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Clip in hooks, which run inside the backward pass."""
    handles = [
        p.register_post_accumulate_grad_hook(lambda p: nn.utils.clip_grad_value_([p], 1e-3)) for p in model.parameters()
    ]
    mean_square(model, batch).backward()
    for handle in handles:
        handle.remove()
    return mean_square(model, batch) * 0.1


def test_gradients_that_are_clipped_by_value() -> None:
    assert check(TinyJob(batch_norm, objective=clipped_by_value)).roots != train(TinyJob(batch_norm)).roots


def test_a_hard_coded_dtype_names_operation_and_module() -> None:
    with pytest.raises(PrecisionError, match=r"aten\._to_copy.* in module 'Wrapped' made a torch\.float32.*promote"):
        train(function_job(lambda x: x.float().relu()))


def test_promotion_repairs_a_hard_coded_dtype() -> None:
    promoted = check(function_job(lambda x: torch.exp(x.float()).half() * 0.3, train={"promote": True}))
    plain = check(function_job(lambda x: torch.exp(x) * 0.3))
    assert promoted.states[3].tensors["param.first.weight"].equal(plain.states[3].tensors["param.first.weight"])


def test_a_loss_that_is_no_scalar_is_the_jobs_mistake() -> None:
    with pytest.raises(SpecError, match="must be a scalar"):
        train(TinyJob(batch_norm, objective=lambda m, b: m(b["x"])))


def test_equal_values_keep_their_order_in_sorts_and_top_k() -> None:
    """All zeros: which of them top-k names decides where the gradient goes; a stable sort names the first."""
    seen: list[Tensor] = []

    def ties(x: Tensor) -> Tensor:
        flat = torch.relu(x - 1e6)
        seen.extend([flat.topk(3, 1).indices, flat.sort(1, True)[1][:, :3], flat.argsort(1)[:, :3]])
        return x + flat.topk(3, 1).values.sum()

    train(TinyJob(lambda: Wrapped(ties, 300)), 1)
    for indices in seen:
        assert indices.tolist() == [[0, 1, 2]] * 4


def test_memory_does_not_grow_with_the_steps() -> None:
    job = TinyJob(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.BatchNorm1d(5)), train={"steps": 40})
    few, many = train(job, 2).session, train(job, 30).session
    for attribute in ("drawn", "last_writer", "_plans"):
        assert len(getattr(many.mode, attribute)) == len(getattr(few.mode, attribute)), attribute
    assert len(many.mode.trace) == len(few.mode.trace)
    assert len(many.tracker._by_sequence) == len(few.tracker._by_sequence)


def test_the_trace_tells_another_model_and_not_other_values() -> None:
    one, other = (train(TinyJob(batch_norm, train={"seed": s})) for s in (1, 2))
    assert one.traces == other.traces and one.roots != other.roots
    wider = TinyJob(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    assert train(wider).traces[1] != one.traces[1]


def test_dropping_the_treatment_of_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding is what keeps state on the grid: an inexact operation called exact leaves it off."""
    monkeypatch.setattr(opclass, "EXACT", opclass.EXACT | {"native_batch_norm", "addmm", "mm"})
    with pytest.raises(OffGridError):
        train(TinyJob(batch_norm))
