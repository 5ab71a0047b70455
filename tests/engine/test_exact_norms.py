"""Exact normalisations: compiled and plain loops agree to the bit, are right, independent of order, and log-free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_support import make_mode, under_profile
from norms_worker import (
    Case,
    batch_norm,
    batch_norm_backward,
    digests,
    everything,
    group_norm,
    group_norm_backward,
    layer_norm,
    layer_norm_backward,
    plain,
    rms_norm,
    rms_norm_backward,
)  # fmt: skip
from torch import Tensor, nn

from vt_core.engine import exact_sums, norm_steps
from vt_core.engine.exact_norms import DEFAULT_EPS, FORMS
from vt_core.engine.mode import VerifiedMode
from vt_core.numerics import _jit_quantise

ROOT = Path(__file__).resolve().parents[2]
INF = float("inf")


def tensor(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5
    return x * torch.exp2(torch.randint(-6, 6, shape, generator=generator).double())


def nhwc(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def same_bits(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is None and b is None
    if not a.is_floating_point():
        return torch.equal(a, b)
    equal = a.contiguous().view(torch.int64) == b.contiguous().view(torch.int64)
    return a.shape == b.shape and bool((equal | (a.isnan() & b.isnan())).all())


INPUTS: dict[str, Tensor] = {
    "flat": tensor(40, 7),
    "1d": tensor(6, 7, 33),
    "2d": tensor(4, 5, 8, 9),
    "2d, one place": tensor(6, 5, 1, 1),
    "2d, channels_last": nhwc(tensor(4, 5, 8, 9)),
    "3d": tensor(2, 3, 4, 5, 6),
    "3d, channels_last": nhwc(tensor(2, 3, 4, 5, 6)),
    "not contiguous": tensor(9, 5, 8).permute(2, 1, 0)[::2],
    "expanded": tensor(4, 5, 1, 9).expand(4, 5, 8, 9),
    "one sample": tensor(1, 5, 8, 9),
    "threads": tensor(16, 33, 24, 24),
    "threads, channels_last": nhwc(tensor(16, 33, 24, 24)),
    "threads, flat": tensor(600, 500),
}


def of(x: Tensor) -> dict[str, Case]:
    """Return the cases that fit an input."""
    found: dict[str, Case] = {}
    groups = next(g for g in (3, 5, 2, 1) if x.shape[1] % g == 0)
    for affine in (True, False):
        for training in (True, False):
            key = f"{'training' if training else 'evaluation'}, {'affine' if affine else 'bare'}"
            found[f"batch, {key}"] = batch_norm(x, training, affine)
            found[f"batch backward, {key}"] = batch_norm_backward(x, training, affine)
        key = "affine" if affine else "bare"
        found[f"group, {key}"] = group_norm(x, groups, affine)
        found[f"group backward, {key}"] = group_norm_backward(x, groups, affine)
        dims = 1 if x.shape[-1] > 1 else 3
        found[f"layer, {key}"] = layer_norm(x, dims, affine)
        found[f"layer backward, {key}"] = layer_norm_backward(x, dims, affine)
        if dims == 1:
            found[f"rms, {key}"] = rms_norm(x, affine)
            found[f"rms backward, {key}"] = rms_norm_backward(x, affine)
    found["batch, nothing kept"] = batch_norm(x, running=False)
    return found


def uncompiled(monkeypatch: pytest.MonkeyPatch, case: Case) -> tuple[Any, ...]:
    with monkeypatch.context() as changed:
        changed.setenv("VT_REFERENCE_KERNELS", "1")
        return everything(*case, exact=True)


def check_close(found: tuple[Any, ...], expected: tuple[Any, ...], tolerance: float) -> None:
    for f, e in zip(found, expected, strict=True):
        assert (f is None) == (e is None)
        if e is not None and e.numel():
            assert f.shape == e.shape and f.dtype == e.dtype
            assert torch.equal(f.isnan(), e.isnan())
            scale = float(e.nan_to_num().abs().max()) or 1.0
            assert float((f - e).nan_to_num().abs().max()) <= tolerance * scale


@pytest.mark.parametrize("name", INPUTS)
def test_compiled_and_plain_agree_and_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, case in of(INPUTS[name]).items():
        found = everything(*case, exact=True)
        assert all(map(same_bits, found, uncompiled(monkeypatch, case))), key
        if case[0] != "_fused_rms_norm_backward":  # PyTorch has it for other devices only
            # Contiguous: some kernels of PyTorch assume one layout of all arguments.
            straight = {k: v.contiguous() if isinstance(v, Tensor) else v for k, v in case[1].items()}
            check_close(found, everything(case[0], straight, exact=False), 1e-8)
        for tensor_ in found:
            inputs = {v.data_ptr() for v in case[1].values() if isinstance(v, Tensor)}
            assert tensor_ is None or tensor_.numel() == 0 or tensor_.data_ptr() not in inputs, key


def test_the_compiled_loops_serve_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the comparison above compares the plain loops with themselves."""

    def fail(*arguments: object) -> None:
        raise AssertionError("not compiled")

    monkeypatch.setattr(norm_steps, "exact_sum", fail)
    for name in INPUTS:
        for case in of(INPUTS[name]).values():
            if name not in ("2d, one place", "one sample"):
                everything(*case, exact=True)


