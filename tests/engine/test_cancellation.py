"""Where the terms of a kernel cancel, two honest machines differ by more than the result's own size allows."""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cancel_worker import cases
from engine_support import TinyJob, assert_replays, floats, train, whole
from torch import Tensor, nn

from vt_core.engine.cancellation import NORM_ORDER, first_floor, norm_floor
from vt_core.engine.opclass import tolerance_class
from vt_core.engine.profiles import environment_for
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.scale import Bound, growths, scale_floors
from vt_core.numerics import DEFAULT

REPOSITORY = Path(__file__).resolve().parents[2]
DTYPES = {"float64": torch.float64, "float32": torch.float32}
X86 = platform.machine().lower() in ("x86_64", "amd64")
NAMES = ["softmax", "gelu", "gelu tanh", "gelu slope", "layer norm", "group norm", "batch norm"]


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Outputs of the same operations under the profile *portable*."""
    file = tmp_path_factory.mktemp("cancel") / "outputs.pt"
    environment = environment_for("portable") | {"PYTHONPATH": f"{REPOSITORY}:{Path(__file__).parent}"}
    subprocess.run([sys.executable, "-m", "cancel_worker", str(file)], env=environment, check=True)
    return torch.load(file, weights_only=True)


def divergence(dtype: str, operation: str, here: Tensor, there: Tensor, floor: float) -> float:
    """Return the largest ``|dx| / tau``."""
    tolerance = DEFAULT[dtype][tolerance_class(operation)]
    scale = max(float(here.abs().max()), floor)
    tau = tolerance.rtol * here.abs() + tolerance.atol * 2.0 ** math.ceil(math.log2(scale))
    return float(((here.double() - there.double()).abs() / tau.double()).max())


@pytest.mark.skipif(not X86, reason="the profiles choose x86 kernels")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_profiles_agree_within_the_tolerance(name: str, dtype: str, portable: Any) -> None:
    operation, arguments, outputs = cases(DTYPES[dtype])[name]
    floor = norm_floor(arguments, outputs[2]) if operation in NORM_ORDER else first_floor(operation, arguments)
    there = portable[str(DTYPES[dtype])][name][0]
    assert divergence(dtype, operation, outputs[0], there, floor) < 0.6


@pytest.mark.skipif(not X86, reason="the profiles choose x86 kernels")
@pytest.mark.parametrize("name", NAMES)
def test_without_the_bound_they_do_not(name: str, portable: Any) -> None:
    operation, _, outputs = cases(torch.float64)[name]
    there = portable["torch.float64"][name][0]
    if torch.equal(outputs[0], there) and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("on this CPU both profiles compute it alike")
    assert divergence("float64", operation, outputs[0], there, 0.0) > 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_of_a_bias_that_cancels_needs_the_floor(dtype: str) -> None:
    """Before a batch norm it is nothing but rounding errors, which are relative to its terms: here in two orders."""
    precision = DTYPES[dtype]
    grad = torch.randn(16, 4, 10, 10, dtype=precision, generator=torch.Generator().manual_seed(1))
    grad -= grad.mean((0, 2, 3), keepdim=True)
    terms = grad.transpose(0, 1).reshape(4, 40, 40)
    here, there = (t.cumsum(2)[:, :, -1].cumsum(1)[:, -1] for t in (terms, terms.transpose(1, 2)))
    arguments = {
        "grad_output": grad, "input": torch.ones(16, 2, 12, 12, dtype=precision), "transposed": False, "groups": 1,
        "weight": torch.ones(4, 2, 3, 3, dtype=precision),
    }  # fmt: skip
    floor = scale_floors("convolution_backward", arguments, 3)[2]
    assert growths("convolution_backward", arguments, 3)[2] == 0, "so the policy's own tolerance holds"
    assert divergence(dtype, "convolution_backward", here, there, floor) < 0.5
    assert divergence(dtype, "convolution_backward", here, there, 0.0) > 2


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


G, X = tensor(-2.0, 1.0), tensor(3.0, -5.0)


@pytest.mark.parametrize(
    ("name", "arguments", "floor"),
    [
        ("_softmax_backward_data", {"grad_output": G, "output": tensor(0.5, 0.5)}, 0.125),
        ("_log_softmax_backward_data", {"grad_output": G, "output": tensor(-1.0, -40.0)}, 0.25),
        ("gelu", {"self": X}, 5.0),
        ("gelu_backward", {"grad_output": G, "self": X}, 10.0),
        ("gelu_backward", {"grad_output": G, "self": X / 8}, 2.0),
        ("tanh_backward", {"grad_output": G, "output": X}, 2.0),
        ("native_layer_norm_backward", {"grad_out": G, "rstd": X}, 1.25),
        ("native_layer_norm_backward", {"grad_out": G, "rstd": X, "weight": tensor(0.5)}, 0.625),
        ("native_batch_norm_backward", {"grad_out": G, "save_invstd": tensor(), "weight": X}, 0.0),
        ("native_batch_norm_backward", {"grad_out": G, "save_invstd": None, "weight": None}, 0.0),
        ("tanh", {"self": X}, 0.0),
        ("gelu", {"self": tensor(math.inf, math.nan, 1.0)}, 1.0),
        ("_softmax_backward_data", {"grad_output": tensor(1e200), "output": tensor(1e200)}, 0.0),
    ],
)
def test_the_bound_is_the_size_of_a_term(name: str, arguments: dict[str, Any], floor: float) -> None:
    assert first_floor(name, arguments) == floor


class Norms(nn.Module):
    """Every kind of normalisation, with a constant row and channels far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.LayerNorm(64)
        )
        self.frozen, self.out = nn.BatchNorm1d(64).eval(), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.frozen.eval()
        result: Tensor = self.out(self.frozen(self.layers(x + 100.0)))
        return result


def test_normalisations_of_all_kinds_replay() -> None:
    arrays = {"x": floats(16, 2, 6, 6), "y": whole(3, 16)}
    job = TinyJob(Norms, arrays, lambda m, b: nn.functional.cross_entropy(20 * m(b["x"]), b["y"]))
    run = train(job, 3)
    for operation in ("native_batch_norm.", "native_group_norm.", "native_layer_norm.", "native_batch_norm_backward"):
        assert run.ran(f"aten.{operation}")
    assert_replays(job, run)


def test_the_engine_rounds_with_these_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, float]]] = {}
    plain = TrainerRounding.inexact

    def spy(self: TrainerRounding, x: Tensor, op_class: Any, bound: Bound, place: Any) -> None:
        seen.setdefault(place()[0].split(".")[1], []).append((x.dim(), bound.floor))
        plain(self, x, op_class, bound, place)

    monkeypatch.setattr(TrainerRounding, "inexact", spy)
    arrays = {"x": floats(16, 2, 6, 6), "y": whole(3, 16)}
    train(TinyJob(Norms, arrays, lambda m, b: nn.functional.cross_entropy(20 * m(b["x"]), b["y"])), 1)
    for operation in ("gelu", "gelu_backward", "_log_softmax_backward_data", "native_layer_norm_backward"):
        assert seen[operation][0][1] > 0, operation
    dims, bounds = zip(*seen["native_group_norm"], strict=True)
    assert dims == (2, 2, 4)  # mean and rstd are rounded before what needs them
    assert bounds[2] > 0
