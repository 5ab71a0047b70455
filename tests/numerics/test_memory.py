"""The compiled kernels get addresses: they read and write nothing but the tensors they are given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vt_core.errors import PrecisionError
from vt_core.numerics import Grid, round_plain_
from vt_core.numerics.convolution import Settings, convolution_forward

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(sys.platform != "linux", reason="guards pages with mprotect")
@pytest.mark.parametrize("size", [(28, 28), (16, 16), (8, 9), (16, 7)])
def test_convolutions_read_nothing_behind_their_operands(size: tuple[int, int]) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "guarded_worker.py"), *map(str, size)],
        cwd=HERE.parents[1], env={"PYTHONPATH": str(HERE.parents[1]), "PATH": "", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "compared" in done.stdout


@pytest.mark.parametrize("kind", ["resized", "zero"])
def test_a_tensor_without_memory_is_refused(kind: str) -> None:
    if kind == "zero":
        x = torch._efficientzerotensor(4, dtype=torch.float64)  # what forward-mode differentiation makes
    else:
        x = torch.ones(4, dtype=torch.float64)
        x.untyped_storage().resize_(0)
    with pytest.raises(PrecisionError, match="without memory"):
        round_plain_(x, Grid.parse("float32"), True)


@pytest.mark.parametrize(
    "change", [{"stride": (-1, -1)}, {"stride": (0, 1)}, {"dilation": (0, 0)}, {"padding": (-1, 0)}]
)
def test_settings_that_pytorch_refuses_are_left_to_it(change: dict[str, tuple[int, int]]) -> None:
    x, weight = torch.randn(64, 64, 8, 8).double(), torch.randn(64, 64, 4, 4).double()
    settings = Settings(**{"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **change})
    assert convolution_forward(x, weight, None, settings) is None
