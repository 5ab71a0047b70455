"""Operations called exact are exact, on this machine and on its other code paths; those that are not are canonical."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vt_core.engine import proof
from vt_core.engine.opclass import ARITHMETIC, CANONICAL, EXACT, SELECTION, TIE_ORDER
from vt_core.engine.profiles import environment_for
from vt_core.engine.proof import check_device, compare
from vt_core.engine.proof_cases import Case, nasty
from vt_core.numerics import correctly_rounded_sqrt

REPOSITORY = Path(__file__).resolve().parents[2]
X86 = platform.machine().lower() in ("x86_64", "amd64")

# Nothing to compare: no values, or none of floating point, or memory that nobody has written yet.
NO_VALUES = frozenset(
    [
        "_assert_async",
        "_assert_tensor_metadata",
        "_local_scalar_dense",
        "empty",
        "empty_like",
        "empty_strided",
        "is_nonzero",
        "new_empty",
        "new_empty_strided",
        "numel",
        "record_stream",
        "resize",
        "set",
        "tril_indices",
        "triu_indices",
    ]
)
# Same kernels as a member that is proven, in another number of dimensions or as a rare form.
SIBLINGS = frozenset(
    [
        "_reshape_alias_copy",
        "_unsafe_masked_index",
        "adaptive_max_pool3d",
        "as_strided_scatter",
        "nonzero_static",
        "reflection_pad3d",
        "replication_pad3d",
        "unfold",
        "unique_consecutive",
        "unique_dim",
    ]
)


@cache
def under(profile: str) -> dict[str, Any]:
    environment = environment_for(profile) | {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'engine'}",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    command = [sys.executable, "-W", "ignore", "-m", "proof_worker"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("profile", ["default", "aten-scalar", "portable"])
def test_every_exact_operation_agrees_with_its_definition(profile: str) -> None:
    found = under(profile)
    assert [f"{op}: {detail}" for op, ok, detail in found["proof"] if not ok] == []


def test_the_profiles_run_other_code() -> None:
    if not X86:
        pytest.skip("ATEN_CPU_CAPABILITY chooses between x86 vector widths")
    assert under("default")["capability"] != under("portable")["capability"]


def test_every_exact_operation_has_a_case() -> None:
    proven = {op for op, _, _ in under("default")["proof"]}
    assert proven >= ARITHMETIC | TIE_ORDER
    assert proven <= EXACT, "cases for operations that are not called exact"
    assert SELECTION - proven == NO_VALUES | SIBLINGS


def test_every_name_is_an_operation_of_pytorch() -> None:
    known = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert [n for n in sorted(EXACT | CANONICAL) if not known & {n, f"{n}_"}] == []


def test_an_operation_that_is_not_exact_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [
        Case("mul", "mul", lambda x, y: x * y * (1 + 2**-52), lambda a, b: a * b),
        Case("neg", "neg", lambda x, y: 0 - x, lambda a, b: -a),  # the sign of zero
        Case("flip", "flip", lambda x, y: x, lambda a, b: a[:, ::-1]),
        Case(
            "argmax", "argmax", lambda x, y: x.shape[1] - 1 - x.flip(1).argmax(1), lambda a, b: a.argmax(1), tied=True
        ),
        Case("add", "add", lambda x, y: (x.double() + y.double() * 1).sum(), lambda a, b: a + b),
        Case("div", "div", lambda x, y: x * (1 / torch.tensor(10.0, dtype=x.dtype)), lambda a, b: a / a.dtype.type(10)),
    ]
    monkeypatch.setattr(proof, "ALL_CASES", wrong)
    assert [op for op, ok, _ in check_device(torch.device("cpu")) if ok] == []


def test_an_operation_that_a_device_lacks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "ALL_CASES", [Case("eye", "eye", lambda x, y: torch.eye(-1), lambda a, b: a)])
    ((op, ok, detail),) = check_device(torch.device("cpu"))
    assert (op, ok) == ("eye", False) and "does not run" in detail


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_reference_itself_is_correctly_rounded(dtype: type[np.floating[Any]]) -> None:
    """NumPy against exact fractions: rounding a quotient of integers in Python is correct by definition."""
    rng = np.random.default_rng(0)
    a, b = (nasty(rng, (40, 50), dtype).ravel() for _ in range(2))
    compared = 0
    with np.errstate(all="ignore"):
        results = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}
    for op, result in results.items():
        for x, y, z in zip(a, b, result, strict=True):
            if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)) or (op == "/" and y == 0) or z == 0:
                continue
            p, q = Fraction(float(x)), Fraction(float(y))
            exact = p + q if op == "+" else p - q if op == "-" else p * q if op == "*" else p / q
            # To float32 by way of float64: 53 bits are more than 2 * 24 + 2, so rounding twice changes nothing.
            assert dtype(float(exact)) == z, (op, x, y)
            compared += 1
    assert compared > 3000


@pytest.mark.skipif(not X86, reason="torch.sqrt goes through a vector maths library on x86 only")
@pytest.mark.parametrize(("dtype", "share"), [(np.float64, 1e-4), (np.float32, 1e-4)])
def test_torch_sqrt_is_not_correctly_rounded_on_x86_and_ours_is(dtype: type[np.floating[Any]], share: float) -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("this build of PyTorch has no MKL")
    x = np.abs(np.random.default_rng(1).standard_normal(100_000)).astype(dtype)
    expected = np.sqrt(x)
    assert (torch.sqrt(torch.from_numpy(x)).numpy() != expected).mean() > share
    assert compare(correctly_rounded_sqrt(torch.from_numpy(x)).numpy(), expected, False) == ""


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_our_sqrt_is_correctly_rounded_on_nasty_values(dtype: type[np.floating[Any]]) -> None:
    x = nasty(np.random.default_rng(2), (50, 77), dtype)
    with np.errstate(all="ignore"):
        expected = np.sqrt(x)
    for laid in (torch.from_numpy(x), torch.from_numpy(x).t().contiguous().t()):
        assert compare(correctly_rounded_sqrt(laid).numpy(), expected, False) == ""


@pytest.mark.skipif(not X86, reason="the kernels differ between x86 vector widths")
def test_kernels_with_fma_differ_between_profiles_and_canonical_forms_do_not() -> None:
    default, portable = under("default")["digests"], under("portable")["digests"]
    assert {n for n in default if default[n]["form"] != portable[n]["form"]} == set()
    same = {n for n in default if default[n]["kernel"] == portable[n]["kernel"]}
    if under("default")["capability"] != under("portable")["capability"]:
        assert not same & {"addcmul float64", "lerp float64", "add float64"}
