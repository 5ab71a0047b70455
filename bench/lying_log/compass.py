"""Where an attacker wants to push every value of a step.

The attacker has an objective J(theta) and wants to lower it, while the agreed step takes theta to theta - lr * g,
with g the gradient of the agreed loss L. Changing g by d changes J by -lr * <v, d> to first order, v = grad J. So it
wants to raise phi = <v, g>. How phi depends on a value inside the step follows from the same quantities at theta and
at theta + eps * v (a finite difference along v):

* an output ``a`` of a forward operation: d phi / d a is the change of dL/da;
* a gradient dL/da of the backward pass: d phi / d (dL/da) is the change of ``a``;
* a parameter's gradient: v itself.

All of this is plain PyTorch on a copy of the model, before the step that is logged.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vt_core.engine.rounding import DryRounding
from vt_core.training.job import Job
from vt_core.training.session import Session

RELATIVE_STEP = 1e-3


@dataclass(frozen=True)
class Objective:
    """What the attacker lowers: ``sign`` times the agreed loss on a batch of its own."""

    name: str
    batch: dict[str, Tensor]
    sign: float

    def value(self, job: Job, model: nn.Module) -> Tensor:
        """Return J, a scalar, in evaluation mode; the caller's flag is put back."""
        was_training = model.training
        model.eval()
        try:
            return self.sign * job.loss(model, self.batch)
        finally:
            model.train(was_training)


@dataclass
class Directions:
    """Wanted directions of one step by module path; tensors have the shapes of the values they belong to."""

    forward: dict[str, Tensor] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def of(self, module: str, backward: bool, shape: torch.Size, seen: int) -> Tensor | None:
        """Return the direction for the ``seen``-th site of this shape in a module, None if none is known."""
        if not backward:
            found = self.forward.get(module)
            return found if found is not None and found.shape == shape else None
        candidates: list[Tensor] = []
        for value in self.parameters.get(module, {}).values():
            fits = value.shape == shape or (value.dim() == 1 and shape.numel() == value.numel() == shape[-1])
            if fits:
                candidates.append(value.reshape(shape))
            elif value.dim() == 2 and value.t().shape == shape:
                candidates.append(value.t())
        given = self.inputs.get(module)
        if given is not None and given.numel() == shape.numel() and given.shape[-1] == shape[-1]:
            candidates.insert(0, given.reshape(shape)) if len(shape) == 4 else candidates.append(given.reshape(shape))
        return candidates[seen % len(candidates)] if candidates else None


def directions(session: Session, step: int, objective: Objective) -> Directions:
    """Return where to push the values of ``step``; the session's model and its randomness are left alone."""
    job = session.job
    rounding = DryRounding(session.grid, session.spec.policy, False)
    batch = session._batch(step, session.sampler.epoch(step), rounding)
    model = copy.deepcopy(session.model)
    with torch.enable_grad():
        for parameter in model.parameters():
            parameter.grad = None
        objective.value(job, model).backward()  # type: ignore[no-untyped-call]
        v = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
        size = max(1e-30, float(sum(float((x * x).sum()) for x in v.values())) ** 0.5)
        length = float(sum(float((p.detach() ** 2).sum()) for p in model.parameters())) ** 0.5
        inputs_a, grads_a = _passes(job, model.train(), batch)
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.add_(v[n], alpha=RELATIVE_STEP * length / size)
        inputs_b, grads_b = _passes(job, model, batch)
    found = Directions()
    found.forward = {n: grads_b[n] - g for n, g in grads_a.items() if n in grads_b}
    found.inputs = {n: inputs_b[n] - x for n, x in inputs_a.items() if n in inputs_b}
    for name, value in v.items():
        module, _, key = name.rpartition(".")
        found.parameters.setdefault(module, {})[key] = value
    return found


def _passes(job: Job, model: nn.Module, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run forward and backward; return the inputs of every leaf module and the gradients of their outputs."""
    inputs: dict[str, Tensor] = {}
    grads: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, given: tuple[Any, ...], out: Any) -> None:
            if given and isinstance(given[0], Tensor) and given[0].is_floating_point():
                inputs[name] = given[0].detach()
            if isinstance(out, Tensor) and out.requires_grad:
                out.register_hook(lambda g: grads.__setitem__(name, g.detach()))  # type: ignore[no-untyped-call]

        return hook

    handles = [m.register_forward_hook(watch(n)) for n, m in model.named_modules() if n and not list(m.children())]
    try:
        model.zero_grad(set_to_none=True)
        job.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    return inputs, grads
