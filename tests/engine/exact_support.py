"""What tests of exact forms have in common."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.profiles import environment_for
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid

ROOT = Path(__file__).resolve().parents[2]


def under_profile(profile: str, module: str, *arguments: str) -> Any:
    """Return the JSON object that a module of tests/engine prints in a process under a CPU profile."""
    path = ":".join(str(p) for p in (ROOT, ROOT / "tests", ROOT / "tests" / "engine"))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=environment_for(profile) | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def make_mode(functions: str = "exact", contractions: str = "logged") -> VerifiedMode:
    """Return a trainer's mode, float64 onto float32, within step 1."""
    rounding = TrainerRounding(Grid.parse("float32"), DEFAULT["float64"], True)
    made = VerifiedMode(torch.float64, rounding, Streams(1), ModuleTracker(), False, contractions, functions)
    made.begin_step(1, 1)
    rounding.begin_step(1)
    return made


def logged(mode: VerifiedMode) -> dict[str, int]:
    """Return how many elements of which class had a rounding log."""
    return {str(k): c.elements for k, c in mode.rounding.counters.by_class.items() if c.elements}


def parts(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors of a result."""
    return value if isinstance(value, tuple) else (value,)


def same_bits(a: Any, b: Any) -> bool:
    """Compare results bit for bit; one NaN is like another."""
    pairs = [(x.contiguous().numpy(), y.contiguous().numpy()) for x, y in zip(parts(a), parts(b), strict=True)]
    return all(
        x.shape == y.shape and bool(((x.view(np.int64) == y.view(np.int64)) | (np.isnan(x) & np.isnan(y))).all())
        for x, y in pairs
    )


def check_like(found: Any, expected: Tensor, arguments: dict[str, Any], before: dict[str, Tensor], rtol: float) -> None:
    """The result is the operation's within ``rtol`` of its largest value, new, and the arguments are as ``before``."""
    assert isinstance(found, Tensor) and found.shape == expected.shape and found.dtype == torch.float64
    assert not found.numel() or float((found - expected).abs().max()) <= rtol * float(expected.abs().max())
    for key, value in before.items():
        assert torch.equal(arguments[key], value)
        assert not value.numel() or found.data_ptr() != arguments[key].data_ptr()


def check_no_log(call: Callable[[Tensor], Tensor], x: Tensor, weight_seed: int, rtol: float) -> None:
    """``call`` has no log forward and backward, and its result and gradient are PyTorch's within float32."""
    expected, found = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = call(expected)
    generator = torch.Generator().manual_seed(weight_seed)
    weight = torch.randn(y.shape, generator=generator, dtype=torch.float64).float().double()
    y.backward(weight)
    mode = make_mode()
    with mode:
        z = call(found)
        z.backward(weight)
    assert torch.allclose(z, y, rtol=1e-6, atol=1e-6)
    assert expected.grad is not None and torch.allclose(found.grad, expected.grad, rtol=rtol, atol=1e-6)
    assert logged(mode) == {}
