"""Cases of pools, scatters and reductions; prints digests of exact and plain ones under this process's CPU profile."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from exact_support import parts
from torch import Tensor

from vt_core.engine import exact_pools, exact_reductions, exact_scatter
from vt_core.engine.forms import Form

FORMS: dict[str, Form] = {**exact_pools.FORMS, **exact_reductions.FORMS, **exact_scatter.FORMS}
Cases = dict[str, tuple[str, dict[str, Any]]]
ATEN = torch.ops.aten


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def indices(high: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def layouts(*shape: int, seed: int = 0) -> dict[str, Tensor]:
    """Return a tensor in several layouts: the same values."""
    x = tensor(*shape, seed=seed)
    last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    strided = torch.stack([x, -x], dim=-1)[..., 0]
    return {"": x, ", channels last": last, ", strided": strided, ", transposed": x.mT.contiguous().mT}


def plain(operation: str, arguments: dict[str, Any]) -> Any:
    """Call PyTorch's own operation with these arguments."""
    if operation == "_index_put_impl":
        return ATEN._index_put_impl_(**{**arguments, "self": arguments["self"].clone()})
    if operation == "linalg_vector_norm" or "p" not in arguments:
        return getattr(ATEN, operation)(**arguments)
    overload = ATEN.norm.ScalarOpt_dim if "dim" in arguments else ATEN.norm.Scalar
    return overload(**arguments)


def averages() -> Cases:
    """Average pools and their gradients."""
    found: Cases = {}
    settings: dict[str, dict[str, Any]] = {
        "2x2": {"kernel_size": [2, 2], "stride": [2, 2]},
        "3x3": {"kernel_size": [3], "stride": [1, 1], "padding": [1, 1]},
        "3x2, unpadded counts": {
            "kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 1], "ceil_mode": True, "count_include_pad": False,
        },
        "5x5 by 2, padded counts": {"kernel_size": [5, 5], "stride": [2, 2], "padding": [2, 2], "ceil_mode": True},
        "divisor": {"kernel_size": [2, 3], "stride": [], "divisor_override": 7},
        "apart": {"kernel_size": [2, 2], "stride": [3, 3]},
    }  # fmt: skip
    defaults = {"padding": [0, 0], "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
    for name, given in settings.items():
        for layout, x in layouts(3, 4, 11, 10).items():
            found[f"average {name}{layout}"] = "avg_pool2d", {"self": x, **given}
            arguments = {**defaults, "grad_output": plain("avg_pool2d", {"self": x, **given}), "self": x, **given}
            found[f"average {name}, backward{layout}"] = "avg_pool2d_backward", arguments
    for layout, x in layouts(3, 4, 11, 10).items():
        for size in ([1, 1], [4, 7], [11, 10], [13, 3]):
            found[f"adaptive {size}{layout}"] = "_adaptive_avg_pool2d", {"self": x, "output_size": size}
            grad = layouts(3, 4, *size, seed=1)[layout]
            found[f"adaptive {size}, backward{layout}"] = (
                "_adaptive_avg_pool2d_backward", {"grad_output": grad, "self": x},
            )  # fmt: skip
    for layout, x in layouts(2, 3, 5, 6, 7).items():
        given = {"kernel_size": [2, 3, 3], "stride": [2, 1, 2], "padding": [1, 1, 0], "count_include_pad": False}
        y = plain("avg_pool3d", {"self": x, **given})
        found[f"average 3d{layout}"] = "avg_pool3d", {"self": x, **given}
        found[f"average 3d, backward{layout}"] = (
            "avg_pool3d_backward", {**defaults, "grad_output": y, "self": x, **given},
        )  # fmt: skip
        found[f"adaptive 3d{layout}"] = "_adaptive_avg_pool3d", {"self": x, "output_size": [2, 4, 3]}
        grad = plain("_adaptive_avg_pool3d", {"self": x, "output_size": [2, 4, 3]})
        found[f"adaptive 3d, backward{layout}"] = "_adaptive_avg_pool3d_backward", {"grad_output": grad, "self": x}
    x = tensor(4, 11, 10)
    found["average without a batch"] = "avg_pool2d", {"self": x, "kernel_size": [3, 3], "stride": [2, 2]}
    found["average of none"] = "avg_pool2d", {"self": tensor(0, 4, 11, 10), "kernel_size": [3, 3]}
    found["average, large"] = "avg_pool2d", {"self": tensor(8, 64, 40, 40), "kernel_size": [3, 3], "stride": [1, 1]}
    return found


def maxima() -> Cases:
    """Gradients of maxima."""
    found: Cases = {}
    settings = {
        "3x3 by 2": {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1], "ceil_mode": False},
        "2x3 dilated": {
            "kernel_size": [2, 3], "stride": [1, 2], "padding": [0, 1], "dilation": [3, 2], "ceil_mode": True,
        },
        "by its own size": {"kernel_size": [2], "stride": [], "padding": [0], "dilation": [1], "ceil_mode": False},
    }  # fmt: skip
    for name, given in settings.items():
        for layout, x in layouts(3, 70, 9, 8).items():
            y, index = ATEN.max_pool2d_with_indices(x, **given)
            grad = layouts(*y.shape, seed=1)[layout]
            arguments = {"grad_output": grad, "self": x, "indices": index, **given}
            found[f"maximum {name}{layout}"] = "max_pool2d_with_indices_backward", arguments
    for layout, x in layouts(2, 3, 5, 6, 7).items():
        given3 = {
            "kernel_size": [3, 2, 3], "stride": [1, 1, 2], "padding": [1, 0, 1], "dilation": [1, 2, 1],
            "ceil_mode": False,
        }  # fmt: skip
        y, index = ATEN.max_pool3d_with_indices(x, **given3)
        arguments = {"grad_output": y, "self": x, "indices": index, **given3}
        found[f"maximum 3d{layout}"] = "max_pool3d_with_indices_backward", arguments
        y, index = ATEN.adaptive_max_pool3d(x, [3, 4, 5])
        found[f"adaptive maximum 3d{layout}"] = (
            "adaptive_max_pool3d_backward", {"grad_output": y, "self": x, "indices": index},
        )  # fmt: skip
    x = tensor(3, 4, 9, 8)
    y, index = ATEN.adaptive_max_pool2d(x, [5, 5])
    found["adaptive maximum"] = "adaptive_max_pool2d_backward", {"grad_output": y, "self": x, "indices": index}
    return found


