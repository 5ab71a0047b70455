"""Prints digests of exact and plain softmax functions and losses under this process's CPU profile, as one JSON text."""

from __future__ import annotations

import json

import torch
from exact_worker import digest, plain, tensor

from vt_core.engine.exact_losses import FORMS as LOSSES
from vt_core.engine.exact_softmax import FORMS as SOFTMAX
from vt_core.engine.exact_softmax import log_softmax_form, softmax_form

Cases = dict[str, tuple[str, dict[str, object]]]


def softmax_cases() -> Cases:
    """Return name -> (form, arguments) of softmax functions."""
    x, g, dtype = tensor(60, 1500, seed=1) * 3, tensor(60, 1500, seed=2), torch.float64
    last = {"self": x, "dim": 1, "half_to_float": False}
    y = {"output": softmax_form(last), "dim": 1, "input_dtype": dtype, "grad_output": g}
    return {
        "softmax": ("_softmax", last),
        "softmax-columns": ("_softmax", last | {"dim": 0}),
        "log_softmax": ("_log_softmax", last),
        "logsumexp": ("logsumexp", {"self": x, "dim": [0, 1]}),
        "safe_softmax": ("_safe_softmax", {"self": x, "dim": -1}),
        "softmax_backward": ("_softmax_backward_data", y),
        "log_softmax_backward": ("_log_softmax_backward_data", y | {"output": log_softmax_form(last)}),
    }


def loss_cases() -> Cases:
    """Return name -> (form, arguments) of losses."""
    x, t = tensor(700, 90, seed=3), tensor(700, 90, seed=4)
    p = {"self": 0.5 + x / (2 + 2 * x.abs()), "target": 0.5 + t / (2 + 2 * t.abs())}  # between 0 and 1
    labels = {"self": x, "target": torch.arange(700) % 90, "reduction": 1, "ignore_index": 7}
    grad = torch.tensor(0.7, dtype=torch.float64)
    pair = {"self": x, "target": t, "reduction": 1}
    back = pair | {"grad_output": grad}
    return {
        "nll_loss": ("nll_loss_forward", labels | {"weight": t[0].abs()}),
        "nll_loss_backward": (
            "nll_loss_backward", labels | {"weight": t[0].abs(), "grad_output": grad, "total_weight": grad},
        ),
        "mse_loss": ("mse_loss", pair),
        "mse_loss_backward": ("mse_loss_backward", back),
        "smooth_l1_loss": ("smooth_l1_loss", pair | {"beta": 0.3}),
        "smooth_l1_loss_backward": ("smooth_l1_loss_backward", back | {"beta": 0.3}),
        "huber_loss": ("huber_loss", pair | {"delta": 0.3}),
        "huber_loss_backward": ("huber_loss_backward", back | {"delta": 0.3}),
        "binary_cross_entropy": ("binary_cross_entropy", p),
        "binary_cross_entropy_backward": ("binary_cross_entropy_backward", p | {"grad_output": grad}),
        "binary_cross_entropy_with_logits": (
            "binary_cross_entropy_with_logits", p | {"self": x, "weight": t[0].abs(), "pos_weight": t[1].abs()},
        ),
        "soft_margin_loss": ("soft_margin_loss", pair),
        "soft_margin_loss_backward": ("soft_margin_loss_backward", back),
        "xlogy": ("xlogy", {"self": x, "other": t.abs()}),
    }  # fmt: skip


if __name__ == "__main__":
    found = {}
    for name, (form, arguments) in (softmax_cases() | loss_cases()).items():
        exact = (SOFTMAX | LOSSES)[form](arguments)
        found[name] = {"plain": digest(plain(form, arguments)), "exact": digest(exact)}
    print(json.dumps(found))
