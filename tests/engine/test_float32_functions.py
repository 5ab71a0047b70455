"""Forms of functions that read float32 tensors themselves: the same bits as widened first and cut afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from elementary_worker import cases
from exact_support import logged, parts
from softmax_worker import loss_cases, softmax_cases
from torch import Tensor

from vt_core.engine import exact_elementary, exact_functions, exact_labels, exact_losses, exact_softmax
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Streams
from vt_core.errors import PrecisionError
from vt_core.numerics import DEFAULT, Grid, elementary, softmax
from vt_core.numerics import _jit_elementary_trigonometric as angles

FORMS = {**exact_elementary.FORMS, "pow": exact_elementary.pow_form, **exact_softmax.FORMS, **exact_losses.FORMS}
NAN, INF = float("nan"), float("inf")
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, INF, -INF, NAN, 2.0**-149, -(2.0**-149), 1e-40, -1e-40, 2.0**-126,
    3.4028234663852886e38, -3.4028234663852886e38, 88.72, 88.73, -87.3, -100.0, -103.9, -104.1, 1e-20, -1e20, 1.5e19,
    1.0 + 2.0**-23, 1.0 - 2.0**-24, -14.1, 9.0, -30.0,
]  # fmt: skip
NONE, MEAN, SUM = 0, 1, 2
Arguments = dict[str, Any]


def tensor(*shape: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def sizes(count: int, seed: int) -> Tensor:
    """Return numbers of all sizes and signs that float32 has."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.empty(count, dtype=torch.float64).uniform_(-150, 128, generator=generator)
    signs = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1.0
    return (torch.exp2(exponents) * signs).float()


