"""Operations on inputs where their terms cancel, saved to ``argv[1]``; the profile is that of the process."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

Case = tuple[str, dict[str, Any], tuple[Tensor, ...]]  # (operation, arguments by name, outputs)


def cases(dtype: torch.dtype) -> dict[str, Case]:
    """Return the cases of one compute dtype; all inputs have 8 significant bits."""
    rng = np.random.default_rng(5)
    found: dict[str, Case] = {}

    def draw(*shape: int, offset: float = 0.0, scale: float = 1.0) -> Tensor:
        values = torch.from_numpy(rng.standard_normal(shape) * scale + offset)
        return values.to(torch.bfloat16 if dtype is torch.float32 else torch.float32).to(dtype)

    def add(case: str, operation: str, *args: Any, **kwargs: Any) -> None:
        function = getattr(torch.ops.aten, operation).default
        names = [a.name for a in function._schema.arguments]
        result = function(*args, **kwargs)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        found[case] = (operation, arguments, result if isinstance(result, tuple) else (result,))

    # A classifier that is sure: each row of the softmax is one-hot but for a little.
    little = 2.0**-12 if dtype is torch.float32 else 2.0**-40
    sure = torch.eye(10, dtype=dtype).repeat(26, 1)[:256]
    sure += draw(256, 10).abs() * little * (sure == 0)
    add("softmax", "_softmax_backward_data", draw(256, 10, offset=10, scale=0.01), sure, 1, dtype)
    for name, method in (("gelu", "none"), ("gelu tanh", "tanh")):
        low = -3 if dtype is torch.float32 else -8 if method == "tanh" else -3
        add(name, "gelu", draw(20000, offset=low, scale=0.2), approximate=method)
    low = -3 if dtype is torch.float32 else -6
    add("gelu slope", "gelu_backward", draw(20000), draw(20000, offset=low, scale=0.2), approximate="tanh")
    far = 1e5 if dtype is torch.float64 else 1e2
    images = draw(16, 8, 6, 6) + far
    ones = torch.ones(8, dtype=dtype)
    add("layer norm", "native_layer_norm", images.flatten(1), [288], None, None, 1e-5)
    add("group norm", "native_group_norm", images, ones, None, 16, 8, 36, 2, 1e-5)
    add("batch norm", "native_batch_norm", images, ones, None, None, None, True, 0.1, 1e-5)
    return found


if __name__ == "__main__":
    torch.save({str(d): {n: c[2] for n, c in cases(d).items()} for d in (torch.float64, torch.float32)}, sys.argv[1])
