"""The canonical state of a run and its digest: all that the next step depends on.

Tensors are named ``param.NAME``, ``buffer.NAME`` and ``optim.PARAMETER.KEY``. Floating tensors with at least one
dimension lie on the grid and are stored at grid width; 0-dimensional ones (step counters) keep the compute
precision. Python numbers of the optimizer are the *scalars*. The digest is over names, dtypes, shapes and raw
little-endian bytes, never over the bytes of a checkpoint file, which are not canonical.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vt_core.engine.rounding import Rounding
from vt_core.errors import EvidenceError, OffGridError, SpecError
from vt_core.evidence.canonical import float_from_hex, float_to_hex
from vt_core.numerics import Grid, is_on_grid
from vt_core.training.narrow import snapshot
from vt_core.training.tensor_digest import at_grid_width, state_root, tensor_roots


@dataclass(frozen=True)
class State:
    """A snapshot: tensors at grid width (detached, contiguous, on the CPU) and scalars as plain JSON."""

    step: int
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


@dataclass(frozen=True)
class StateDigest:
    """The root over a state and, for locating a difference, the root of each tensor by name."""

    root: bytes
    tensors: dict[str, bytes]


def live_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the live tensors of model and optimizer by canonical name (not copies)."""
    tensors: dict[str, Tensor] = {f"param.{name}": p for name, p in model.named_parameters()}
    tensors |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    names = {id(p): name for name, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise SpecError("the optimizer has a parameter that is not the model's: register it in the model")
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optim.{names[id(parameter)]}.{key}"] = value
    return tensors


def live_scalars(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimizer's Python numbers as plain JSON. Raises SpecError for what evidence cannot hold."""
    groups = [{k: _to_json(v, k) for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    names = {id(p): name for name, p in model.named_parameters()}
    state = {
        names[id(p)]: plain
        for p, values in optimizer.state.items()
        if (plain := {k: _to_json(v, k) for k, v in values.items() if not isinstance(v, Tensor)})
    }
    return {"groups": groups, "state": state}


def capture(step: int, model: nn.Module, optimizer: torch.optim.Optimizer, grid: Grid) -> State:
    """Return the state after ``step`` as a snapshot that shares no memory with the live tensors."""
    tensors = {}
    for name, tensor in live_tensors(model, optimizer).items():
        live = tensor.detach()
        tensors[name] = snapshot(live, grid.storage if at_grid_width(live) else live.dtype)
    return State(step, tensors, live_scalars(model, optimizer))


def storages(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, torch.UntypedStorage]:
    """Return the memory of the live tensors by address; holding it keeps an address from being used again."""
    held = (t.untyped_storage() for t in live_tensors(model, optimizer).values())
    return {storage.data_ptr(): storage for storage in held}


def put_new_on_grid(
    model: nn.Module, optimizer: torch.optim.Optimizer, grid: Grid, known: Container[int], rounding: Rounding
) -> None:
    """Round the floating state that lies in memory not ``known`` before the step and is off the grid.

    ``self.ema = self.ema * 0.9 + x`` leaves a new tensor, made by operations that the engine saw: inexact ones were
    rounded, so what is off the grid came from exact ones and is the same on every machine. State in memory that was
    there before is not touched: if it is off the grid, an operation wrote it unseen (:func:`check_on_grid`).
    """
    for name, tensor in live_tensors(model, optimizer).items():
        live = tensor.detach()
        if not live.is_floating_point() or live.dim() == 0 or live.untyped_storage().data_ptr() in known:
            continue
        if not is_on_grid(live, grid):

            def place(name: str = name) -> tuple[str, str]:
                return "new state", name

            rounding.plain(live, place)


def check_on_grid(
    model: nn.Module, optimizer: torch.optim.Optimizer, grid: Grid, last_writer: Mapping[int, str]
) -> None:
    """Raise OffGridError naming the tensor and its last known writer if any state is off the grid."""
    for name, tensor in live_tensors(model, optimizer).items():
        if not tensor.is_floating_point() or tensor.dim() == 0:
            continue
        live = tensor.detach()
        if is_on_grid(live, grid):
            continue
        writer = last_writer.get(live.untyped_storage().data_ptr(), "no operation that is known to write it")
        raise OffGridError(
            f"{name} does not lie on the {grid.name} grid at the end of the step; last written by {writer}. An "
            f"operation changes this tensor without saying so in its schema: add it to SILENT_MUTATIONS in "
            f"vt_core/engine/opclass.py, or write the buffer with an ordinary in-place operation."
        )


def restore(state: State, model: nn.Module, optimizer: torch.optim.Optimizer, compute: torch.dtype) -> None:
    """Load a snapshot into a freshly built model and optimizer.

    Raises EvidenceError("state_mismatch") if names, shapes or dtypes do not fit this job.
    """
    targets = {n: t for n, t in live_tensors(model, optimizer).items() if not n.startswith("optim.")}
    given = {n: t for n, t in state.tensors.items() if not n.startswith("optim.")}
    if targets.keys() != given.keys():
        differing = sorted(targets.keys() ^ given.keys())[:5]
        raise EvidenceError("state_mismatch", f"the checkpoint has other tensors than this job: {differing}")
    with torch.no_grad():
        for name, target in targets.items():
            source = given[name]
            if source.shape != target.shape or source.is_floating_point() != target.is_floating_point():
                raise EvidenceError(
                    "state_mismatch",
                    f"{name} has shape {tuple(source.shape)} in the checkpoint and {tuple(target.shape)} in this job",
                    tensor=name,
                )
            target.copy_(source)
    _restore_optimizer(state, model, optimizer, compute)


def _restore_optimizer(state: State, model: nn.Module, optimizer: torch.optim.Optimizer, compute: torch.dtype) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for name, tensor in state.tensors.items():
        if not name.startswith("optim."):
            continue
        parameter_name, _, key = name.removeprefix("optim.").rpartition(".")
        parameter = parameters.get(parameter_name)
        if parameter is None:
            raise EvidenceError("state_mismatch", f"{name} belongs to no parameter of this job", tensor=name)
        value = tensor.to(compute) if tensor.is_floating_point() else tensor
        on_device = value if tensor.dim() == 0 else value.to(parameter.device)
        optimizer.state[parameter][key] = on_device.clone()
    try:
        groups, scalars = state.scalars["groups"], state.scalars["state"]
        if len(groups) != len(optimizer.param_groups):
            raise ValueError("other number of parameter groups")
        for group, stored in zip(optimizer.param_groups, groups, strict=True):
            if set(stored) != set(group) - {"params"}:
                raise ValueError("other optimizer settings")
            group.update({key: _from_json(value) for key, value in stored.items()})
        for name, values in scalars.items():
            optimizer.state[parameters[name]].update({k: _from_json(v) for k, v in values.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError("state_mismatch", f"the optimizer's scalars do not fit this job: {error}") from error


def digest(state: State) -> StateDigest:
    """Return the root of a state: RFC 6962 over tensor roots sorted by name, then step and scalars.

    A tensor's root is an RFC 6962 tree over its header (name, dtype, shape) and its raw little-endian bytes in
    chunks of 1 MiB, which lets all cores share the work.
    """
    roots = tensor_roots(state.tensors)
    return StateDigest(state_root(state.step, state.scalars, roots), roots)


def digest_live(step: int, model: nn.Module, optimizer: torch.optim.Optimizer, grid: Grid) -> StateDigest:
    """Return the digest of what :func:`capture` would return, without making that snapshot."""
    roots = tensor_roots(live_tensors(model, optimizer), grid)
    return StateDigest(state_root(step, live_scalars(model, optimizer), roots), roots)


def _to_json(value: Any, name: str) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return {"float": float_to_hex(value)}
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, Tensor) and value.dim() == 0:
        return {"float": float_to_hex(float(value))}
    if isinstance(value, (tuple, list)):
        return [_to_json(item, name) for item in value]
    raise SpecError(f"optimizer setting {name!r} of type {type(value).__name__} cannot be put into the evidence")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float_from_hex(value["float"], "a scalar", finite=False)
        if set(value) == {"int"}:
            return int(value["int"])
        raise ValueError("malformed scalar")
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return value
