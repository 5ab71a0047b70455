"""One operation for each parameter gives the very bits of the optimizers of torch.optim run operation by operation."""

from __future__ import annotations

import pytest
import torch
from update_support import CONFIGURATIONS, run

from vt_core.numerics import Grid, _jit_optimizers

SOME = ("SGD dampening", "SGD maximize nesterov", "Adam decay", "Adam amsgrad", "Adam far", "AdamW")
CASES = [(name, dtype, grid) for name in CONFIGURATIONS
         for dtype in (torch.float64, torch.float32) for grid in ("float32", "bfloat16", "float16", "float32-d8")
         if name in SOME or (dtype, grid) in ((torch.float64, "float32"), (torch.float32, "bfloat16"))]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "grid"), CASES, ids=str)
def test_a_fused_step_has_the_bits_of_the_operations(name: str, dtype: torch.dtype, grid: str) -> None:
    make, target = CONFIGURATIONS[name], Grid.parse(grid)
    assert run(make, dtype, target, True) == run(make, dtype, target, False)


@pytest.mark.parametrize(("name", "dtype"), [("SGD nesterov", torch.float32), ("Adam amsgrad", torch.float64)], ids=str)
def test_the_reference_has_the_same_bits(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    make, grid = CONFIGURATIONS[name], Grid.parse("float32")
    compiled = run(make, dtype, grid, True)
    called: list[str] = []
    monkeypatch.setattr(_jit_optimizers, "adam", lambda *_, **__: called.append("adam"))
    monkeypatch.setattr(_jit_optimizers, "sgd", lambda *_, **__: called.append("sgd"))
    monkeypatch.setenv("VT_REFERENCE_KERNELS", "1")
    assert run(make, dtype, grid, True) == compiled
    assert called == []
