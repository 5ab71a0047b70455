"""Kernels and reference give the same bits, the same log and the same findings, whatever the values and strides."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import COMPUTE, GRIDS, TOLERANCES, bits, nasty_values

from vt_core.numerics import (
    Grid,
    SiteEntries,
    Tolerance,
    _jit,
    auditor_round_,
    kernels,
    reference,
)


def assert_same_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    assert torch.equal(bits(a), bits(b))


def assert_same_audit(a: object, b: object) -> None:
    # repr, because NaN in a finding does not equal itself
    assert repr(a) == repr(b)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_trainer_and_auditor_on_nasty_values(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(COMPUTE))
    grid = Grid.parse(data.draw(st.sampled_from(GRIDS)))
    tolerance = data.draw(st.sampled_from(TOLERANCES[dtype]))
    floor = data.draw(st.sampled_from([0.0, 1.0, 1e30]))
    x = data.draw(nasty_values(dtype, grid))
    a, b = x.clone(), x.clone()
    by_kernel = kernels.trainer_round_(a, tolerance, grid, True, floor)
    by_reference = reference.trainer_round_(b, tolerance, grid, True, floor)
    assert_same_bits(a, b)
    assert by_kernel == by_reference
    assert kernels.fingerprint(a) == reference.fingerprint(b) == by_kernel.fingerprint

    other = data.draw(nasty_values(dtype, grid))
    a, b = other.clone(), other.clone()
    audit = kernels.auditor_round_(a, tolerance, grid, by_kernel.entries, True, floor)
    assert_same_audit(audit, reference.auditor_round_(b, tolerance, grid, by_kernel.entries, True, floor))
    assert_same_bits(a, b)
    assert audit.fingerprint == reference.fingerprint(a)

    a, b = x.clone(), x.clone()
    assert kernels.round_plain_(a, grid, True) == reference.round_plain_(b, grid, True)
    assert_same_bits(a, b)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("dtype", COMPUTE)
def test_many_values_around_the_edge_of_the_window(dtype: torch.dtype, name: str) -> None:
    """Elements tau or 2 tau, give or take a few places, from a rounding boundary, in every binade of the grid."""
    grid = Grid.parse(name)
    rng = np.random.default_rng(11)
    for tolerance in TOLERANCES[dtype]:
        for _ in range(2):
            count = 1 << 13
            scale = int(rng.integers(-90, 10))
            binade = np.maximum(scale - rng.integers(0, 40, count), grid.emin)
            spacing = 2.0 ** (binade - grid.precision + 1)
            steps = rng.integers(0, 2**grid.precision, count)
            steps[::5] = 2 ** (grid.precision - 1)  # powers of two: the boundary below is nearer
            boundary = (steps + rng.choice([0.5, -0.5, -0.25], count)) * spacing
            boundary *= rng.choice([1.0, -1.0], count)
            tau = np.abs(boundary) * tolerance.rtol + 2.0 ** (tolerance.atol_exp + scale)
            x = boundary + tau * rng.choice([0.0, 1.0, -1.0, 2.0, -2.0], count)
            x = x + np.spacing(np.abs(x)) * rng.integers(-2, 3, count)
            x = torch.from_numpy(np.clip(x, -(2.0**scale), 2.0**scale)).to(dtype)
            # Alone among zeros in a block, an element that the kernel's quick test misses is not found by luck.
            alone = torch.zeros(512 * _jit.BLOCK, dtype=dtype)
            alone[:: _jit.BLOCK] = x[:512]
            a, b = alone.clone(), alone.clone()
            assert kernels.trainer_round_(a, tolerance, grid, True, 2.0**scale) == reference.trainer_round_(
                b, tolerance, grid, True, 2.0**scale
            )
            a, b = x.clone(), x.clone()
            log = kernels.trainer_round_(a, tolerance, grid, True)
            assert log == reference.trainer_round_(b, tolerance, grid, True)
            assert_same_bits(a, b)
            other = x + torch.from_numpy(tau * rng.choice([0.0, 0.9, -0.9, 1.01], count)).to(dtype)
            a, b = other.clone(), other.clone()
            audit = kernels.auditor_round_(a, tolerance, grid, log.entries, True)
            assert_same_audit(audit, reference.auditor_round_(b, tolerance, grid, log.entries, True))
            assert_same_bits(a, b)


def strided(kind: str, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if kind == "channels_last":
        x = torch.randn(4, 6, 5, 7, dtype=dtype, generator=generator)
        return x.to(memory_format=torch.channels_last)
    if kind == "transposed":
        return torch.randn(40, 30, dtype=dtype, generator=generator).t()
    if kind == "sliced":
        return torch.randn(30, 80, dtype=dtype, generator=generator)[::2, 5:60:3]
    if kind == "zero-dim":
        return torch.randn((), dtype=dtype, generator=generator)
    return torch.empty(0, 3, dtype=dtype)


@pytest.mark.parametrize("dtype", COMPUTE)
@pytest.mark.parametrize("kind", ["channels_last", "transposed", "sliced", "zero-dim", "empty"])
@pytest.mark.parametrize("module", [kernels, reference])
def test_strides_do_not_matter(module: object, kind: str, dtype: torch.dtype) -> None:
    grid, tolerance = Grid.parse("bfloat16"), Tolerance(-12, -14)
    x = strided(kind, dtype)
    flat, plain, audited = x.clone(memory_format=torch.contiguous_format), x.clone(), x.clone()
    result = module.trainer_round_(x, tolerance, grid, True)  # type: ignore[attr-defined]
    expected = reference.trainer_round_(flat, tolerance, grid, True)
    assert_same_bits(x, flat)
    assert result == expected
    assert kind in ("zero-dim", "empty") or result.entries.positions.size > 3
    assert module.round_plain_(plain, grid, True) == reference.fingerprint(flat)  # type: ignore[attr-defined]
    audit = module.auditor_round_(audited, tolerance, grid, result.entries, True)  # type: ignore[attr-defined]
    assert_same_bits(audited, flat)
    assert audit.findings == [] and audit.fingerprint == result.fingerprint


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_results_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    grid, tolerance = Grid.parse("float32-d8"), Tolerance(None, -24)
    x = torch.randn(100_003, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    # A stretch where every element is a tie, so that the kernel's buffers overflow and it resumes.
    tie = 1.0 + 2.0**-16
    x[20_000:60_000] = tie
    expected = x.clone()
    whole = reference.trainer_round_(expected, tolerance, grid, True)
    monkeypatch.setattr(kernels, "PARALLEL_FROM", 1)
    monkeypatch.setattr(kernels, "worker_count", lambda: workers)
    y = x.clone()
    assert kernels.trainer_round_(y, tolerance, grid, True) == whole
    assert whole.entries is not None and whole.entries.positions.size > 40_000
    assert_same_bits(y, expected)
    z = x.clone()
    audit = kernels.auditor_round_(z, tolerance, grid, whole.entries, True)
    assert_same_bits(z, expected)
    assert (audit.fingerprint, audit.finding_count) == (whole.fingerprint, 0)


def test_fingerprint_is_the_documented_sum() -> None:
    values = [1.0, -2.5, float("inf"), float("nan"), 0.0, 2.0**-149]
    x = torch.tensor(values, dtype=torch.float64)
    total = 0
    for i, value in enumerate(values):
        pattern = 0x7FC00000 if np.isnan(value) else int(np.float32(value).view(np.uint32))
        total += pattern * ((2 * i + 1) * 0x9E3779B1 % 2**32)
    assert kernels.fingerprint(x) == reference.fingerprint(x) == total % 2**64


@pytest.mark.parametrize(("setting", "runs"), [("1", "reference"), ("0", "kernels"), (None, "kernels")])
def test_environment_variable_forces_the_reference(setting: str | None, runs: str) -> None:
    code = """