def changed(arguments: Arguments, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Arguments:
    """Return the arguments with floating tensors changed and floating dtypes replaced."""
    found = {}
    for key, value in arguments.items():
        if isinstance(value, torch.dtype):
            value = dtype
        elif isinstance(value, Tensor) and value.is_floating_point():
            value = function(value)
        found[key] = value
    return found


def narrow(arguments: Arguments) -> Arguments:
    return changed(arguments, lambda t: t.float(), torch.float32)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare float32 tensors bit for bit; one NaN is like another."""
    x, y = a.contiguous().numpy(), b.contiguous().numpy()
    assert x.dtype == y.dtype == np.float32
    return x.shape == y.shape and bool(((x.view(np.int32) == y.view(np.int32)) | (np.isnan(x) & np.isnan(y))).all())


def check(monkeypatch: pytest.MonkeyPatch, name: str, arguments: Arguments) -> tuple[Tensor, ...]:
    """Compare a form of float32 tensors with itself of widened ones, cut; compiled and by plain tensor operations."""
    wide = changed(arguments, lambda t: t.double(), torch.float64)
    old = [t.float() for t in parts(FORMS[name](wide))]
    results = [parts(FORMS[name](arguments))]
    with monkeypatch.context() as patch:
        patch.setenv("VT_REFERENCE_KERNELS", "1")
        results.append(parts(FORMS[name](arguments)))
    given = {t.data_ptr() for t in arguments.values() if isinstance(t, Tensor)}
    for new in results:
        for found, expected in zip(new, old, strict=True):
            assert found.dtype in (torch.float32, torch.float64)
            assert found.stride() == expected.stride() or not found.numel()
            assert same_bits(found.float(), expected), name
            assert found.data_ptr() not in given or not found.numel()
    return tuple(t.float() for t in results[0])


def test_all_forms_are_named() -> None:
    assert set(FORMS) == exact_elementary.FLOAT32 | exact_softmax.FLOAT32 | exact_losses.FLOAT32
    assert set(FORMS) <= exact_functions.FLOAT32 and exact_labels.FLOAT32 <= exact_losses.FLOAT32


@pytest.mark.parametrize("name", cases(1))
def test_elementary_functions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, arguments = cases(40, 10)[name]
    check(monkeypatch, operation, narrow(arguments))
    special = torch.tensor(SPECIAL)
    first = torch.cat([sizes(300, 1), special.repeat(len(SPECIAL))])
    second = torch.cat([sizes(300, 2), special.repeat_interleave(len(SPECIAL))])
    if operation in ("sin", "cos", "tan"):
        first = torch.where((first.abs() > 2.0**20) & (first.abs() < INF), 2.0**20, first)
    tensors = [key for key, value in arguments.items() if isinstance(value, Tensor)]
    check(monkeypatch, operation, arguments | dict(zip(tensors, cycle((first, second)))))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.permute(3, 0, 2, 1),
    "with steps": lambda t: t[::2, :, 1::3],
    "expanded": lambda t: t[:1].expand(4, 6, 7, 5),
    "expanded columns": lambda t: t[..., :1].expand(4, 6, 7, 5),
    "no dimension": lambda t: t[0, 0, 0, 0],
    "nothing": lambda t: t[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    x, grad = (LAYOUTS[layout](tensor(4, 6, 7, 5, seed=seed)) for seed in (1, 2))
    (found,) = check(monkeypatch, "exp", {"self": x})
    assert found.stride() == torch.exp(x).stride() or not found.numel()
    check(monkeypatch, "gelu_backward", {"grad_output": grad, "self": x})
    for dim in range(-x.dim(), x.dim()) if x.dim() else (0, -1):
        check(monkeypatch, "_softmax", {"self": x, "dim": dim, "half_to_float": False})
        back = {"grad_output": grad, "output": -x.abs(), "dim": dim, "input_dtype": torch.float32}
        check(monkeypatch, "_log_softmax_backward_data", back)
    for reduction in (NONE, MEAN, SUM):
        given = {"self": x, "target": grad, "reduction": reduction}
        check(monkeypatch, "mse_loss", given)
        check(monkeypatch, "mse_loss_backward", given | {"grad_output": x if reduction == NONE else tensor()})


def test_tensors_are_broadcast(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tensor(3, 1, 4).abs(), tensor(5, 1, seed=1)
    for name, second in (("pow", "exponent"), ("hypot", "other"), ("xlogy", "other")):
        for a, b in ((x, y), (y, x), (x, y[0, 0]), (tensor(3, 5, 4), x)):
            check(monkeypatch, name, {"self": a, second: b})
    check(monkeypatch, "smooth_l1_loss", {"self": x, "target": y, "reduction": MEAN, "beta": 0.3})


def test_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(70, 4000)
    check(monkeypatch, "tanh", {"self": x})
    for dim in (0, 1):
        check(monkeypatch, "_softmax", {"self": x, "dim": dim, "half_to_float": False})


def test_results_beyond_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut once, to subnormal numbers, zero or infinity, as NumPy cuts what the C library has in float64."""
    x = torch.tensor([-87.5, -95.0, -103.0, -103.97, -103.98, -745.0, 88.72, 88.73, 3e38])
    (found,) = check(monkeypatch, "exp", {"self": x})
    with np.errstate(over="ignore", under="ignore"):
        expected = np.exp(x.double().numpy()).astype(np.float32)
    assert same_bits(found, torch.from_numpy(expected))
    tiny = (found > 0) & (found < 2.0**-126)
    assert tiny.sum() == 4 and (found == 0).sum() == 2 and found.isinf().sum() == 2
    row = torch.tensor([[0.0, -90.0, -100.0, -103.0, -104.0, -INF]])
    (share,) = check(monkeypatch, "_softmax", {"self": row, "dim": 1, "half_to_float": False})
    assert share[0].tolist() == [float(np.float32(math.exp(v))) for v in row[0].tolist()]
    (square,) = check(monkeypatch, "mse_loss", {"self": x, "target": -x, "reduction": NONE})
    assert square[-1] == INF


def test_nothing_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in between that float32 rounds, or does not have, give other results there."""
    x = tensor(1000, seed=3)
    (found,) = check(monkeypatch, "gelu", {"self": x})
    assert not same_bits(found, F.gelu(x)), "float32 arithmetic gives other bits"
    big, small = torch.full((1, 4), 3e30), torch.tensor([[1e-30, 1e20, -1e20, 1.0]])
    back = {"dim": 1, "input_dtype": torch.float32}
    (found,) = check(monkeypatch, "_softmax_backward_data", back | {"grad_output": big, "output": small})
    assert (big * small).isinf().any() and found.isfinite()[0, 0]
    lost = {"grad_output": torch.tensor([[1e-30, 1.0]]), "output": torch.tensor([[1e-30, 0.0]])}
    check(monkeypatch, "_softmax_backward_data", back | lost)
    labels = {"target": torch.tensor([0]), "reduction": SUM, "ignore_index": -100, "total_weight": tensor()}
    loss = {"self": torch.tensor([[1e-30]]), "weight": torch.tensor([1e30]), **labels}
    back = loss | {"grad_output": torch.tensor(1e-30), "weight": torch.tensor([1e-10])}
    check(monkeypatch, "nll_loss_forward", loss)
    (slope,) = check(monkeypatch, "nll_loss_backward", back)
    assert -(2.0**-126) < slope.item() < 0


SOFTMAX = {"_softmax": {"half_to_float": False}, "_log_softmax": {"half_to_float": False}, "_safe_softmax": {}}


def rows() -> dict[str, Tensor]:
    """Return matrices of rows that take different ways."""
    special, x = torch.tensor(SPECIAL), tensor(40, 33, seed=4)
    spoilt = x.clone()
    for row, value in enumerate((NAN, INF, -INF, 3.4e38, -3.4e38, -0.0, 1e-42)):
        spoilt[row, row] = value
    spoilt[10], spoilt[11], spoilt[12], spoilt[13] = -INF, NAN, INF, -0.0
    finite = torch.where(special.isfinite(), special, 0.0).repeat(40, 1)
    return {
        "usual": x, "spoilt": spoilt, "special": special.repeat(5, 1), "finite": finite, "far": 40 * x,
        "sizes": sizes(20 * 21, 5).view(20, 21), "tiny": x * 1e-42, "long": tensor(3, 2500, seed=6),
    }  # fmt: skip


@pytest.mark.parametrize("kind", rows())
def test_softmax_and_its_gradients(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    x = rows()[kind]
    grad = rows()[kind].flip(0, 1)
    for dim in (0, 1):
        for name, more in SOFTMAX.items():
            (y,) = check(monkeypatch, name, {"self": x, "dim": dim, **more})
            back = {"grad_output": grad, "dim": dim, "input_dtype": torch.float32}
            for output in (y, x):
                for gradient in ("_softmax_backward_data", "_log_softmax_backward_data"):
                    check(monkeypatch, gradient, back | {"output": output})
        check(monkeypatch, "logsumexp", {"self": x, "dim": [dim], "keepdim": True})
    check(monkeypatch, "logsumexp", {"self": x, "dim": [0, 1]})


@pytest.mark.parametrize("name", softmax_cases() | loss_cases())
def test_softmax_and_losses(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, arguments = (softmax_cases() | loss_cases())[name]
    given = narrow(arguments)
    check(monkeypatch, operation, given)
    if "reduction" in given and not operation.startswith("nll"):
        x = given["self"]
        for reduction in (NONE, SUM):
            more = {"reduction": reduction, "weight": x[0].abs()}
            if operation.endswith("backward"):
                more["grad_output"] = x.flip(0) if reduction == NONE else tensor()
            check(monkeypatch, operation, given | more)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_labels(monkeypatch: pytest.MonkeyPatch, reduction: int, weighted: bool) -> None:
    for suffix, shape, target in (
        ("", (6, 5), torch.tensor([1, 2, -100, 0, 4, 4])),
        ("", (5,), torch.tensor(3)),
        ("2d", (2, 5, 3, 2), torch.tensor([1, 2, -100, 0, 4, 4, 3, 3, 0, 0, 2, 1]).view(2, 3, 2)),
    ):
        weight = tensor(5, seed=2).abs() if weighted else None
        for x in (tensor(*shape), tensor(*shape, 2)[..., 0]):
            given = {"self": x, "target": target, "weight": weight, "reduction": reduction, "ignore_index": -100}
            _, total = check(monkeypatch, f"nll_loss{suffix}_forward", given)
            grad = tensor(*target.shape, seed=1) if reduction == NONE else tensor(seed=1)
            more = {"grad_output": grad, "total_weight": tensor(seed=7) if reduction == NONE else total}
            check(monkeypatch, f"nll_loss{suffix}_backward", given | more)


def test_dtypes_are_not_mixed() -> None:
    x = tensor(3, 4)
    assert exact_elementary.FORMS["atan2"]({"self": x, "other": x.double()}) is None
    back = {"grad_output": x, "output": x, "dim": 1}
    assert FORMS["_softmax_backward_data"](back | {"input_dtype": torch.float64}) is None
    assert FORMS["_softmax_backward_data"](back | {"output": x.double(), "input_dtype": torch.float32}) is None
    assert FORMS["_safe_softmax"]({"self": x, "dim": 1, "dtype": torch.float64}) is None
    assert FORMS["mse_loss"]({"self": x, "target": x.double()}) is None
    assert FORMS["mse_loss_backward"]({"self": x, "target": x, "grad_output": x.double(), "reduction": NONE}) is None
    nll = {"self": x, "target": torch.tensor([0, 1, 2]), "weight": None, "reduction": MEAN, "ignore_index": -100}
    assert FORMS["nll_loss_forward"](nll | {"weight": torch.ones(4, dtype=torch.float64)}) is None
    for name in ("exp", "sin", "_softmax", "_log_softmax", "logsumexp"):
        for dtype in (torch.bfloat16, torch.float16, torch.int64):
            assert FORMS[name]({"self": x.to(dtype), "dim": 1, "half_to_float": False}) is None
    for wrong in ((x.half(), x.half()), (x, x.double()), (x.double(), x)):
        with pytest.raises(PrecisionError):
            elementary.apply(angles.atan2, *wrong)
        with pytest.raises(PrecisionError):
            softmax.softmax_backward(*wrong, 1)


def in_mode(monkeypatch: pytest.MonkeyPatch, forms: frozenset[str], call: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Return the result and the gradient of a call with float32 compute, ``forms`` taking float32 as it is."""
    rounding = TrainerRounding(Grid.parse("float32"), DEFAULT["float32"], True)
    mode = VerifiedMode(torch.float32, rounding, Streams(1), ModuleTracker(), False, "logged", "exact")
    mode.begin_step(1, 1)
    rounding.begin_step(1)
    x, grads = tensor(24, 7, seed=8).requires_grad_(), (tensor(seed=9), tensor(24, seed=9), tensor(24, 7, seed=9))
    with monkeypatch.context() as patch, mode:
        patch.setattr(exact_functions, "FLOAT32", forms)
        y = call(x)
        y.backward(grads[y.dim()])
    assert x.grad is not None and logged(mode) == {}
    return [y.detach(), x.grad]


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "in place": lambda x: (x * 1.0).tanh_(),
    "power": lambda x: x.abs() ** 1.7,
    "softmax": lambda x: F.softmax(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "cross entropy": lambda x: F.cross_entropy(x, torch.arange(24) % 7),
    "log sigmoid": F.logsigmoid,
    "squares": lambda x: F.mse_loss(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_engine_gives_the_same_either_way(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    new = in_mode(monkeypatch, exact_functions.FLOAT32, CALLS[name])
    old = in_mode(monkeypatch, frozenset(), CALLS[name])
    assert all(same_bits(a, b) for a, b in zip(new, old, strict=True))
