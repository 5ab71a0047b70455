"""Exact losses: as PyTorch within rounding, the same by tensors and compiled, log-free in the dispatch mode.

That they are the same on every CPU profile is in ``test_exact_softmax``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from exact_support import make_mode, same_bits
from torch import Tensor

from vt_core.engine.exact_losses import FORMS
from vt_core.engine.mode import VerifiedMode

NAN, INF = float("nan"), float("inf")
NONE, MEAN, SUM = 0, 1, 2


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def share(*shape: int, seed: int = 0) -> Tensor:
    """Return values from 0 to 1, both included."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x.view(-1)[:4] = torch.tensor([0.0, 1.0, 1e-12, 1.0 - 2.0**-53])
    return x


def compare(monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any]) -> None:
    """Compare a form with the operation, and with itself by plain tensor operations."""
    found, expected = FORMS[name](given), getattr(torch.ops.aten, name)(**given)
    with monkeypatch.context() as patch:
        patch.setenv("VT_REFERENCE_KERNELS", "1")
        again = FORMS[name](given)
    assert found is not None and again is not None, (name, given)
    triples = (found, again, expected) if isinstance(found, tuple) else ((found,), (again,), (expected,))
    for value, other, wanted in zip(*triples, strict=True):
        assert value is not None and other is not None and value.shape == wanted.shape, (name, given)
        assert torch.allclose(value, wanted, rtol=1e-12, atol=1e-12, equal_nan=True), (name, given)
        assert same_bits(value, other), (name, given)
        pointers = {v.data_ptr() for v in given.values() if isinstance(v, Tensor) and v.numel()}
        assert not value.numel() or value.data_ptr() not in pointers, (name, given)


PAIRS: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
    "mse_loss": (tensor, {}),
    "smooth_l1_loss": (tensor, {"beta": 0.7}),
    "huber_loss": (tensor, {"delta": 0.7}),
    "soft_margin_loss": (tensor, {}),
    "binary_cross_entropy": (share, {}),
}


def layouts(make: Callable[..., Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    x, t = make(6, 7), make(6, 7, seed=1)
    yield x, t
    yield x.t(), make(7, 6, seed=1)
    yield make(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), make(2, 3, 4, 5, seed=1)
    yield make(1, 7).expand(6, 7), t
    yield x[0, 0], t[0, 0]
    yield x[:0], t[:0]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_losses_of_pairs_like_the_operations(monkeypatch: pytest.MonkeyPatch, name: str, reduction: int) -> None:
    make, constants = PAIRS[name]
    for x, t in layouts(make):
        given = {"self": x, "target": t, "reduction": reduction, **constants}
        grad = tensor(*x.shape, seed=2) if reduction == NONE else tensor(seed=2)
        compare(monkeypatch, name, given)
        compare(monkeypatch, f"{name}_backward", {"grad_output": grad, **given})
        if name == "binary_cross_entropy" and x.dim() == 2 and x.numel():
            weighted = given | {"weight": tensor(x.shape[1], seed=3)}
            compare(monkeypatch, name, weighted)
            compare(monkeypatch, f"{name}_backward", {"grad_output": grad, **weighted})


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_binary_cross_entropy_with_logits_like_the_operation(monkeypatch: pytest.MonkeyPatch, reduction: int) -> None:
    x, t = tensor(6, 7), share(6, 7)
    x[0, :4] = torch.tensor([800.0, -800.0, 1e-300, -0.0])
    for weight in (None, tensor(7, seed=1), tensor(6, 1, seed=2)):
        for positive in (None, share(7, seed=3) + 0.1):
            given = {"self": x, "target": t, "weight": weight, "pos_weight": positive, "reduction": reduction}
            compare(monkeypatch, "binary_cross_entropy_with_logits", given)


def test_special_values_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, INF, -INF, NAN, 1e200, -1e200, 5e-324], dtype=torch.float64)
    x, t = values.repeat_interleave(len(values)), values.repeat(len(values))
    for name in ("mse_loss", "smooth_l1_loss", "huber_loss"):
        for constants in (
            ({},) if name == "mse_loss" else ({}, {"beta": 0.5, "delta": 0.5}, {"beta": 0.0, "delta": 1.0})
        ):
            known = {k: v for k, v in constants.items() if k == ("beta" if name == "smooth_l1_loss" else "delta")}
            given = {"self": x, "target": t, "reduction": NONE, **known}
            compare(monkeypatch, name, given)
            back = {"beta": 1.0} if name == "smooth_l1_loss" else {"delta": 1.0} if name == "huber_loss" else {}
            compare(monkeypatch, f"{name}_backward", {"grad_output": torch.ones_like(x), **back, **given})
    compare(monkeypatch, "xlogy", {"self": x, "other": t})


