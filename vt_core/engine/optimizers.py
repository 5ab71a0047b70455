"""Steps of SGD, Adam and AdamW with one operation for each parameter, equal to the bit to those of ``torch.optim``.

``torch.optim`` runs ten operations and more for a parameter, each with a pass over memory and a rounding. Here the same
sequence is one operation (``updates``). Everything around it stays as it is: hooks, settings, the optimizer's state and
its keys. Whatever is not exactly such an optimizer in an ordinary state runs its own ``step`` instead, operation by
operation. Which of the two runs shows in the trace, so it may depend only on what a checkpoint brings back: classes,
settings and shapes, never on values or memory layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from vt_core.engine import updates

Group = dict[str, Any]
States = dict[Tensor, dict[str, Any]]


def _own_step(kind: type[Optimizer]) -> Any:
    """Return the class's ``step`` without the wrapper that torch.optim puts around it for hooks."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]


_STEPS = {kind: _own_step(kind) for kind in (SGD, Adam, AdamW)}
_SGD_NUMBERS = ("lr", "weight_decay", "momentum", "dampening")
_ADAM_NUMBERS = ("lr", "weight_decay", "eps")
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_WithoutFunctions = torch._C.DisableTorchFunction  # each look at a tensor would ask ``CommonForms``
_MACHINE = ("foreach", "fused", "capturable", "differentiable")  # all off: see settings.force_single_tensor


def step(optimizer: Optimizer, compute: torch.dtype) -> None:
    """Do what ``optimizer.step()`` does, with one operation for each parameter where that is possible.

    ``compute`` is the dtype of all parameters. To be called under a dispatch mode that knows the operations.
    """
    kind = type(optimizer)
    # A scheduler or the job itself may have put another function in the place of step.
    if kind not in _STEPS or "step" in vars(optimizer) or _own_step(kind) is not _STEPS[kind]:
        optimizer.step()
        return

    def run(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        # Hooks have run; what they changed counts.
        with _WithoutFunctions():
            ordinary = not (args or kwargs) and _is_ordinary(self, compute)
        if not ordinary:
            _STEPS[kind](self, *args, **kwargs)
            return
        with torch.no_grad(), _WithoutFunctions():
            for group, parameter in _with_gradient(self):
                (_sgd if kind is SGD else _adam)(parameter, group, self.state)

    Optimizer.profile_hook_step(run)(optimizer)


def _with_gradient(optimizer: Optimizer) -> Iterator[tuple[Group, nn.Parameter]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield group, parameter


def _adam(parameter: nn.Parameter, group: Group, states: States) -> None:
    state = states[parameter]
    if not state:
        state["step"] = torch.tensor(0.0, dtype=parameter.dtype)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
        if group["amsgrad"]:
            state["max_exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    count = state["step"].item()
    (beta1, beta2), rate, decay = group["betas"], group["lr"], group["weight_decay"]
    # Written as in torch.optim: another order of these operations gives other bits.
    shrink = float(1 - rate * decay) if group["decoupled_weight_decay"] and decay != 0 else None
    step_size = rate / (1 - beta1**count)
    bias2 = (1 - beta2**count) ** 0.5
    updates.ADAM(
        parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"],
        state["max_exp_avg_sq"] if group["amsgrad"] else None,
        maximize=bool(group["maximize"]), shrink=shrink, weight_decay=decay if shrink is None and decay != 0 else None,
        weight1=1 - beta1, beta2=beta2, weight2=1 - beta2, bias2=bias2, eps=group["eps"], value=-step_size,
    )  # fmt: skip


def _sgd(parameter: nn.Parameter, group: Group, states: States) -> None:
    momentum, decay = group["momentum"], group["weight_decay"]
    buffer, first = None, False
    if momentum != 0:
        state = states[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None:
            first = True
            buffer = state["momentum_buffer"] = torch.zeros_like(parameter.grad)  # type: ignore[arg-type]
    updates.SGD(
        parameter, parameter.grad, buffer, maximize=bool(group["maximize"]), weight_decay=decay if decay != 0 else None,
        momentum=momentum, weight=1 - group["dampening"], nesterov=bool(group["nesterov"]), first=first, lr=group["lr"],
    )  # fmt: skip


def _is_ordinary(optimizer: Optimizer, compute: torch.dtype) -> bool:
    """Tell whether settings and state are those that the updates are written for."""
    if any(getattr(optimizer, name, None) is not None for name in ("grad_scale", "found_inf")):
        return False
    adam = type(optimizer) is not SGD
    for group in optimizer.param_groups:
        values = [group[name] for name in (_ADAM_NUMBERS if adam else _SGD_NUMBERS)] + list(group.get("betas", ()))
        if not all(isinstance(value, (int, float)) for value in values) or any(group.get(name) for name in _MACHINE):
            return False
    for group, parameter in _with_gradient(optimizer):
        state = optimizer.state.get(parameter, {})
        if adam and state:
            counter = state.get("step")
            if not isinstance(counter, Tensor) or counter.dim() or counter.dtype is not compute:
                return False
        keys = _MOMENTS[: 3 if group["amsgrad"] else 2] if adam else ("momentum_buffer",)
        expected = state if adam else state.get("momentum_buffer") is not None
        moments = [state.get(key) for key in keys] if expected else []
        if not _fit([parameter, parameter.grad, *moments], parameter, compute):
            return False
    return True


def _fit(tensors: list[Any], parameter: nn.Parameter, compute: torch.dtype) -> bool:
    """Tell whether ``tensors`` are dense, of one shape, dtype and device, and each in memory of its own."""
    shape, device = parameter.shape, parameter.device
    for tensor in tensors:
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            return False
        if tensor.dtype is not compute or tensor.shape != shape or tensor.device != device:
            return False
    memory = {t.untyped_storage().data_ptr() for t in tensors}
    return len(memory) == len(tensors) or parameter.numel() == 0
