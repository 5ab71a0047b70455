"""Prints digests of exact and plain elementary functions under this process's CPU profile, as one JSON object."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from vt_core.engine.exact_elementary import FORMS, pow_form

ALL = {**FORMS, "pow": pow_form}
ANYWHERE = (
    "exp", "exp2", "expm1", "erf", "erfc", "tanh", "sigmoid", "silu", "mish", "sinh", "cosh", "atan", "sin", "cos",
    "tan", "gelu", "softplus", "elu", "celu", "selu", "log_sigmoid_forward", "hardsigmoid", "hardswish", "asinh",
)  # fmt: skip
POSITIVE = ("log", "log2", "log10", "log1p")
UNIT = ("erfinv", "asin", "acos", "atanh")
PAIRS = ("silu_backward", "mish_backward", "hardsigmoid_backward", "hardswish_backward")


def tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases(*shape: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return name -> (operation, arguments) for every operation with an elementary form."""
    x, y, grad = (3 * tensor(*shape, seed=seed) for seed in (1, 2, 3))
    share = torch.sigmoid(y)
    size = {"self": x.abs() + 1e-3}
    found: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {"self": x}) for name in ANYWHERE}
    found |= {name: (name, size) for name in POSITIVE}
    found |= {name: (name, {"self": 2 * share - 1}) for name in UNIT}
    found |= {name: (name, {"grad_output": grad, "self": x}) for name in PAIRS}
    elu = {"grad_output": grad, "alpha": 1.5, "scale": 1.25, "input_scale": 0.75}
    sigmoid = {"grad_output": grad, "self": x}
    return found | {
        "gelu-tanh": ("gelu", {"self": x, "approximate": "tanh"}),
        "gelu_backward": ("gelu_backward", sigmoid),
        "gelu_backward-tanh": ("gelu_backward", {**sigmoid, "approximate": "tanh"}),
        "softplus-beta": ("softplus", {"self": x, "beta": 3, "threshold": 6}),
        "softplus_backward": ("softplus_backward", {**sigmoid, "beta": 3, "threshold": 6}),
        "elu-alpha": ("elu", {"self": x, "alpha": 1.5, "scale": 1.25, "input_scale": 0.75}),
        "elu_backward": ("elu_backward", {**elu, "is_result": False, "self_or_result": x}),
        "elu_backward-result": ("elu_backward", {**elu, "is_result": True, "self_or_result": x.clamp_min(-1.5)}),
        "celu-alpha": ("celu", {"self": x, "alpha": 0.7}),
        "tanh_backward": ("tanh_backward", {"grad_output": grad, "output": 2 * share - 1}),
        "sigmoid_backward": ("sigmoid_backward", {"grad_output": grad, "output": share}),
        "log_sigmoid_backward": ("log_sigmoid_backward", {**sigmoid, "buffer": torch.exp(-x.abs())}),
        "logit": ("logit", {"self": share}),
        "logit-eps": ("logit", {"self": share, "eps": 0.25}),
        "logit_backward": ("logit_backward", {"grad_output": grad, "self": share}),
        "logit_backward-eps": ("logit_backward", {"grad_output": grad, "self": share, "eps": 0.25}),
        "logaddexp2": ("logaddexp2", {"self": x, "other": y}),
        "hypot": ("hypot", {"self": x, "other": y}),
        "acosh": ("acosh", {"self": 1 + x.abs()}),
        "logaddexp": ("logaddexp", {"self": x, "other": y}),
        "atan2": ("atan2", {"self": x, "other": y}),
        "pow": ("pow", {**size, "exponent": y}),
        "pow-number": ("pow", {**size, "exponent": 1.7}),
        "pow-of-number": ("pow", {"self": 2.5, "exponent": x}),
    }


def plain(operation: str, arguments: dict[str, Any]) -> Any:
    return getattr(torch.ops.aten, operation)(**arguments)


def digest(value: Any) -> str:
    hasher = hashlib.sha256()
    for t in value if isinstance(value, tuple) else (value,):
        hasher.update(t.contiguous().numpy().tobytes())
    return hasher.hexdigest()


if __name__ == "__main__":
    # The arguments themselves come from libm in places, so they are rounded to what all profiles agree on.
    found = {}
    for name, (operation, given) in cases(57, 61).items():
        arguments = {k: v.float().double() if isinstance(v, Tensor) else v for k, v in given.items()}
        found[name] = {"plain": digest(plain(operation, arguments)), "exact": digest(ALL[operation](arguments))}
    print(json.dumps(found))
