"""Optimizers run under the engine on parameters of all shapes, as one operation for each or operation by operation."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn, optim

from vt_core.engine import optimizers
from vt_core.engine.mode import VerifiedMode
from vt_core.engine.modules import ModuleTracker
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.settings import common_settings, force_single_tensor
from vt_core.engine.streams import Streams
from vt_core.numerics import DEFAULT, Grid, round_plain_

Make = Callable[[Iterable[Any]], optim.Optimizer]
STEPS = 3

CONFIGURATIONS: dict[str, Make] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD decay": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.01),
    "SGD rate one": lambda p: optim.SGD(p, lr=1, weight_decay=1),
    "SGD all ones": lambda p: optim.SGD(p, lr=1, momentum=1, nesterov=True, weight_decay=1.00000001),
    "SGD rate zero": lambda p: optim.SGD(p, lr=0.0, momentum=0.5),
    "SGD momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=1e-3),
    "SGD full dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=1),
    "SGD nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD maximize": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, maximize=True, weight_decay=0.01),
    "SGD maximize nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.5, maximize=True, nesterov=True),
    "SGD maximize plain": lambda p: optim.SGD(p, lr=0.1, maximize=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam decay": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01),
    "Adam decay one": lambda p: optim.Adam(p, lr=0.01, weight_decay=1),
    "Adam decoupled": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.01, decoupled_weight_decay=True),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.01),
    "Adam maximize": lambda p: optim.Adam(p, lr=0.01, maximize=True, weight_decay=0.1),
    "Adam rate zero": lambda p: optim.Adam(p, lr=0, eps=0.0),
    "Adam far": lambda p: optim.Adam(p, lr=0.01, betas=(0.3, 0.7), eps=1e-3),
    "Adam half": lambda p: optim.Adam(p, lr=0.01, betas=(0.5, 0.0)),
    "Adam no memory": lambda p: optim.Adam(p, lr=0.01, betas=(0.0, 0.9)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "AdamW no decay": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True, maximize=True, weight_decay=0.3),
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 5e-324, -1e-310, 1e-45, 1e-38, 2.0**-24,
           2.0**-126, -(2.0**-149), 65504.0, 65520.0, 3.4028235e38, 3.4028236e38, -1e300, 1e-8, 0.1, 1 / 3]  # fmt: skip


def values(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Random values of many magnitudes among which every special value stands somewhere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x *= 10.0 ** torch.randint(-9, 3, shape, generator=generator)
    flat = x.reshape(-1)
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randperm(len(SPECIAL), generator=generator)]
    if flat.numel() > 1:
        flat[: flat.numel() // 2][: len(SPECIAL)] = special[: flat.numel() // 2]
    return x.to(dtype)


SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (7,), (31, 5), (2, 3, 5, 4), (257,)]


def parameters(dtype: torch.dtype, grid: Grid) -> list[nn.Parameter]:
    """All shapes, transposed, channels_last, a part of memory; the last one gets no gradient."""
    tensors = [values(shape, 3 + i, dtype) for i, shape in enumerate(SHAPES)]
    tensors.append(values((6, 9), 40, dtype).t())
    tensors.append(values((3, 4, 5, 5), 41, dtype).contiguous(memory_format=torch.channels_last))
    tensors.append(values((8, 6), 42, dtype)[:, ::2])
    tensors.append(values((40_000,), 43, dtype))  # more than one piece
    tensors.append(values((5,), 44, dtype))
    for tensor in tensors:
        if tensor.dim() > 0:
            round_plain_(tensor, grid, False)
    return [nn.Parameter(t) for t in tensors]


def mode_of(dtype: torch.dtype, grid: Grid) -> VerifiedMode:
    rounding = TrainerRounding(grid, DEFAULT[str(dtype).removeprefix("torch.")], True)
    return VerifiedMode(dtype, rounding, Streams(1), ModuleTracker(), False)


def by_operations(optimizer: optim.Optimizer) -> None:
    """Give the optimizer a step of its own, which the engine then runs as it is."""
    original = type(optimizer).step
    optimizer.step = types.MethodType(lambda self: original(self), optimizer)  # type: ignore[method-assign, assignment]


def bits(x: Tensor) -> bytes:
    """The bytes of a tensor in row-major order; a 0-dimensional one is not put on the grid, any NaN may be in it."""
    plain = x.detach().contiguous()
    plain = torch.where(torch.isnan(plain), torch.nan, plain) if x.dim() == 0 else plain
    return plain.numpy().tobytes()


def run(make: Make, dtype: torch.dtype, grid: Grid, fused: bool) -> dict[tuple[int, int, str], bytes]:
    """Return the bits of all parameters and all state after each step, by step, parameter and key."""
    found: dict[tuple[int, int, str], bytes] = {}
    with common_settings(dtype):
        own = parameters(dtype, grid)
        optimizer = make(own)
        force_single_tensor(optimizer)
        if not fused:
            by_operations(optimizer)
        mode = mode_of(dtype, grid)
        for step in range(STEPS):
            assert isinstance(mode.rounding, TrainerRounding)
            mode.rounding.begin_step(step)
            for i, parameter in enumerate(own[:-1]):
                parameter.grad = values(tuple(parameter.shape), 1000 * step + i, dtype)
                if i % 3:  # gradients that were not added up lie on the grid
                    round_plain_(parameter.grad, grid, False)
            with mode:
                optimizers.step(optimizer, dtype)
            assert mode.rounding.end_step().sites == {}
            assert any(line.startswith("vt.") for line in mode.trace.lines) == fused
            for state in optimizer.state.values():
                buffer = state.get("momentum_buffer")
                if buffer is not None and step == 0 and buffer.dim() > 0:
                    round_plain_(buffer, grid, False)  # as Session does at the end of a step with new state
            for i, parameter in enumerate(own):
                found[step, i, ""] = bits(parameter)
                found |= {(step, i, key): bits(value) for key, value in optimizer.state.get(parameter, {}).items()}
            assert set(optimizer.state) <= set(own[:-1])
    return found