def interpolations() -> Cases:
    """Interpolations, ``col2im`` and the gradient of ``unfold``."""
    found: Cases = {}
    names = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
    for n, sizes, outputs in (
        (1, [9], [14]), (2, [9, 8], [18, 5]), (2, [9, 8], [1, 21]), (2, [9, 8], [9, 8]), (3, [3, 4, 5], [6, 3, 9]),
    ):  # fmt: skip
        for layout, x in layouts(3, 5, *sizes).items():
            grad = layouts(3, 5, *outputs, seed=1)[layout]
            given = {"output_size": outputs, "input_size": [3, 5, *sizes]}
            for corners in (False, True):
                key = f"linear {n}d {outputs} {corners}{layout}"
                linear = {"self": x, "output_size": outputs, "align_corners": corners}
                found[key] = f"upsample_{names[n]}", linear
                found[f"{key}, backward"] = (
                    f"upsample_{names[n]}_backward", {"grad_output": grad, "align_corners": corners, **given},
                )  # fmt: skip
            for kind in ("upsample_nearest", "_upsample_nearest_exact"):
                found[f"{kind}{n}d {outputs}{layout}"] = f"{kind}{n}d_backward", {"grad_output": grad, **given}
            found[f"exact nearest {n}d {outputs}{layout}"] = (
                f"_upsample_nearest_exact{n}d", {"self": x, "output_size": outputs},
            )  # fmt: skip
    scaled = {"output_size": [14, 12], "align_corners": False, "scales_h": 1.6, "scales_w": 1.5}
    found["linear, scaled"] = "upsample_bilinear2d", {"self": tensor(2, 3, 9, 8), **scaled}
    found["linear, large"] = (
        "upsample_bilinear2d", {"self": tensor(4, 64, 28, 28), "output_size": [50, 60], "align_corners": False},
    )  # fmt: skip
    settings = {"kernel_size": [3, 2], "dilation": [1, 2], "padding": [1, 0], "stride": [2, 1]}
    found["col2im"] = "col2im", {"self": tensor(3, 24, 35), "output_size": [9, 9], **settings}
    found["col2im of one"] = "col2im", {"self": tensor(35, 24).t(), "output_size": [9, 9], **settings}
    unfolded = {"input_sizes": [4, 11, 3], "dim": 1, "size": 4, "step": 2}
    found["unfold"] = "unfold_backward", {"grad_in": tensor(4, 4, 3, 4), **unfolded}
    return found


