"""Proof, on the device at hand, that the operations called exact are exact.

``opclass.EXACT`` claims that an operation gives the same bits on every IEEE 754 machine. :func:`check_device` runs
each of them, untouched by the engine, on inputs chosen to break it (subnormals, zeros of both signs, ties, infinities,
NaN, halfway cases), in float64 and float32, in vector and in tail code, contiguous, strided and transposed, and
compares with NumPy, whose elementwise arithmetic is one IEEE operation an element.

Two liberties, which the engine takes too. All NaNs are one. In operations that choose by order (``maximum``,
``relu``) +0 and -0 are equal, and which of them comes out is not defined; rounding makes both +0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vt_core.engine.proof_cases import Case, nasty, tied
from vt_core.engine.proof_moves import ALL_CASES

Array = npt.NDArray[Any]
DTYPES: dict[torch.dtype, type[np.floating[Any]]] = {torch.float64: np.float64, torch.float32: np.float32}
SHAPES = ((1, 1), (1, 5), (3, 7), (4, 16), (5, 33), (37, 29))
LARGE = (64, 1031)  # more than 32,768 elements: work is split between threads


@dataclass(frozen=True)
class Layout:
    """A way to lay the same values out in memory."""

    name: str
    place: Callable[[Tensor], Tensor]


def _strided(x: Tensor) -> Tensor:
    wide = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype, device=x.device)
    wide[:, ::2] = x
    return wide[:, ::2]


LAYOUTS = (
    Layout("contiguous", lambda x: x.contiguous()),
    Layout("strided", _strided),
    Layout("transposed", lambda x: x.t().contiguous().t()),
)


def check_device(device: torch.device) -> list[tuple[str, bool, str]]:
    """Return (operation, whether it is exact here, detail) for every operation that has a case.

    The detail says how many elements were compared or, for a failure, dtype, layout and the first values that
    differ. An operation that the device lacks counts as failed. Takes a few seconds; draws no random numbers from
    torch and changes no settings.
    """
    results: dict[str, tuple[int, str]] = {}
    for case in ALL_CASES:
        compared, fault = results.get(case.op, (0, ""))
        if not fault:
            count, fault = _check_case(case, device)
            compared += count
        results[case.op] = (compared, fault)
    return [(op, not fault, fault or f"{n} elements agree") for op, (n, fault) in sorted(results.items())]


def inputs(case: Case, shape: tuple[int, int], dtype: type[np.floating[Any]]) -> tuple[Array, Array]:
    """Return the two input arrays of a case: deterministic, shape ``shape``, of ``dtype``."""
    rng = np.random.default_rng(shape[0] * 1009 + shape[1])
    make = tied if case.tied else nasty
    return make(rng, shape, dtype), make(rng, shape, dtype)


def _check_case(case: Case, device: torch.device) -> tuple[int, str]:
    compared = 0
    for dtype, numpy_dtype in DTYPES.items():
        for layout, shape in _places():
            a, b = inputs(case, shape, numpy_dtype)
            with np.errstate(all="ignore"):
                expected = _flatten(case.reference(a, b))
            where = f"{dtype}, {layout.name}, shape {shape}"
            try:
                x, y = (layout.place(torch.from_numpy(v.copy()).to(device)) for v in (a, b))
                found = _flatten(case.run(x, y))
            except (RuntimeError, NotImplementedError) as error:
                return compared, f"{case.label}: does not run ({where}): {error}"
            if len(found) != len(expected):
                return compared, f"{case.label}: {len(found)} results instead of {len(expected)} ({where})"
            for f, e in zip(found, expected, strict=True):
                fault = compare(f, e, case.by_order)
                if fault:
                    return compared, f"{case.label}: {fault} ({where})"
                compared += int(e.size)
    return compared, ""


def _places() -> Iterator[tuple[Layout, tuple[int, int]]]:
    for layout in LAYOUTS:
        for shape in SHAPES:
            yield layout, shape
    yield LAYOUTS[0], LARGE


def compare(found: Array, expected: Array, by_order: bool) -> str:
    """Return "" if equal to the bit (all NaNs are one; with ``by_order`` both zeros are), else what differs first."""
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if expected.dtype.kind == "f":
        same = found == expected
        if not by_order:
            same &= np.signbit(found) == np.signbit(expected)
        same |= np.isnan(found) & np.isnan(expected)
    else:
        same = found == expected
    if same.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ, first {found[place]!r} instead of {expected[place]!r}"


def _flatten(result: Any) -> list[Array]:
    if isinstance(result, (tuple, list)):
        return [a for item in result for a in _flatten(item)]
    if isinstance(result, Tensor):
        return [np.asarray(result.detach().cpu().numpy())]
    return [np.asarray(result)]
