"""Exact normalisations of float32 tensors: the bits are those of widened tensors, cut at last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact_support import parts
from norms_worker import (
    Case,
    batch_norm,
    batch_norm_backward,
    fresh,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from torch import Tensor, nn

from vt_core.engine import exact_functions, norm_steps
from vt_core.engine.exact_norms import FLOAT32, FORMS
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid, _jit_quantise

INF = float("inf")


def tensor(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5
    return x * torch.exp2(torch.randint(-6, 6, shape, generator=generator).double())


INPUTS: dict[str, Tensor] = {
    "flat": tensor(40, 7),
    "2d": tensor(4, 6, 8, 9),
    "2d, channels_last": tensor(4, 6, 8, 9).contiguous(memory_format=torch.channels_last),
    "not contiguous": tensor(9, 6, 8).permute(2, 1, 0)[::2],
    "expanded": tensor(4, 6, 1, 9).expand(4, 6, 8, 9),
    "one term": tensor(1, 6, 1, 1),
    "threads": tensor(16, 34, 24, 24),
    "threads, channels_last": tensor(16, 34, 24, 24).contiguous(memory_format=torch.channels_last),
    "threads, flat": tensor(600, 500),
}


def single(case: Case) -> Case:
    """Return the case in float32, in the same layout."""
    given = {k: v.float() if isinstance(v, Tensor) else v for k, v in case[1].items()}
    return case[0], {k: v.expand(4, 6, 8, 9) if _expanded(case[1][k]) else v for k, v in given.items()}


def _expanded(value: object) -> bool:
    return isinstance(value, Tensor) and 0 in value.stride() and value.shape == (4, 6, 8, 9)


def of(x: Tensor) -> dict[str, Case]:
    """Return the cases for an input, in float32."""
    found: dict[str, Case] = {}
    for affine in (True, False):
        for training in (True, False):
            key = f"{training}, {affine}"
            found[f"batch, {key}"] = batch_norm(x, training, affine)
            found[f"batch backward, {key}"] = batch_norm_backward(x, training, affine)
        found[f"group, {affine}"] = group_norm(x, 2 if x.shape[1] % 2 == 0 else 1, affine)
        found[f"group backward, {affine}"] = group_norm_backward(x, 2 if x.shape[1] % 2 == 0 else 1, affine)
        found[f"layer, {affine}"] = layer_norm(x, 1, affine)
        found[f"layer backward, {affine}"] = layer_norm_backward(x, 1, affine)
        found[f"rms, {affine}"] = rms_norm(x, affine)
        found[f"rms backward, {affine}"] = rms_norm_backward(x, affine)
    found["batch, nothing kept"] = batch_norm(x, running=False)
    partly = {**batch_norm_backward(x)[1], "output_mask": [False, True, True]}
    found["batch backward, not of the input"] = "native_batch_norm_backward", partly
    return {key: single(case) for key, case in found.items()}


def everything(case: Case, widened: bool) -> tuple[Tensor | None, ...]:
    """Return the results, cut to float32, and the running statistics."""
    given: dict[str, Any] = fresh(case[1])
    before = {k: v.clone() for k, v in given.items() if isinstance(v, Tensor)}
    arguments = {k: v.double() if isinstance(v, Tensor) else v for k, v in given.items()} if widened else given
    found = FORMS[case[0]](arguments)
    assert found is not None
    for name in before:
        if name.startswith("running"):
            given[name].copy_(arguments[name])
        else:
            assert same_bits(given[name], before[name])
    return (*(t if t is None else t.float() for t in parts(found)), given.get("running_mean"), given.get("running_var"))


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Compare two float32 results; one NaN is like another."""
    if a is None or b is None:
        return a is b
    equal = a.contiguous().view(torch.int32) == b.contiguous().view(torch.int32)
    return a.shape == b.shape and a.dtype == b.dtype and bool((equal | (a.isnan() & b.isnan())).all())


def check(case: Case) -> tuple[Tensor | None, ...]:
    """The bits are the same as widened."""
    found = everything(case, widened=False)
    assert all(map(same_bits, found, everything(case, widened=True)))
    return found


@pytest.mark.parametrize("name", INPUTS)
def test_the_same_bits_as_widened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, case in of(INPUTS[name]).items():
        found = check(case)
        if "threads" not in name:
            with monkeypatch.context() as changed:
                changed.setenv("VT_REFERENCE_KERNELS", "1")
                assert all(map(same_bits, found, check(case))), key