def test_targets_are_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    for reduction in (NONE, MEAN, SUM):
        x, wide = tensor(4, 3, 5), tensor(4, 1, 5)
        grad = tensor(4, 3, 5, seed=2) if reduction == NONE else tensor(seed=2)
        for target in (tensor(3, 1), tensor(5), tensor()):
            given = {"self": x, "target": target, "reduction": reduction}
            compare(monkeypatch, "mse_loss", given)
            compare(monkeypatch, "mse_loss_backward", given | {"grad_output": grad})
        compare(monkeypatch, "mse_loss", {"self": wide, "target": x, "reduction": reduction})
        given = {"grad_output": grad, "self": wide, "target": x, "reduction": reduction}
        assert FORMS["mse_loss_backward"](given) is None, "PyTorch counts the elements of one of the two"


def labelled() -> Iterator[tuple[str, Tensor, Tensor]]:
    x = tensor(6, 7)
    yield "nll_loss", x, torch.tensor([1, 2, 3, 3, 6, 0])
    yield "nll_loss", x.t().contiguous().t(), torch.tensor([1, 2, 3, 3, 6, 0], dtype=torch.uint8)
    yield "nll_loss", x, torch.full((6,), 3)
    yield "nll_loss", x[:0], torch.zeros(0, dtype=torch.int64)
    yield "nll_loss", x[0], torch.tensor(4)
    yield "nll_loss", x[0], torch.tensor(3)
    yield "nll_loss2d", tensor(2, 7, 4, 3), torch.randint(7, (2, 4, 3), generator=torch.Generator().manual_seed(0))
    yield "nll_loss2d", tensor(2, 7, 4, 3)[:0], torch.zeros(0, 4, 3, dtype=torch.int64)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_losses_of_labels_like_the_operations(monkeypatch: pytest.MonkeyPatch, reduction: int) -> None:
    for name, x, target in labelled():
        for weight in (None, share(7)):
            for ignore in (3, -100):
                if target.dtype is torch.uint8 and ignore < 0:
                    continue
                given = {"self": x, "target": target, "weight": weight, "reduction": reduction, "ignore_index": ignore}
                compare(monkeypatch, f"{name}_forward", given)
                back = {"grad_output": tensor(*(target.shape if reduction == NONE else ()), seed=2)}
                back |= given | {"total_weight": torch.tensor(2.5, dtype=torch.float64)}
                if target.numel() and x.is_contiguous():
                    compare(monkeypatch, f"{name}_backward", back)


def test_a_class_of_no_weight_and_infinite_loss_counts_as_pytorch_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    x[0, 1] = -INF
    for ignore in (1, -100):
        given = {"self": x, "target": torch.tensor([1, 2]), "weight": None, "reduction": MEAN, "ignore_index": ignore}
        compare(monkeypatch, "nll_loss_forward", given)


def test_no_order_changes_a_bit() -> None:
    x, t = tensor(40_000), tensor(40_000, seed=1)
    order = torch.randperm(40_000, generator=torch.Generator().manual_seed(2))
    assert len({float(F.mse_loss(x.roll(i), t.roll(i))) for i in range(9)}) > 1, "or nothing is shown"
    for name in ("mse_loss", "huber_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy_with_logits"):
        for reduction in (MEAN, SUM):
            found = FORMS[name]({"self": x, "target": t, "reduction": reduction})
            again = FORMS[name]({"self": x[order], "target": t[order], "reduction": reduction})
            assert isinstance(found, Tensor) and isinstance(again, Tensor) and same_bits(found, again), name


def test_a_mean_is_divided_once() -> None:
    x = torch.arange(1, 8, dtype=torch.float64) / 8
    found = FORMS["mse_loss"]({"self": x, "target": torch.zeros_like(x)})
    assert isinstance(found, Tensor) and found.item() == float(sum(Fraction(v) ** 2 for v in x.tolist()) / 7)


def test_accuracy_of_logarithms() -> None:
    """Relative, within 2**-50: far from the middle as well."""
    x = torch.tensor([1e-30, 1e-9, 0.3, 0.5, 0.9, 1 - 2.0**-20, 1.0 - 2.0**-40], dtype=torch.float64)
    z = torch.tensor([-600.0, -30.0, -1.0, 1e-8, 0.5, 20.0, 300.0], dtype=torch.float64)
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    with mpmath.workdps(400):
        for name, at, target, exact in (
            ("binary_cross_entropy", x, zero, lambda v: -mpmath.log(1 - v)),
            ("binary_cross_entropy", x, one, lambda v: -mpmath.log(v)),
            ("binary_cross_entropy_with_logits", z, one, lambda v: mpmath.log(1 + mpmath.exp(-v))),
            ("soft_margin_loss", z, one, lambda v: mpmath.log(1 + mpmath.exp(-v))),
            ("soft_margin_loss", z, -one, lambda v: mpmath.log(1 + mpmath.exp(v))),
        ):
            found = FORMS[name]({"self": at, "target": target, "reduction": NONE})
            assert isinstance(found, Tensor)
            for v, value in zip(at.tolist(), found.tolist(), strict=True):
                expected = exact(mpmath.mpf(v))
                assert abs(value - expected) <= 2.0**-50 * abs(expected), (name, v)


