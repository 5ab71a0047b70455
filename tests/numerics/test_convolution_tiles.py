"""Blocked convolutions with the tiles of processors that this one may not be: narrower vectors, fewer registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
import llvmlite.binding
import torch
actual = llvmlite.binding.get_host_cpu_features

class Features(dict):
    def flatten(self):  # what the compiler asks for
        return actual().flatten()

llvmlite.binding.get_host_cpu_features = lambda: Features(json.loads(sys.argv[1]))
from vt_core.numerics import _jit_convolution as tile
llvmlite.binding.get_host_cpu_features = actual
from vt_core.numerics import convolution as module
assert tile.WIDTH == int(sys.argv[2])
for rule, answer in (("_pays", True), ("_fills", True), ("_is_product", False)):
    setattr(module, rule, lambda *sizes, answer=answer, **least: answer)

def whole(*shape):
    return torch.randint(-50, 51, shape).double()

torch.manual_seed(1)
for image, kernel, step in (((9, 7), (3, 3), (2, 1)), ((8, 8), (1, 1), (1, 1)), ((5, 3), (1, 1), (1, 1))):
    settings = module.Settings(step, (kernel[0] // 2, kernel[1] // 2), (1, 1))
    x, weight = whole(3, 70, *image), whole(21, 70, *kernel)
    given = [list(settings.stride), list(settings.padding), [1, 1], False, [0, 0], 1]
    expected = torch.ops.aten.convolution(x, weight, None, *given)
    grad = whole(*expected.shape)
    by_input, by_weight, _ = torch.ops.aten.convolution_backward(grad, x, weight, None, *given, [True, True, False])
    assert torch.equal(module.convolution_forward(x, weight, None, settings), expected)
    assert torch.equal(module.convolution_backward_input(grad, weight, image, settings), by_input)
    assert torch.equal(module.convolution_backward_weight(grad, x, kernel, settings), by_weight)
    found = module.convolution_backward_weight(grad * 0.7, x / 3.0, kernel, settings, 20)
    assert torch.allclose(found, by_weight * 0.7 / 3.0, rtol=0.0, atol=1.0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("features", "width"), [("{}", 2), ('{"avx": true}', 4)])
def test_all_tiles(features: str, width: int, tmp_path: Path) -> None:
    """Their code runs on any processor; a cache of its own keeps it from replacing the usual one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, features, str(width)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