def test_the_compiled_loops_read_and_write_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the comparison above compares the plain loops with themselves, and nothing is gained."""

    def fail(*arguments: object) -> None:
        raise AssertionError("not compiled")

    monkeypatch.setattr(norm_steps, "exact_sum", fail)
    widened: list[int] = []
    double = Tensor.double
    monkeypatch.setattr(Tensor, "double", lambda t: widened.append(t.numel()) or double(t))
    for name, x in INPUTS.items():
        for key, case in of(x).items():
            if name == "one term" or (name == "expanded" and "layer" in key):
                continue
            widened.clear()
            found = parts(FORMS[case[0]](fresh(case[1])))
            assert found[0] is None or found[0].dtype is torch.float32, (name, key)
            assert max(widened, default=0) < x.numel(), (name, key)


def test_every_form_is_named() -> None:
    assert set(FORMS) == FLOAT32
    x = tensor(6, 4, 10)
    given = single(batch_norm(x))[1]
    shorter = {k: v for k, v in given.items() if k != "training"}
    check(("_native_batch_norm_legit", given))
    check(("_native_batch_norm_legit_no_training", shorter))
    for name in ("_batch_norm_with_update", "_batch_norm_no_update"):
        *found, kept, _, _ = everything((name, shorter), widened=False)
        *wide, _, _, _ = everything((name, shorter), widened=True)
        assert all(map(same_bits, found, wide)) and kept is not None and kept.numel() == 0
    backward = single(batch_norm_backward(x))[1]
    renamed = {("update" if k == "train" else "save_var" if k == "save_invstd" else k): v for k, v in backward.items()}
    check(("batch_norm_backward", renamed))


UNUSUAL = [float("nan"), INF, -INF, 3e38, -3e38, 1e-40, -1e-45, 0.0, -0.0]


@pytest.mark.parametrize("value", UNUSUAL)
def test_unusual_values(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for x in (tensor(6, 4, 10), tensor(24, 12)):
        for case in of(x).values():
            for name in {"input", "grad_out"} & set(case[1]):
                y = case[1][name].clone()
                y[0, 1] = value
                changed = case[0], {**case[1], name: y}
                found = check(changed)
                with monkeypatch.context() as context:
                    context.setenv("VT_REFERENCE_KERNELS", "1")
                    assert all(map(same_bits, found, check(changed)))


@pytest.mark.parametrize("factor", [1e-39, 1e38])
def test_results_that_float32_has_no_room_for(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subnormal ones are rounded once, from float64; large ones become infinite."""
    shown = set()
    for x in (tensor(6, 4, 10), tensor(6, 4, 5, 2).contiguous(memory_format=torch.channels_last), tensor(24, 12)):
        for case in of(x).values():
            changes = {k: case[1][k] * factor for k in ("weight", "grad_out") if isinstance(case[1].get(k), Tensor)}
            changed = case[0], {**case[1], **changes}
            found = check(changed)
            assert found[0] is not None or not changed[1]["output_mask"][0]
            if found[0] is not None:
                y = found[0].abs()
                shown |= {case[0]} if ((y > 0) & (y < 2.0**-126)).any() or y.isinf().any() else set()
            with monkeypatch.context() as context:
                context.setenv("VT_REFERENCE_KERNELS", "1")
                assert all(map(same_bits, found, check(changed)))
    assert {"native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward"} <= shown


@pytest.mark.parametrize("workers", [1, 5])
def test_the_number_of_threads_changes_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("threads", "threads, channels_last", "threads, flat"):
        for key, case in of(INPUTS[name]).items():
            if "True" in key:
                found = everything(case, widened=False)
                with monkeypatch.context() as changed:
                    changed.setattr(_jit_quantise, "worker_count", lambda: workers)
                    assert all(map(same_bits, found, everything(case, widened=False))), key


def float32_mode() -> VerifiedMode:
    """Return a trainer's mode, float32 onto bfloat16, within step 1."""
    rounding = TrainerRounding(Grid.parse("bfloat16"), DEFAULT["float32"], True)
    made = VerifiedMode(torch.float32, rounding, Streams(1), ModuleTracker(), False, "logged", "exact")
    made.begin_step(1, 1)
    rounding.begin_step(1)
    return made


@pytest.mark.parametrize(
    "make", [lambda: nn.BatchNorm2d(6), lambda: nn.BatchNorm2d(6, momentum=None), lambda: nn.GroupNorm(3, 6),
             lambda: nn.LayerNorm([5, 5]), lambda: nn.RMSNorm(5)],
)  # fmt: skip
def test_modules_have_the_same_bits_as_widened(make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for names in (exact_functions.FLOAT32, frozenset[str]()):
        monkeypatch.setattr(exact_functions, "FLOAT32", names)
        module, factor = make(), tensor(4, 6, 5, 5, seed=1).bfloat16().float()
        leaf = tensor(4, 6, 5, 5).bfloat16().float().requires_grad_()
        with float32_mode() as mode:
            for _ in range(2):
                (module(leaf) * factor).sum().backward()
        assert all(counter.elements == 0 for counter in mode.rounding.counters.by_class.values())
        results.append((leaf.grad, *(p.grad for p in module.parameters()), *(b.float() for b in module.buffers())))
    assert all(map(same_bits, *results))
