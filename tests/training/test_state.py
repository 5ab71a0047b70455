"""The state digest covers every bit that the next step depends on, and nothing else; a restored state is the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vt_core.errors import EvidenceError, OffGridError, SpecError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.numerics import Grid
from vt_core.training.checkpoint import load_checkpoint, save_checkpoint
from vt_core.training.state import State, capture, check_on_grid, digest, live_tensors, restore

FLOAT32 = Grid.parse("float32")

TENSORS: dict[str, Tensor] = {
    "param.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "param.half": torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
    "buffer.count": torch.tensor(7),
    "buffer.small": torch.tensor([3, -4], dtype=torch.int32),
    "buffer.mask": torch.tensor([True, False, True]),
    "buffer.empty": torch.empty(0),
    "optim.weight.step": torch.tensor(4.0, dtype=torch.float64),
}
SCALARS: dict[str, Any] = {"groups": [{"lr": {"float": (0.1).hex()}, "nesterov": False}], "state": {}}
STATE = State(5, TENSORS, SCALARS)


def with_tensor(name: str, tensor: Tensor) -> State:
    return State(5, {**TENSORS, name: tensor}, SCALARS)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_digest_changes_with_every_bit_of_every_tensor() -> None:
    roots = {digest(STATE).root}
    flips = 0
    for name, tensor in TENSORS.items():
        for byte in range(tensor.numel() * tensor.element_size()):
            for bit in range(1 if tensor.dtype == torch.bool else 8):
                changed = tensor.clone().reshape(-1)
                changed.view(torch.uint8)[byte] ^= 1 << bit
                roots.add(digest(with_tensor(name, changed.reshape(tensor.shape))).root)
                flips += 1
    assert len(roots) == flips + 1 > 400


def _with_groups(**changes: Any) -> State:
    return State(5, TENSORS, {**SCALARS, "groups": [{**SCALARS["groups"][0], **changes}]})


CHANGES: dict[str, State] = {
    "step": State(6, TENSORS, SCALARS),
    "name": State(5, {("param.other" if n == "param.weight" else n): t for n, t in TENSORS.items()}, SCALARS),
    "tensor-missing": State(5, {n: t for n, t in TENSORS.items() if n != "buffer.empty"}, SCALARS),
    "tensor-added": with_tensor("buffer.more", torch.zeros(0)),
    "shape": with_tensor("param.weight", TENSORS["param.weight"].reshape(3, 2)),
    "dimension-of-one": with_tensor("buffer.count", TENSORS["buffer.count"].reshape(1)),
    "dtype": with_tensor("buffer.empty", torch.empty(0, dtype=torch.float64)),
    "dtype-of-equal-bytes": with_tensor("buffer.small", TENSORS["buffer.small"].view(torch.float32)),
    "negative-zero": with_tensor("param.weight", TENSORS["param.weight"].clone().copysign(torch.tensor(-1.0))),
    "scalar": _with_groups(lr={"float": (0.1 + 2**-56).hex()}),
    "scalar-bool": _with_groups(nesterov=True),
    "scalar-kind": _with_groups(nesterov={"int": "0"}),
    "scalar-missing": State(5, TENSORS, {"groups": [], "state": {}}),
}


def test_digest_changes_with_name_dtype_shape_step_and_scalars() -> None:
    roots = {name: digest(state).root for name, state in CHANGES.items()}
    assert len({*roots.values(), digest(STATE).root}) == len(CHANGES) + 1


def test_two_tensors_that_swap_names_are_another_state() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert digest(State(1, {"a": a, "b": b}, {})).root != digest(State(1, {"a": b, "b": a}, {})).root


def test_digest_does_not_depend_on_order_layout_or_file(tmp_path: Path) -> None:
    reordered = State(5, dict(reversed(TENSORS.items())), dict(reversed(SCALARS.items())))
    assert digest(reordered) == digest(STATE)
    strided = torch.arange(6, dtype=torch.float32).reshape(2, 3).t().contiguous().t()
    assert not strided.is_contiguous()
    assert digest(with_tensor("param.weight", strided)) == digest(STATE)
    image = torch.arange(48, dtype=torch.float32).reshape(2, 3, 2, 4)
    layouts = [with_tensor("x", image), with_tensor("x", image.contiguous(memory_format=torch.channels_last))]
    assert digest(layouts[0]) == digest(layouts[1])
    files = []
    for state in (STATE, reordered):
        save_checkpoint(state, tmp_path)
        files.append((tmp_path / "checkpoint.safetensors").read_bytes())
        assert digest(load_checkpoint(tmp_path)) == digest(STATE)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3 * (1 << 18) + 5), st.integers(0, 1 << 30))
def test_digest_is_what_the_docstring_says(size: int, seed: int) -> None:
    """Also across the 1 MiB chunks and the threshold where threads take over."""
    tensor = torch.randn(size, dtype=torch.float32, generator=torch.Generator().manual_seed(seed))
    raw = bytes_of(tensor)
    header = dumps({"name": "x", "dtype": "torch.float32", "shape": [size]})
    chunks = [raw[i : i + (1 << 20)] for i in range(0, len(raw), 1 << 20)]
    tensor_root = root([leaf_hash(header), *(leaf_hash(c) for c in chunks)])
    tail = dumps({"step": 3, "scalars": {}, "tensors": 1})
    found = digest(State(3, {"x": tensor}, {}))
    assert found.tensors == {"x": tensor_root}
    assert found.root == root([leaf_hash(tensor_root), leaf_hash(tail)])


class Model(nn.Module):
    """Parameters, and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("ids", torch.tensor([1, -2], dtype=torch.int32))
        self.register_buffer("scale", torch.tensor(1 / 3, dtype=torch.float64))
        self.register_buffer("not_saved", torch.tensor([2.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.frozen


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.5, 0.75), amsgrad=True, foreach=False)


def made(make: MakeOptimizer, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model().double()
    return model, make(model)


@pytest.fixture(autouse=True)
def compute_precision() -> Iterator[None]:
    """As inside a session: new tensors, such as Adam's counters, are in the compute precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad(set_to_none=True)
    model(x).pow(2).sum().backward()
    optimizer.step()
    for tensor in live_tensors(model, optimizer).values():
        if tensor.is_floating_point() and tensor.dim():
            tensor.data.copy_(tensor.data.float())


@pytest.mark.parametrize("make", [_sgd, _adam])
def test_captured_state_comes_back(make: MakeOptimizer) -> None:
    model, optimizer = made(make, 1)
    step(model, optimizer, 2)
    state = capture(1, model, optimizer, FLOAT32)
    assert {n.split(".")[0] for n in state.tensors} == {"param", "buffer", "optim"}
    assert "buffer.not_saved" in state.tensors, "the next step depends on it, whatever state_dict says"
    other, other_optimizer = made(make, 99)
    restore(state, other, other_optimizer, torch.float64)
    assert digest(capture(1, other, other_optimizer, FLOAT32)) == digest(state)
    # The next step is the same too, so nothing was left behind.
    for pair in ((model, optimizer), (other, other_optimizer)):
        step(*pair, 3)
    finals = [digest(capture(2, *pair, FLOAT32)) for pair in ((model, optimizer), (other, other_optimizer))]
    assert finals[0] == finals[1]
    assert finals[0] != digest(state)


def test_capture_shares_no_memory_with_the_model() -> None:
    model, optimizer = made(_adam, 1)
    step(model, optimizer, 2)
    state = capture(1, model, optimizer, FLOAT32)
    before = digest(state)
    step(model, optimizer, 3)
    with torch.no_grad():
        for tensor in live_tensors(model, optimizer).values():
            tensor.fill_(1)
    assert digest(state) == before


def test_capture_keeps_every_kind_of_value() -> None:
    model, optimizer = made(_sgd, 1)
    with torch.no_grad():
        model.get_parameter("linear.bias").copy_(torch.tensor([torch.nan, -torch.inf], dtype=torch.float64))
    state = capture(0, model, optimizer, FLOAT32)
    assert state.tensors["buffer.mask"].tolist() == [True, False]
    assert state.tensors["buffer.ids"].dtype == torch.int32
    assert state.tensors["param.linear.weight"].dtype == torch.float32
    # A 0-dimensional float is a counter: it keeps the compute precision.
    assert state.tensors["buffer.scale"].dtype == torch.float64 and state.tensors["buffer.scale"].item() == 1 / 3
    other, other_optimizer = made(_sgd, 2)
    restore(state, other, other_optimizer, torch.float64)
    assert digest(capture(0, other, other_optimizer, FLOAT32)) == digest(state)
    bias = other.get_parameter("linear.bias")
    assert bias[0].isnan() and bias[1] == -torch.inf


def test_capture_writes_row_major_order_for_any_layout() -> None:
    model = nn.Conv2d(3, 4, 2)
    plain = capture(0, model, _sgd(model), FLOAT32)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert not model.weight.is_contiguous()
    assert digest(capture(0, model, _sgd(model), FLOAT32)) == digest(plain)


@pytest.mark.parametrize("value", [1 / 3, -0.0, 1e-60])
def test_state_off_the_grid_is_found(value: float) -> None:
    model, optimizer = made(_sgd, 1)
    for tensor in live_tensors(model, optimizer).values():
        if tensor.is_floating_point() and tensor.dim():
            tensor.data.copy_(tensor.data.float())
    check_on_grid(model, optimizer, FLOAT32, {})
    buffer = model.get_buffer("norm.running_mean")
    buffer[1] = value
    with pytest.raises(OffGridError, match=r"buffer\.norm\.running_mean .*last written by aten\.mystery"):
        check_on_grid(model, optimizer, FLOAT32, {buffer.untyped_storage().data_ptr(): "aten.mystery"})


def _without(state: State, name: str) -> State:
    return State(state.step, {n: t for n, t in state.tensors.items() if n != name}, state.scalars)


def _replaced(state: State, name: str, tensor: Tensor) -> State:
    return State(state.step, {**state.tensors, name: tensor}, state.scalars)


def _scalars(state: State, change: Callable[[dict[str, Any]], Any]) -> State:
    scalars = json.loads(json.dumps(state.scalars))
    change(scalars)
    return State(state.step, state.tensors, scalars)


UNFIT: dict[str, Callable[[State], State]] = {
    "parameter-missing": lambda s: _without(s, "param.linear.bias"),
    "buffer-missing": lambda s: _without(s, "buffer.mask"),
    "unknown-parameter": lambda s: _replaced(s, "param.more", torch.ones(2)),
    "other-shape": lambda s: _replaced(s, "param.linear.weight", torch.ones(3, 2)),
    "broadcastable-shape": lambda s: _replaced(s, "param.linear.weight", torch.ones(1)),
    "integers-for-floats": lambda s: _replaced(s, "param.linear.bias", torch.ones(2, dtype=torch.int64)),
    "floats-for-integers": lambda s: _replaced(s, "buffer.ids", torch.ones(2)),
    "optimizer-of-no-parameter": lambda s: _replaced(s, "optim.more.exp_avg", torch.ones(2)),
    "no-groups": lambda s: _scalars(s, lambda x: x.pop("groups")),
    "other-number-of-groups": lambda s: _scalars(s, lambda x: x["groups"].append(x["groups"][0])),
    "setting-missing": lambda s: _scalars(s, lambda x: x["groups"][0].pop("lr")),
    "setting-unknown": lambda s: _scalars(s, lambda x: x["groups"][0].update(more=True)),
    "setting-malformed": lambda s: _scalars(s, lambda x: x["groups"][0].update(lr={"float": "1.0"})),
    "setting-of-no-kind": lambda s: _scalars(s, lambda x: x["groups"][0].update(lr={"a": 1, "b": 2})),
    "groups-are-text": lambda s: _scalars(s, lambda x: x.update(groups="ab")),
    "scalar-of-no-parameter": lambda s: _scalars(s, lambda x: x.update(state={"more": {"step": {"int": "1"}}})),
}


@pytest.mark.parametrize("how", UNFIT)
def test_state_of_another_job_is_a_finding(how: str) -> None:
    model, optimizer = made(_adam, 1)
    step(model, optimizer, 2)
    state = UNFIT[how](capture(1, model, optimizer, FLOAT32))
    other, other_optimizer = made(_adam, 1)
    with pytest.raises(EvidenceError) as caught:
        restore(state, other, other_optimizer, torch.float64)
    assert caught.value.reason in ("state_mismatch", "evidence_malformed")


def test_foreign_parameter_in_the_optimizer_is_refused() -> None:
    model = Model()
    with pytest.raises(SpecError, match="not the model's"):
        live_tensors(model, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))


def test_setting_without_a_form_is_refused() -> None:
    model, optimizer = made(_sgd, 1)
    optimizer.param_groups[0]["note"] = object()
    with pytest.raises(SpecError, match="'note'"):
        capture(0, model, optimizer, FLOAT32)