def scatters() -> Cases:
    """Sums by index, wide and narrow, crowded and sparse."""
    embedding = {"padding_idx": -1, "scale_grad_by_freq": False}
    x, many = tensor(30, 40), indices(30, 500)
    found: Cases = {
        "embedding": ("embedding_dense_backward", {
            "grad_output": tensor(8, 50, 600), "indices": indices(70, 8, 50), "num_weights": 70, **embedding}),
        "embedding, padded": ("embedding_dense_backward", {
            "grad_output": tensor(8, 50, 24), "indices": indices(70, 8, 50).int(), "num_weights": 90,
            "padding_idx": 3, "scale_grad_by_freq": True}),
        "embedding, narrow": ("embedding_dense_backward", {
            "grad_output": tensor(1, 500, 3).expand(4, 500, 3), "indices": indices(9, 4, 500), "num_weights": 9,
            **embedding}),
        "embedding, large": ("embedding_dense_backward", {
            "grad_output": tensor(4096, 96), "indices": indices(50, 4096), "num_weights": 60, **embedding}),
        "embedding of nothing": ("embedding_dense_backward", {
            "grad_output": tensor(0, 5), "indices": indices(9, 0), "num_weights": 9, **embedding}),
        "index_add": ("index_add", {"self": x, "dim": 0, "index": many, "source": tensor(500, 40)}),
        "index_add, across": ("index_add", {
            "self": x.t(), "dim": -1, "index": many, "source": tensor(40, 500), "alpha": 0.7}),
        "index_add, middle": ("index_add", {
            "self": tensor(3, 30, 4), "dim": 1, "index": many, "source": tensor(3, 500, 4)}),
        "index_add of numbers": ("index_add", {
            "self": tensor(), "dim": 0, "index": indices(1, 1), "source": tensor(seed=1)}),
        "scatter_add, rows": ("scatter_add", {
            "self": x, "dim": 0, "index": many[:, None].expand(500, 40), "src": tensor(500, 40)}),
        "scatter_add, along": ("scatter_add", {
            "self": x, "dim": 1, "index": indices(40, 30, 300), "src": tensor(30, 300)}),
        "scatter_add, across": ("scatter_add", {
            "self": x, "dim": 0, "index": indices(30, 500, 40), "src": tensor(500, 40)}),
        "scatter_add, part": ("scatter_add", {
            "self": tensor(5, 6, 7), "dim": 1, "index": indices(6, 4, 9, 3), "src": tensor(5, 10, 3)}),
        "scatter_add, middle": ("scatter_add", {
            "self": tensor(5, 6, 11).mT, "dim": -1, "index": indices(6, 5, 11, 20), "src": tensor(5, 20, 11).mT}),
        "scatter_add, sparse": ("scatter_add", {
            "self": tensor(50, 400), "dim": 1, "index": indices(3, 50, 5), "src": tensor(50, 5)}),
        "scatter_add, large": ("scatter_add", {
            "self": tensor(600, 900), "dim": 1, "index": indices(900, 600, 900), "src": tensor(600, 900)}),
        "scatter_add of nothing": ("scatter_add", {
            "self": x, "dim": 1, "index": indices(3, 0, 0), "src": tensor(50, 5)}),
        "scatter": ("scatter", {
            "self": x, "dim": 1, "index": indices(40, 30, 300), "src": tensor(30, 300), "reduce": "add"}),
        "scatter of a number": ("scatter", {
            "self": x, "dim": 1, "index": indices(40, 30, 300), "value": 0.3, "reduce": "add"}),
        "put": ("put", {
            "self": x.t(), "index": indices(2400, 50, 20) - 1200, "source": tensor(20, 50), "accumulate": True}),
        "bincount": ("bincount", {"self": indices(9, 500), "weights": tensor(500), "minlength": 12}),
    }  # fmt: skip
    for how in ("sum", "mean", "amax", "amin"):
        for included in (True, False):
            found[f"scatter_reduce {how} {included}"] = "scatter_reduce", {
                "self": x, "dim": 1, "index": indices(30, 30, 100), "src": tensor(30, 100), "reduce": how,
                "include_self": included,
            }  # fmt: skip
    put: dict[str, tuple[list[Any], Tensor]] = {
        "rows": ([many - 15], tensor(500, 40)),
        "elements": ([many, indices(40, 500, seed=1)], tensor(500)),
        "columns": ([None, indices(40, 90)], tensor(30, 90)),
        "a grid": ([many[:9, None], indices(40, 8)], tensor(9, 8)),
        "a mask": ([x > 0], tensor(1)),
        "a mask of rows": ([x[:, 0] > 0], tensor(40)),
        "one value": ([many], tensor()),
    }
    for name, (where, values) in put.items():
        arguments = {"self": x, "indices": where, "values": values, "accumulate": True}
        for operation in ("index_put", "_unsafe_index_put", "_index_put_impl"):
            found[f"{operation}: {name}"] = operation, arguments
    return found


