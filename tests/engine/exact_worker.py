"""Prints digests of exact and plain contractions under this process's CPU profile, as one JSON object."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

from vt_core.engine.exact_contractions import FORMS
from vt_core.engine.exact_sums import FORMS as SUMS

SETTINGS = {
    "stride": [1, 1],
    "padding": [1, 1],
    "dilation": [1, 1],
    "transposed": False,
    "output_padding": [0, 0],
    "groups": 1,
}


def tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases() -> dict[str, tuple[str, dict[str, object]]]:
    """Return name -> (form, arguments); long sums, so that plain kernels really differ."""
    a, b = tensor(60, 1500, seed=1), tensor(1500, 70, seed=2)
    x, w, g = tensor(8, 16, 20, 20, seed=3), tensor(24, 16, 3, 3, seed=4), tensor(8, 24, 20, 20, seed=5)
    backward = {
        "grad_output": g,
        "input": x,
        "weight": w,
        **SETTINGS,
        "output_mask": [True, True, True],
        "bias_sizes": [24],
    }
    return {
        "mm": ("mm", {"self": a, "mat2": b}),
        "mm-transposed": ("mm", {"self": b.t(), "mat2": a.t()}),
        "mm-long": ("mm", {"self": tensor(5, 20000, seed=6), "mat2": tensor(20000, 7, seed=7)}),
        "bmm": ("bmm", {"self": tensor(6, 40, 700, seed=8), "mat2": tensor(6, 700, 30, seed=9)}),
        "addmm": ("addmm", {"self": tensor(70, seed=10), "mat1": a, "mat2": b, "alpha": 0.5, "beta": 3}),
        "mv": ("mv", {"self": a, "vec": b[:, 0]}),
        "dot": ("dot", {"self": a[0], "tensor": b[:, 1]}),
        "convolution": ("convolution", {"input": x, "weight": w, "bias": None, **SETTINGS}),
        "convolution_backward": ("convolution_backward", backward),
    }


def sums() -> dict[str, tuple[str, dict[str, object]]]:
    """Return name -> (form, arguments) of sums and means that plain kernels take in different orders."""
    x = tensor(700, 900, seed=11)
    return {
        "sum": ("sum", {"self": x}),
        "sum-rows": ("sum", {"self": x, "dim": [1]}),
        "sum-columns": ("sum", {"self": x, "dim": [0], "keepdim": True}),
        "mean": ("mean", {"self": x}),
        "mean-long": ("mean", {"self": tensor(2_000_003, seed=12)}),
    }


def plain(form: str, arguments: dict[str, object]) -> object:
    return getattr(torch.ops.aten, form)(**arguments)


def digest(value: object) -> str:
    hasher = hashlib.sha256()
    for t in value if isinstance(value, tuple) else (value,):
        if isinstance(t, Tensor):
            hasher.update(t.contiguous().numpy().tobytes())
    return hasher.hexdigest()


if __name__ == "__main__":
    found = {}
    for name, (form, arguments) in cases().items():
        found[name] = {
            "plain": digest(plain(form, arguments)),
            **{f"{slices} slices": digest(FORMS[form](arguments, slices)) for slices in (1, 2)},
        }
    for name, (form, arguments) in sums().items():
        found[name] = {"plain": digest(plain(form, arguments)), "exact": digest(SUMS[form](arguments))}
    print(json.dumps(found))