import sys, torch
from vt_core.numerics import Grid, Tolerance, kernels, reference, trainer_round_
for module in (kernels, reference):
    module.trainer_round_ = lambda *_, name=module.__name__: print(name.rpartition(".")[2])
trainer_round_(torch.ones(3), Tolerance(None, -20), Grid.parse("bfloat16"), False)
"""
    environment = {name: value for name, value in os.environ.items() if name != "VT_REFERENCE_KERNELS"}
    if setting is not None:
        environment["VT_REFERENCE_KERNELS"] = setting
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, timeout=120, capture_output=True, text=True
    )
    assert ran.stdout.split() == [runs]


def test_no_log_at_all_means_own_rounding() -> None:
    x = torch.tensor([1.0 + 2.0**-24, 2.0**-60, 3.0], dtype=torch.float64)
    result = auditor_round_(x, Tolerance(None, -44), Grid.parse("float32"), None, True)
    assert x.tolist() == [1.0, 0.0, 3.0]
    assert (result.entries, result.finding_count) == (0, 0)


def test_after_fork_the_thread_pool_works() -> None:
    """A forked child has no threads of the parent's pool; work must not wait for them for ever."""
    code = """
import os, torch
from vt_core.numerics import Grid, round_plain_, kernels
kernels.worker_count = lambda: 2
kernels.PARALLEL_FROM = 1
grid = Grid.parse("bfloat16")
before = round_plain_(torch.ones(5000, dtype=torch.float64), grid, True)
child = os.fork()
if child == 0:
    os._exit(0 if round_plain_(torch.ones(5000, dtype=torch.float64), grid, True) == before else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_entries_compare_values_as_bits() -> None:
    def site(value: float) -> SiteEntries:
        one = np.zeros(1, np.int64)
        return SiteEntries(0, one, np.zeros(1, np.uint8), one, np.array([value], np.float32))

    assert site(float("nan")) == site(float("nan"))
    assert site(0.0) != site(-0.0)