def test_the_gradient_of_the_root_mean_square() -> None:
    x, dy, w = tensor(20, 9), tensor(20, 9, seed=1), tensor(9, seed=2)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    expected = torch.autograd.grad(nn.functional.rms_norm(leaves[0], [9], leaves[1], 1e-5), leaves, dy)
    rstd = FORMS["_fused_rms_norm"]({"input": x, "normalized_shape": [9], "weight": w, "eps": 1e-5})[1]
    given = {"grad_out": dy, "input": x, "normalized_shape": [9], "rstd": rstd, "weight": w}
    found = FORMS["_fused_rms_norm_backward"]({**given, "output_mask": [True, True]})
    assert isinstance(found, tuple)
    check_close(found, expected, 1e-11)
    without = FORMS["_fused_rms_norm"]({"input": x, "normalized_shape": [9], "weight": w})
    named = FORMS["_fused_rms_norm"]({"input": x, "normalized_shape": [9], "weight": w, "eps": DEFAULT_EPS})
    assert isinstance(without, tuple) and isinstance(named, tuple) and all(map(same_bits, without, named))
    check_close(without[:1], plain("_fused_rms_norm", {"x": x, "s": [9], "w": w, "e": None})[:1], 1e-11)


def exactly(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and variance by sums in pairs of doubles: about 100 bits."""

    def total(values: list[Tensor]) -> tuple[Tensor, Tensor]:
        high, low = torch.zeros_like(values[0]), torch.zeros_like(values[0])
        for v in values:
            s = high + v
            b = s - high
            low = low + ((high - (s - b)) + (v - b))
            high = s
        return high, low

    kept = [d for d in range(x.dim()) if d not in dims]
    terms = list(x.permute(*dims, *kept).reshape(-1, *(x.shape[d] for d in kept)))
    high, low = total(terms)
    mean = (high + low) / len(terms)
    high, low = total([(t - mean) * (t - mean) for t in terms])
    return mean, (high + low) / len(terms)


def test_as_accurate_as_promised() -> None:
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 2
    mean, variance = exactly(x, (0, 2, 3))
    found = everything(*batch_norm(x, affine=False), exact=True)
    bound = 2.0 ** -(51 - 11 + 1)  # 2**11 terms
    largest = x.abs().amax((0, 2, 3))
    assert bool(((found[1] - mean).abs() <= largest * bound).all())
    spread = ((x - mean[:, None, None]) ** 2).amax((0, 2, 3))
    assert bool(((found[2] ** -2 - 1e-5 - variance).abs() <= 2 * spread * bound).all())
    operation, given = batch_norm(x, affine=False)
    single = plain(operation, {k: v.float() if isinstance(v, Tensor) else v for k, v in given.items()})[0].double()
    y = (x - mean[:, None, None]) / (variance + 1e-5).sqrt()[:, None, None]
    assert float((found[0] - y).abs().max()) < 1e-3 * float((single - y).abs().max())


def test_the_order_of_a_group_changes_nothing() -> None:
    x = tensor(64, 6, 12)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    plainly = [everything(*batch_norm(t), exact=False)[1] for t in (x, x[order])]
    assert not torch.equal(*plainly), "or nothing is shown"
    first, second = (everything(*batch_norm(t), exact=True) for t in (x, x[order]))
    assert same_bits(first[0][order], second[0])
    assert all(map(same_bits, first[1:], second[1:]))


def test_memory_layouts_have_the_same_bits() -> None:
    x = tensor(8, 6, 10, 12)
    for make in (batch_norm, batch_norm_backward):
        found = everything(*make(x), exact=True)
        assert all(map(same_bits, found, everything(*make(nhwc(x)), exact=True)))


@pytest.mark.parametrize("value", [float("nan"), INF, -INF, 2.0**490, 1e200, 1e-300, 0.0])
def test_unusual_values(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for x in (tensor(6, 4, 10), tensor(24, 12)):
        y = x.clone()
        y[0, 1] = value
        for case in of(y).values():
            for changed in (case, (case[0], {**case[1], "grad_out": y}) if "grad_out" in case[1] else case):
                found = everything(*changed, exact=True)
                assert all(map(same_bits, found, uncompiled(monkeypatch, changed)))
                if case[0] != "_fused_rms_norm_backward" and abs(value) < 2.0**480:
                    expected = everything(*changed, exact=False)
                    for f, e in zip(found, expected, strict=True):
                        assert not isinstance(e, Tensor) or torch.equal(f.isfinite(), e.isfinite())


def test_constant_groups_without_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    operation, arguments = batch_norm(torch.full((4, 3, 5), 2.0, dtype=torch.float64))
    case = operation, {**arguments, "eps": 0.0}
    found = everything(*case, exact=True)
    assert all(map(same_bits, found, uncompiled(monkeypatch, case)))
    assert bool(found[0].isnan().all()) and bool((found[2] == INF).all())


def test_long_sums_take_the_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sums, "MAX_SUM_TERMS", 16)
    x = tensor(6, 4, 10)
    for case in of(x).values():
        found = everything(*case, exact=True)
        assert all(map(same_bits, found, uncompiled(monkeypatch, case)))
        if case[0] != "_fused_rms_norm_backward":
            check_close(found, everything(*case, exact=False), 1e-8)


MASKS = [[a, b, c] for a in (False, True) for b in (False, True) for c in (False, True)]


@pytest.mark.parametrize("make", [batch_norm_backward, lambda x: group_norm_backward(x, 2), layer_norm_backward])
def test_only_what_is_asked_for(make: Callable[[Tensor], Case]) -> None:
    for x in (tensor(6, 4, 10), nhwc(tensor(6, 4, 5, 2))):
        operation, arguments = make(x)
        full = FORMS[operation](arguments)
        assert isinstance(full, tuple)
        for mask in MASKS:
            found = FORMS[operation]({**arguments, "output_mask": mask})
            assert isinstance(found, tuple)
            for wanted, f, e in zip(mask, found, full, strict=True):
                assert same_bits(f, e) if wanted else f is None


def test_other_names_of_batch_norm() -> None:
    x = tensor(6, 4, 10)
    _, given = batch_norm(x)
    trained = everything("native_batch_norm", given, exact=True)
    evaluated = everything("native_batch_norm", {**given, "training": False}, exact=True)
    shorter = {k: v for k, v in given.items() if k != "training"}
    bare = {k: v for k, v in given.items() if not k.startswith("running")}
    for operation, arguments, expected in (
        ("_native_batch_norm_legit", given, trained),
        ("_native_batch_norm_legit", {**given, "training": False}, evaluated),
        ("_batch_norm_with_update", shorter, trained),
        ("_native_batch_norm_legit_no_training", shorter, evaluated),
        ("_batch_norm_no_update", shorter, evaluated),
    ):
        found, wanted = everything(operation, arguments, exact=True), everything(operation, arguments, exact=False)
        assert all(map(same_bits, found[:3], expected[:3])) and all(map(same_bits, found[-2:], expected[-2:]))
        check_close(found, wanted, 1e-8)
    found = everything("_native_batch_norm_legit", bare, exact=True)
    assert all(map(same_bits, found[:3], trained[:3]))
    _, backward = batch_norm_backward(x)
    renamed = {("update" if k == "train" else "save_var" if k == "save_invstd" else k): v for k, v in backward.items()}
    for f, e in zip(
        FORMS["batch_norm_backward"](renamed),
        FORMS["native_batch_norm_backward"](backward),
        strict=True,
    ):
        assert same_bits(f, e)


def test_what_does_not_fit_is_left_to_pytorch() -> None:
    x = tensor(6, 4, 10)
    for (operation, arguments), changes in (
        (batch_norm(x), {"weight": tensor(5)}),
        (batch_norm(x), {"input": x.float()}),
        (batch_norm(x), {"input": tensor(4)}),
        (batch_norm(x), {"input": tensor(0, 4, 10)}),
        (batch_norm(x), {"running_var": tensor(4).float()}),
        (batch_norm(x, training=False), {"running_var": None}),
        (batch_norm_backward(x), {"grad_out": tensor(6, 4, 9)}),
        (batch_norm_backward(x), {"save_mean": None}),
        (group_norm(x, 2), {"group": 3}),
        (group_norm(x, 2), {"N": 7}),
        (group_norm_backward(x, 2), {"mean": tensor(6, 3)}),
        (layer_norm(x), {"normalized_shape": [9]}),
        (layer_norm(x), {"normalized_shape": []}),
        (layer_norm(tensor(3, 0)), {}),
        (layer_norm_backward(x), {"rstd": tensor(6, 5, 1)}),
        (rms_norm(x), {"weight": tensor(9)}),
        (rms_norm_backward(x), {"grad_out": tensor(6, 4, 9)}),
    ):
        assert FORMS[operation]({**arguments, **changes}) is None


def test_nothing_to_normalise() -> None:
    for case in (
        layer_norm(tensor(0, 4)), layer_norm_backward(tensor(0, 4)), batch_norm(tensor(0, 4, 3), training=False),
        batch_norm(tensor(2, 0, 3), training=False), rms_norm(tensor(0, 4)),
    ):  # fmt: skip
        check_close(everything(*case, exact=True), everything(*case, exact=False), 0.0)
    for case in (batch_norm_backward(tensor(0, 4, 3)), batch_norm_backward(tensor(0, 4, 3), training=False)):
        dx, dw, db = everything(*case, exact=True)[:3]  # some versions of PyTorch crash here
        assert dx.shape == (0, 4, 3) and not dw.any() and not db.any()


@pytest.fixture
def mode() -> VerifiedMode:
    return make_mode()


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch": (nn.BatchNorm2d(6), (4, 6, 5, 5)),
    "batch, average over all": (nn.BatchNorm1d(6, momentum=None), (4, 6, 5)),
    "batch, nothing kept": (nn.BatchNorm3d(6, track_running_stats=False), (4, 6, 5, 2, 2)),
    "batch, evaluation": (nn.BatchNorm2d(6).eval(), (4, 6, 5, 5)),
    "batch, bare": (nn.BatchNorm1d(6, affine=False), (9, 6)),
    "instance": (nn.InstanceNorm2d(6, affine=True), (4, 6, 5, 5)),
    "group": (nn.GroupNorm(3, 6), (4, 6, 5, 5)),
    "layer": (nn.LayerNorm([5, 5]), (4, 6, 5, 5)),
    "rms": (nn.RMSNorm(5), (4, 6, 5)),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_no_log(name: str, mode: VerifiedMode) -> None:
    module, shape = MODULES[name]
    module = module.double()
    x, factor = (tensor(*shape, seed=seed).float().double() for seed in (1, 2))
    state = {k: v.clone() for k, v in module.state_dict().items()}
    results = []
    for verified in (True, False):
        module.load_state_dict(state)
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        if verified:
            with mode:
                y = module(leaf)
                (y * factor).sum().backward()
        else:
            y = module(leaf)
            (y * factor).sum().backward()
        results.append(
            (y.detach(), leaf.grad, *(p.grad for p in module.parameters()), *(b.clone() for b in module.buffers()))
        )
    assert all(counter.elements == 0 for counter in mode.rounding.counters.by_class.values())
    for f, e in zip(*results, strict=True):
        # The root mean square is a product at last here: exact, so not rounded.
        assert e.dtype == torch.int64 or name == "rms" or same_bits(f, f.float().double())
    check_close(tuple(t.double() for t in results[0]), tuple(t.double() for t in results[1]), 1e-5)


@pytest.mark.parametrize("workers", [1, 5])
def test_the_number_of_threads_changes_nothing(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("threads", "threads, channels_last", "threads, flat"):
        for key, case in of(INPUTS[name]).items():
            found = everything(*case, exact=True)
            with monkeypatch.context() as changed:
                changed.setattr(_jit_quantise, "worker_count", lambda: workers)
                assert all(map(same_bits, found, everything(*case, exact=True))), key


def test_every_profile_has_the_same_bits() -> None:
    found = [digests(), under_profile("portable", "norms_worker")]
    differing = {name for name in found[0] if len({f[name]["plain"] for f in found}) > 1}
    assert {"batch", "layer", "group"} <= differing, "or nothing is shown"
    for name in found[0]:
        assert len({f[name]["exact"] for f in found}) == 1, name