def reductions() -> Cases:
    """Running sums, variances and norms."""
    found: Cases = {
        "cumsum of a number": ("cumsum", {"self": tensor(), "dim": 0}),
        "cumsum of nothing": ("cumsum", {"self": tensor(3, 0), "dim": 1}),
        "trace": ("trace", {"self": tensor(40, 30)}),
        "norm": ("norm", {"self": tensor(40, 30), "p": 2}),
        "norm, rows": ("norm", {"self": tensor(40, 30), "p": None, "dim": [1], "keepdim": True}),
        "variance of a number": ("var", {"self": tensor(), "correction": 0}),
        "variance of one": ("var", {"self": tensor(1), "correction": 1}),
        "variance of nothing": ("var", {"self": tensor(0), "correction": 1}),
        "variance, biased": ("var", {"self": tensor(40, 30), "unbiased": False}),
    }
    x = tensor(6, 50, 7, 4) + 3.0
    shaped = {"": x, ", channels last": x.contiguous(memory_format=torch.channels_last), ", strided": x[:, ::2]}
    for layout, y in shaped.items():
        for dim in range(4):
            found[f"cumsum {dim}{layout}"] = "cumsum", {"self": y, "dim": dim - 4}
        for dims in (None, [], [-1], [1], [0, 2, 3], [2, 3], [0]):
            for name in ("var", "std", "var_mean", "std_mean"):
                arguments = {"self": y, "dim": dims, "correction": 1 if dims else 0, "keepdim": dims == [1]}
                found[f"{name} {dims}{layout}"] = name, arguments
            for order in (0, 1, 2, float("inf"), -float("inf")):
                arguments = {"self": y, "ord": order, "dim": dims, "keepdim": dims == [1]}
                found[f"norm {order} {dims}{layout}"] = "linalg_vector_norm", arguments
        found[f"nansum{layout}"] = "nansum", {"self": torch.where(y > 3, y, torch.nan), "dim": [1, 2]}
    found["cumsum, long"] = "cumsum", {"self": tensor(3000, 200), "dim": 0}
    found["norm, large"] = "linalg_vector_norm", {"self": tensor(1200, 1000)}
    found["deviation, large"] = "std", {"self": tensor(1200, 1000), "correction": 1}
    return found


def cases() -> Cases:
    return {**averages(), **maxima(), **interpolations(), **scatters(), **reductions()}


def one_layout() -> Cases:
    """Return the cases but for those that only differ in the layout in memory."""
    return {k: v for k, v in cases().items() if not k.endswith((", channels last", ", strided", ", transposed"))}


def digest(value: Any) -> str:
    hasher = hashlib.sha256()
    for t in parts(value):
        hasher.update(t.contiguous().numpy().tobytes())
    return hasher.hexdigest()


def digests() -> dict[str, dict[str, str]]:
    """Return the digests of the plain and of the exact result of each case, in one layout."""
    return {
        name: {"plain": digest(plain(operation, arguments)), "exact": digest(FORMS[operation](arguments))}
        for name, (operation, arguments) in one_layout().items()
    }


if __name__ == "__main__":
    print(json.dumps(digests()))