def test_what_has_no_exact_form_is_left_to_pytorch() -> None:
    x, labels = tensor(4, 5), torch.tensor([0, 1, 2, 3])
    pair = {"self": x, "target": x, "reduction": MEAN}
    for other in ({"target": x.float()}, {"target": x[:3]}, {"self": x.long()}, {"reduction": 5}):
        assert FORMS["mse_loss"](pair | other) is None
        assert FORMS["mse_loss_backward"](pair | other | {"grad_output": x[0, 0]}) is None
    assert FORMS["mse_loss_backward"](pair | {"grad_output": x[:, :3]}) is None
    assert FORMS["huber_loss"](pair | {"delta": 0.0}) is None and FORMS["smooth_l1_loss"](pair | {"beta": -1.0}) is None
    assert FORMS["binary_cross_entropy"](pair) is None, "not from 0 to 1"
    assert FORMS["binary_cross_entropy"]({"self": share(4), "target": share(4), "weight": tensor(2, 4)}) is None
    assert FORMS["binary_cross_entropy_with_logits"](pair | {"pos_weight": x[:3]}) is None
    assert FORMS["xlogy"]({"self": x, "other": 2.0}) is None
    nll = {"self": x, "target": labels, "weight": None, "reduction": MEAN, "ignore_index": -100}
    for other in (
        {"target": labels + 2}, {"target": labels - 1}, {"target": labels.int()}, {"target": labels[:3]},
        {"self": x.half()}, {"self": x[None]}, {"weight": x[0, :4]}, {"self": x[:, :0]},
    ):  # fmt: skip
        assert FORMS["nll_loss_forward"](nll | other) is None
        assert FORMS["nll_loss_backward"](nll | other | {"grad_output": x[0, 0], "total_weight": x[0, 0]}) is None
    assert FORMS["nll_loss_backward"](nll | {"grad_output": x[0], "total_weight": x[0, 0]}) is None
    assert FORMS["nll_loss_backward"](nll | {"grad_output": x[0], "total_weight": x[0, 0], "reduction": NONE}) is None


@pytest.fixture
def mode() -> VerifiedMode:
    return make_mode()


LABELS = torch.tensor([1, 2, -100, 0, 4, 4])
RUNS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": lambda x, t: F.cross_entropy(x, LABELS),
    "cross entropy with weights": lambda x, t: F.cross_entropy(x, LABELS, weight=t[0]),
    "cross entropy, smoothed": lambda x, t: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "cross entropy of images": lambda x, t: F.cross_entropy(
        x.view(1, 6, 7, 1), LABELS.relu()[:7].repeat(2)[None, :7, None]
    ),
    "mse": lambda x, t: F.mse_loss(x, t),
    "l1": lambda x, t: F.l1_loss(x, t),
    "smooth l1": lambda x, t: F.smooth_l1_loss(x, t, beta=0.5),
    "huber": lambda x, t: F.huber_loss(x, t, reduction="none").sum(),
    "soft margin": lambda x, t: F.soft_margin_loss(x, t),
    "with logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t, pos_weight=t[0]),
    "kl_div": lambda x, t: F.kl_div(x, t, reduction="sum"),
    "binary cross entropy": lambda x, t: F.binary_cross_entropy(x.clamp(0.01, 0.99), t),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_log_forward_and_backward(mode: VerifiedMode, name: str) -> None:
    x, t = tensor(6, 7).float().double().requires_grad_(), (share(6, 7, seed=1) * 0.5 + 0.25).float().double()
    with mode:
        loss = RUNS[name](x, t)
        loss.backward()
    logged = {k: c.elements for k, c in mode.rounding.counters.by_class.items() if c.elements}
    assert not logged and mode.rounding.counters.plain and x.grad is not None
    found, x.grad = x.grad, None
    expected = RUNS[name](x, t)
    expected.backward()
    assert (
        torch.allclose(loss, expected, rtol=1e-6)
        and x.grad is not None
        and torch.allclose(found, x.grad, rtol=1e-5, atol=1e-7)
    )


def test_the_errors_of_pytorch_are_kept(mode: VerifiedMode) -> None:
    x = tensor(6, 7)
    with mode, pytest.raises(IndexError, match="out of bounds"):
        F.nll_loss(x, torch.full((6,), 7))
    with mode, pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(x, x)
