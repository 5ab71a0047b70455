"""Exact contractions: equal on every CPU profile where plain ones differ, as accurate as promised, and log-free."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_support import under_profile
from exact_worker import SETTINGS, cases, plain, sums, tensor
from support.processes import prepare
from support.runs import SMALL_DIGITS, Trainer, audit
from support.worker import cases as jobs
from torch import Tensor

from vt_core.engine.exact_contractions import FORMS, treatment
from vt_core.engine.exact_products import MAX_TERMS, MIN_BITS, matmul
from vt_core.engine.exact_sums import exact_sum
from vt_core.engine.profiles import environment_for
from vt_core.errors import PrecisionError, SpecError
from vt_core.numerics import OpClass
from vt_core.numerics.quantise import product_bits
from vt_core.training.session import Session

PROFILES = ("default", "portable", "mkl-compatible")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def by_profile() -> dict[str, Any]:
    return {profile: under_profile(profile, "exact_worker") for profile in PROFILES}


@pytest.mark.parametrize("slices", [1, 2])
def test_the_same_bits_on_every_profile(by_profile: dict[str, Any], slices: int) -> None:
    for name in cases():
        assert len({by_profile[p][name][f"{slices} slices"] for p in PROFILES}) == 1, name


def test_plain_kernels_differ_between_the_profiles(by_profile: dict[str, Any]) -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("the profiles switch MKL, which this build of torch does not have")
    same = [name for name in cases() if len({by_profile[p][name]["plain"] for p in PROFILES}) == 1]
    assert not set(same) & {"mm", "mm-long", "bmm", "convolution"}, same


def test_sums_have_the_same_bits_on_every_profile(by_profile: dict[str, Any]) -> None:
    for name in sums():
        assert len({by_profile[p][name]["exact"] for p in PROFILES}) == 1, name
    same = [name for name in sums() if len({by_profile[p][name]["plain"] for p in PROFILES}) == 1]
    assert "sum" not in same, "or nothing is shown"


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def pairs(found: Any, expected: Any) -> list[tuple[Tensor, Tensor]]:
    if isinstance(found, Tensor):
        return [(found, expected)]
    return [(f, e) for f, e in zip(found, expected, strict=True) if f is not None]


@pytest.mark.parametrize("name", cases())
def test_accuracy(name: str) -> None:
    form, arguments = cases()[name]
    expected = plain(form, arguments)
    for found, wanted in pairs(FORMS[form](arguments, 1), expected):
        assert found.shape == wanted.shape and error(found, wanted) < 2.0 ** (2 - MIN_BITS), name
    for found, wanted in pairs(FORMS[form](arguments, 2), expected):
        assert error(found, wanted) < 2.0**-36, name


CONVOLUTIONS = {
    "stride": ((4, 6, 9, 9), (8, 6, 3, 3), {"stride": [2, 2]}),
    "dilation": ((4, 6, 9, 9), (8, 6, 3, 3), {"dilation": [2, 2], "padding": [2, 2]}),
    "groups": ((4, 6, 9, 9), (8, 3, 3, 3), {"groups": 2}),
    "depthwise": ((4, 6, 9, 9), (6, 1, 3, 3), {"groups": 6}),
    "transposed": ((4, 6, 5, 5), (6, 8, 3, 3), {"transposed": True, "stride": [2, 2], "output_padding": [1, 1]}),
    "transposed-groups": ((4, 6, 5, 5), (6, 4, 3, 3), {"transposed": True, "groups": 3}),
    "1d": ((4, 6, 30), (8, 6, 5), {"stride": [1], "padding": [2], "dilation": [1], "output_padding": [0]}),
    "3d": (
        (2, 3, 5, 6, 7), (4, 3, 3, 3, 3),
        {"stride": [1] * 3, "padding": [1] * 3, "dilation": [1] * 3, "output_padding": [0] * 3},
    ),
    "1x1": ((4, 6, 9, 9), (8, 6, 1, 1), {"padding": [0, 0]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_all_kinds(name: str) -> None:
    """Forward and the three backward passes: right, and exact (each operand's order reversed gives the same bits)."""
    x_shape, w_shape, changes = CONVOLUTIONS[name]
    settings = {**SETTINGS, **changes}
    x, w = tensor(*x_shape, seed=1), tensor(*w_shape, seed=2)
    bias = tensor(w_shape[1] * settings["groups"] if settings["transposed"] else w_shape[0], seed=3)
    forward = {"input": x, "weight": w, "bias": bias, **settings}
    expected = plain("convolution", forward)
    assert isinstance(expected, Tensor)
    found = FORMS["convolution"](forward, 1)
    assert isinstance(found, Tensor)
    assert error(found, expected) < 2.0**-17
    grad = tensor(*expected.shape, seed=4)
    backward = {
        "grad_output": grad,
        "input": x,
        "weight": w,
        "bias_sizes": [len(bias)],
        **settings,
        "output_mask": [True] * 3,
    }
    wanted = plain("convolution_backward", backward)
    got = FORMS["convolution_backward"](backward, 1)
    for f, e in pairs(got, wanted):
        assert f.shape == e.shape and error(f, e) < 2.0**-17
    # The sum over samples in another order.
    flipped = FORMS["convolution_backward"]({**backward, "grad_output": grad.flip(0), "input": x.flip(0)}, 1)
    assert torch.equal(flipped[1], got[1]) and torch.equal(flipped[2], got[2])  # type: ignore[arg-type]
    # The sum over channels in another order.
    if settings["groups"] == 1 and not settings["transposed"]:
        turned = FORMS["convolution"]({**forward, "input": x.flip(1), "weight": w.flip(1)}, 1)
        assert torch.equal(turned, found)  # type: ignore[arg-type]
    masked = FORMS["convolution_backward"]({**backward, "output_mask": [False, True, False]}, 1)
    assert masked[0] is None and masked[2] is None and torch.equal(masked[1], got[1])  # type: ignore[arg-type]


def test_long_sums_are_cut_and_keep_their_bits() -> None:
    assert product_bits(MAX_TERMS) == MIN_BITS > product_bits(MAX_TERMS + 1) - 1
    a, b = tensor(3, 3 * MAX_TERMS + 5, seed=1), tensor(3 * MAX_TERMS + 5, 4, seed=2)
    found = matmul(a, b, 1)
    parts = [matmul(a[:, i : i + MAX_TERMS], b[i : i + MAX_TERMS], 1) for i in range(0, a.shape[1], MAX_TERMS)]
    assert torch.equal(found, ((parts[0] + parts[1]) + parts[2]) + parts[3])
    assert error(found, a @ b) < 2.0 ** (3 - MIN_BITS)


def test_empty_products() -> None:
    assert torch.equal(matmul(tensor(3, 0, seed=1), tensor(0, 4, seed=2), 1), torch.zeros(3, 4, dtype=torch.float64))
    assert matmul(tensor(0, 5, seed=1), tensor(5, 4, seed=2), 1).shape == (0, 4)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_window_is_cut_by_channels(transposed: bool, slices: int) -> None:
    wide, few = MAX_TERMS // 9 + 7, 2
    settings = {**SETTINGS, "transposed": transposed}
    x = tensor(2, wide, 4, 5, seed=1)
    w = tensor(*((wide, few) if transposed else (few, wide)), 3, 3, seed=2)
    found = FORMS["convolution"]({"input": x, "weight": w, "bias": None, **settings}, slices)
    assert isinstance(found, torch.Tensor)
    first = MAX_TERMS // 9
    halves = []
    for c in (slice(0, first), slice(first, wide)):
        part = {"input": x[:, c], "weight": w[c] if transposed else w[:, c], "bias": None, **settings}
        halves.append(FORMS["convolution"](part, slices))
    assert torch.equal(found, halves[0] + halves[1])  # type: ignore[operator]
    plain = torch.ops.aten.convolution.default(x, w, None, *settings.values())
    assert error(found, plain) < 2.0 ** ((3 - MIN_BITS) * slices)
    # The gradient of a narrow input runs over as many channels the other way round.
    x, w = tensor(2, few, 4, 5, seed=1), tensor(*((few, wide) if transposed else (wide, few)), 3, 3, seed=2)
    grad = tensor(2, wide, 4, 5, seed=3)
    given = {"grad_output": grad, "input": x, "weight": w, **settings, "output_mask": [True, False, False]}
    by_input = FORMS["convolution_backward"](given, slices)[0]
    expected = torch.ops.aten.convolution_backward.default(
        grad, x, w, None, *settings.values(), [True, False, False]
    )[0]  # fmt: skip
    assert by_input is not None and error(by_input, expected) < 2.0 ** ((3 - MIN_BITS) * slices)
    halves = []
    for c in (slice(0, first), slice(first, wide)):
        part = {**given, "grad_output": grad[:, c], "weight": w[:, c] if transposed else w[c]}
        halves.append(FORMS["convolution_backward"](part, slices)[0])
    assert torch.equal(by_input, halves[0] + halves[1])


def test_a_window_too_large_to_cut_is_refused() -> None:
    x, w = tensor(1, 2, 91, 91, seed=1), tensor(2, 2, 91, 91, seed=2)  # 8,281 products a channel
    with pytest.raises(PrecisionError, match="contractions: logged"):
        FORMS["convolution"]({"input": x, "weight": w, "bias": None, **SETTINGS, "padding": [0, 0]}, 1)
    x, w = tensor(1, 2 * MAX_TERMS + 2, 1, 1, seed=1), tensor(2, MAX_TERMS + 1, 1, 1, seed=2)
    with pytest.raises(PrecisionError, match="contractions: logged"):
        FORMS["convolution"]({"input": x, "weight": w, "bias": None, **SETTINGS, "padding": [0, 0], "groups": 2}, 1)


def test_nan_and_infinity_go_where_they_belong() -> None:
    a, b = tensor(4, 9, seed=1), tensor(9, 5, seed=2)
    a[1, 3], b[2, 4], a[2, 2] = float("nan"), float("inf"), float("-inf")
    found, expected = matmul(a, b, 1), a @ b
    assert torch.equal(torch.isnan(found), torch.isnan(expected)) and torch.equal(found.isinf(), expected.isinf())


def test_exact_sum_does_not_depend_on_the_order() -> None:
    x = tensor(50, 6, 40, seed=1) * torch.exp2(torch.arange(50).double() - 25)[:, None, None]
    found = exact_sum(x, [0, 2])
    assert torch.equal(exact_sum(x.flip(0).flip(2), [0, 2]), found)
    assert not torch.equal(x.flip(0).flip(2).sum((0, 2)), x.sum((0, 2))), "or nothing is shown"
    assert error(found, x.sum((0, 2))) < 2.0**-35


@pytest.mark.parametrize("job", ["digits", "resnet", "gpt"])
@pytest.mark.parametrize("mode", ["exact", "exact2"])
def test_training_without_a_log_of_contractions(job: str, mode: str, tmp_path: Path) -> None:
    usual = jobs(prepare(tmp_path))[job]
    case = dataclasses.replace(usual, train={**usual.train, "steps": 2, "segment_steps": 2, "contractions": mode})
    trainer = Trainer(case, tmp_path / "run").run()
    verdict = audit(tmp_path / "run", location=case.location)
    assert (verdict["verdict"], verdict["reason"]) == ("verified", None), verdict["message"]
    assert verdict["counts"]["contraction"]["elements"] == 0, "nobody has a choice there"
    assert verdict["counts"]["reduction"]["elements"] > 0
    logged = dataclasses.replace(case, train={**case.train, "contractions": "logged"})
    other = Trainer(logged, tmp_path / "logged").run()
    if mode == "exact":  # with two slices both often round to the same float32
        assert other.final != trainer.final
    assert audit(tmp_path / "logged", location=case.location)["counts"]["contraction"]["elements"] > 0


@pytest.mark.slow
def test_exact_training_is_verified_on_another_profile(tmp_path: Path) -> None:
    case = jobs(prepare(tmp_path))["gpt"]
    case = dataclasses.replace(case, train={**case.train, "contractions": "exact"})
    Trainer(case, tmp_path / "run").run()
    program = (
        "import sys, json; from pathlib import Path; from support.runs import audit\n"
        "v = audit(Path(sys.argv[1]) / 'run', location=str(Path(sys.argv[1]) / 'text.txt'))\n"
        "print(json.dumps([v['verdict'], v['message'], v['counts']['contraction']['elements']]))"
    )
    environment = environment_for("portable") | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)[::2] == ["verified", 0], done.stdout


