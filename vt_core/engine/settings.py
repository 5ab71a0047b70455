"""Global settings of PyTorch for one training session, each with its reason, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vt_core.errors import SpecError, UnsupportedOperation


@contextmanager
def common_settings(compute: torch.dtype) -> Iterator[None]:
    """Set what every machine must have in common while operations run; restores everything."""
    previous_dtype = torch.get_default_dtype()
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    previous = (cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, torch.get_float32_matmul_precision())
    torch.set_default_dtype(compute)  # new tensors, and Adam's step counters, are in the compute precision
    cuda.matmul.allow_tf32 = False  # TF32 keeps ten bits: far outside any tolerance
    cudnn.allow_tf32 = False
    cudnn.enabled = False  # cuDNN has operations of its own (cudnn_batch_norm), which would change the trace
    torch.set_float32_matmul_precision("highest")  # no bfloat16 inside float32 products
    try:
        # A compiled region would run kernels that the dispatch mode never sees; run it as written instead.
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.set_default_dtype(previous_dtype)
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled = previous[:3]
        torch.set_float32_matmul_precision(previous[3])


def refuse_unsupported(model: nn.Module) -> None:
    """Raise UnsupportedOperation for what the dispatch mode cannot see from inside an operation."""
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule":
            raise UnsupportedOperation(
                "torch.compile", name or type(model).__name__, "compiled kernels cannot be seen operation by operation",
                "Pass the model itself, without torch.compile.",
            )  # fmt: skip
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedOperation(
                "torch.jit", name or type(model).__name__, "a scripted region may fuse operations",
                "Pass the plain module, without torch.jit.script or trace.",
            )  # fmt: skip


def refuse_autocast(device: torch.device, module: str) -> None:
    """Raise UnsupportedOperation if autocast is on: it computes below the compute precision."""
    if torch.is_autocast_enabled(device.type):
        raise UnsupportedOperation(
            "autocast", module, "it computes in a lower precision than the run spec says",
            "Remove torch.autocast: the grid already decides the precision of the results.",
        )  # fmt: skip


def force_single_tensor(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer use its single-tensor form, so that CPU and CUDA run the same sequence.

    Raises SpecError for optimizers that have none (LBFGS needs a closure, SparseAdam sparse gradients).
    """
    if type(optimizer).__name__ in ("LBFGS", "SparseAdam"):
        raise SpecError(
            f"{type(optimizer).__name__} is not supported: it evaluates the model inside its step or needs sparse "
            f"gradients. Use another optimizer of torch.optim."
        )
    for settings in (optimizer.defaults, *optimizer.param_groups):
        for name in ("foreach", "fused", "capturable", "differentiable"):
            if name in settings:
                settings[name] = False


def resolve_device(name: str) -> torch.device:
    """Return the device called ``name``; SpecError, saying what to do, if it is not there."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SpecError(f"device {name!r} is not a device name: use 'cpu' or 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SpecError(
            "device 'cuda' was asked for, but this PyTorch sees no CUDA device. Use 'device: cpu', or install a CUDA "
            "build of PyTorch on a machine with a GPU."
        )
    if device.type not in ("cpu", "cuda"):
        raise SpecError(f"device {name!r} is not supported: use 'cpu' or 'cuda'")
    return device
