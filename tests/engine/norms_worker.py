"""Prints digests of exact and plain normalisations under this process's CPU profile, as one JSON object."""

from __future__ import annotations

import json
from typing import Any

import torch
from exact_worker import digest, tensor
from torch import Tensor

from vt_core.engine.exact_norms import FORMS

Case = tuple[str, dict[str, object]]


def batch_norm(x: Tensor, training: bool = True, affine: bool = True, running: bool = True) -> Case:
    """Return (operation, arguments), the latter as positions too."""
    count = x.shape[1]
    weight, bias = (tensor(count, seed=seed) if affine else None for seed in (21, 22))
    mean, variance = (tensor(count, seed=23), tensor(count, seed=24).abs()) if running else (None, None)
    return "native_batch_norm", {
        "input": x, "weight": weight, "bias": bias, "running_mean": mean, "running_var": variance,
        "training": training, "momentum": 0.1, "eps": 1e-5,
    }  # fmt: skip


def batch_norm_backward(x: Tensor, training: bool = True, affine: bool = True) -> Case:
    count = x.shape[1]
    given = batch_norm(x, training, affine)[1]
    return "native_batch_norm_backward", {
        "grad_out": tensor(*x.shape, seed=25), "input": x, "weight": given["weight"],
        "running_mean": given["running_mean"], "running_var": given["running_var"],
        "save_mean": tensor(count, seed=26), "save_invstd": tensor(count, seed=27).abs(), "train": training,
        "eps": 1e-5, "output_mask": [True] * 3,
    }  # fmt: skip


def group_norm(x: Tensor, groups: int, affine: bool = True) -> Case:
    samples, count, places = x.shape[0], x.shape[1], x[0, 0].numel()
    weight, bias = (tensor(count, seed=seed) if affine else None for seed in (21, 22))
    return "native_group_norm", {
        "input": x, "weight": weight, "bias": bias, "N": samples, "C": count, "HxW": places, "group": groups,
        "eps": 1e-5,
    }  # fmt: skip


def group_norm_backward(x: Tensor, groups: int, affine: bool = True) -> Case:
    given = group_norm(x, groups, affine)[1]
    return "native_group_norm_backward", {
        "grad_out": tensor(*x.shape, seed=25), "input": x, "mean": tensor(x.shape[0], groups, seed=26),
        "rstd": tensor(x.shape[0], groups, seed=27).abs(), "weight": given["weight"],
        "N": given["N"], "C": given["C"], "HxW": given["HxW"], "group": groups,
        "output_mask": [True, affine, affine],
    }  # fmt: skip


def layer_norm(x: Tensor, dims: int = 1, affine: bool = True) -> Case:
    shape = list(x.shape[-dims:])
    weight, bias = (tensor(*shape, seed=seed) if affine else None for seed in (21, 22))
    return "native_layer_norm", {
        "input": x, "normalized_shape": shape, "weight": weight, "bias": bias, "eps": 1e-5
    }  # fmt: skip


def layer_norm_backward(x: Tensor, dims: int = 1, affine: bool = True) -> Case:
    given = layer_norm(x, dims, affine)[1]
    kept = [*x.shape[:-dims], *[1] * dims]
    return "native_layer_norm_backward", {
        "grad_out": tensor(*x.shape, seed=25), "input": x, "normalized_shape": given["normalized_shape"],
        "mean": tensor(*kept, seed=26), "rstd": tensor(*kept, seed=27).abs(), "weight": given["weight"],
        "bias": given["bias"], "output_mask": [True, affine, affine],
    }  # fmt: skip


def rms_norm(x: Tensor, affine: bool = True) -> Case:
    given = layer_norm(x, 1, affine)[1]
    return "_fused_rms_norm", {k: given[k] for k in ("input", "normalized_shape", "weight", "eps")}


def rms_norm_backward(x: Tensor, affine: bool = True) -> Case:
    given = layer_norm_backward(x, 1, affine)[1]
    names = ("grad_out", "input", "normalized_shape", "rstd", "weight")
    return "_fused_rms_norm_backward", {**{k: given[k] for k in names}, "output_mask": [True, affine]}


def cases() -> dict[str, Case]:
    """Return name -> (operation, arguments), large enough for several threads."""
    images, rows = tensor(16, 24, 30, 30, seed=1), tensor(700, 500, seed=2)
    return {
        "batch": batch_norm(images),
        "batch-nhwc": batch_norm(images.contiguous(memory_format=torch.channels_last)),
        "batch-flat": batch_norm(rows),
        "batch-backward": batch_norm_backward(images),
        "batch-backward-nhwc": batch_norm_backward(images.contiguous(memory_format=torch.channels_last)),
        "group": group_norm(images, 6),
        "group-backward": group_norm_backward(images, 6),
        "layer": layer_norm(rows),
        "layer-backward": layer_norm_backward(rows),
        "rms": rms_norm(rows),
    }


def plain(operation: str, arguments: dict[str, object]) -> Any:
    return getattr(torch.ops.aten, operation)(*arguments.values())


def fresh(arguments: dict[str, object]) -> dict[str, object]:
    """Return the arguments with copies of the running statistics."""
    running = {k: v.clone() for k, v in arguments.items() if k.startswith("running") and isinstance(v, Tensor)}
    return {**arguments, **running}


def everything(operation: str, arguments: dict[str, object], exact: bool) -> tuple[Any, ...]:
    """Return the results and the running statistics."""
    given = fresh(arguments)
    found = FORMS[operation](given) if exact else plain(operation, given)
    assert isinstance(found, tuple)
    return (*found, given.get("running_mean"), given.get("running_var"))


def digests() -> dict[str, dict[str, str]]:
    """Return name -> kind of kernel -> digest."""
    return {
        name: {"plain": digest(everything(*case, exact=False)), "exact": digest(everything(*case, exact=True))}
        for name, case in cases().items()
    }


if __name__ == "__main__":
    print(json.dumps(digests()))