def test_a_wrong_product_is_found(tmp_path: Path) -> None:
    """A trainer who did not compute exactly has no log to excuse it."""
    case = dataclasses.replace(SMALL_DIGITS, train={**SMALL_DIGITS.train, "contractions": "exact"})

    def make(spec: Any, job: Any, dataset: Any) -> Session:
        session = Session(spec, job, dataset)
        session.mode.treatments[OpClass.CONTRACTION] = treatment(2)
        return session

    Trainer(case, tmp_path / "run", make=make).run()
    verdict = audit(tmp_path / "run")
    assert verdict["verdict"] == "rejected" and verdict["first_divergence"]["segment"] == 1
    assert "convolution" in verdict["first_divergence"]["op"]


def test_float32_compute_is_refused() -> None:
    train = {**SMALL_DIGITS.train, "compute_dtype": "float32", "grid": "bfloat16", "contractions": "exact"}
    with pytest.raises(SpecError, match="needs compute_dtype float64"):
        dataclasses.replace(SMALL_DIGITS, train=train).open()
    with pytest.raises(SpecError, match="one of logged, exact, exact2"):
        dataclasses.replace(SMALL_DIGITS, train={**SMALL_DIGITS.train, "contractions": "fast"}).open()


@pytest.mark.parametrize("shapes", [((3, 4), (5, 6)), ((2, 3, 4), (2, 5, 6)), ((2, 3, 4), (1, 4, 6))])
def test_operands_that_do_not_fit_are_refused(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        matmul(tensor(*shapes[0], seed=1), tensor(*shapes[1], seed=2), 1)


def test_a_bias_that_is_larger_than_the_product_is_refused() -> None:
    given = {"self": tensor(7, 6, seed=1), "mat1": tensor(1, 4, seed=2), "mat2": tensor(4, 6, seed=3)}
    with pytest.raises(RuntimeError, match="expand"):
        FORMS["addmm"](given, 1)


def test_convolutions_of_an_empty_batch() -> None:
    x, w = torch.empty(0, 3, 5, 5, dtype=torch.float64), tensor(4, 3, 3, 3, seed=1)
    grad = torch.empty(0, 4, 5, 5, dtype=torch.float64)
    given = {"grad_output": grad, "input": x, "weight": w, **SETTINGS, "output_mask": [True, True, True]}
    by_input, by_weight, by_bias = FORMS["convolution_backward"](given, 1)
    assert by_input is not None and by_input.shape == x.shape
    assert by_weight is not None and torch.equal(by_weight, torch.zeros_like(w))
    assert by_bias is not None and torch.equal(by_bias, torch.zeros(4, dtype=torch.float64))
