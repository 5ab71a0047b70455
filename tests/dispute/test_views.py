"""Views in logical terms: every chain of view operations, on memory of any layout, shows what torch shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vt_core.dispute import views
from vt_core.dispute.tracking import Values
from vt_core.engine.opclass import LAYOUT, Treatment
from vt_core.engine.plans import make_plan
from vt_core.errors import EvidenceError, UnsupportedOperation

STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda t: t.transpose(0, -1) if t.dim() > 1 else t,
    "permute": lambda t: t.permute(tuple(reversed(range(t.dim())))),
    "flatten": lambda t: t.reshape(-1),  # a view or a copy, by layout
    "split": lambda t: t.split(max(1, t.shape[0] // 2))[-1] if t.dim() else t,
    "slice": lambda t: t[..., ::2] if t.dim() else t,
    "tail": lambda t: t[1:] if t.dim() and t.shape[0] > 1 else t,
    "unsqueeze": lambda t: t.unsqueeze(0) if t.dim() < 5 else t,
    "expand": lambda t: t.unsqueeze(0).expand(2, *t.shape) if t.dim() < 5 else t,
    "pairs": lambda t: t.reshape(-1, 2) if t.numel() and t.numel() % 2 == 0 else t,
    "copy": lambda t: t.clone(memory_format=torch.contiguous_format),
    "detach": lambda t: t.detach(),
    "select": lambda t: t.select(0, -1) if t.dim() and t.shape[0] else t,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


class Tracking(TorchDispatchMode):
    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        plan = make_plan(func)
        if plan.treatment is Treatment.VIEW:
            self.values.viewed(func, args, kwargs or {}, result)
        elif plan.name in LAYOUT:
            self.values.copied(args[0], result)
        return result


def run(layout: str, steps: list[str]) -> tuple[Tensor, Tensor, views.View]:
    """Return the base, what torch shows after ``steps``, and the view that was tracked."""
    base = LAYOUTS[layout](torch.arange(2 * 4 * 3 * 6, dtype=torch.float64).reshape(2, 4, 3, 6))
    values = Values()
    values.made(base, (0, 0))
    shown = base
    with Tracking(values):
        for step in steps:
            shown = STEPS[step](shown)
    found = values.find(shown)
    assert found is not None and found[0].origin == (0, 0)
    return base, shown, found[2]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
def test_a_tracked_view_shows_what_torch_shows_in_every_layout(steps: list[str]) -> None:
    tracked = set()
    for layout in LAYOUTS:
        base, shown, view = run(layout, steps)
        assert torch.equal(views.apply(base, view), shown.contiguous()), (layout, view)
        assert torch.equal(base.contiguous().reshape(-1)[views.places(tuple(base.shape), view)], shown.reshape(-1))
        assert views.decode_view(views.encode_view(view)) == view
        tracked.add(view)
    assert len(tracked) == 1, "the record would depend on the memory layout"


def test_an_unchanged_view_is_empty() -> None:
    _, _, view = run("row-major", ["transpose", "transpose", "detach", "copy"])
    assert view == ()


def test_a_write_makes_a_new_value_of_everything_that_shares_the_memory() -> None:
    values, base = Values(), torch.zeros(4, 6)
    values.made(base, (0, 0))
    with Tracking(values):
        part, whole, copy = base[1:3], base.t(), base.clone()
        turned = base[1:3].t().clone()
        corner = turned[:2]
    assert values.find(turned)[2] == ((tuple(turned.shape), (1, 6), 6),)  # type: ignore[index]
    values.find(corner)[0].written((8, 0))  # type: ignore[index]
    assert values.find(turned)[1:] == ((), ())  # type: ignore[index]
    assert values.find(corner)[2] == values.find(corner)[1] != ()  # type: ignore[index]
    values.find(part)[0].written((7, 1))  # type: ignore[index]
    for tensor in (base, part, whole):
        memory, of_base, of_value = values.find(tensor)  # type: ignore[misc]
        assert memory.origin == (7, 1) and of_base == of_value
    assert values.find(copy)[0].origin == (0, 0)  # type: ignore[index]
    assert values.base(part).shape == base.shape
    assert values.base(part).data_ptr() == base.data_ptr()


def test_memory_that_was_freed_is_never_mistaken_for_new_one() -> None:
    values, seen = Values(), set()
    for number in range(50):
        tensor = torch.zeros(1000)
        assert values.find(tensor) is None
        values.made(tensor, (number, 0))
        seen.add(tensor.data_ptr())
        del tensor
    assert len(seen) < 50, "the allocator did not use an address again: this proves nothing"


def test_what_has_no_logical_form_is_refused() -> None:
    values = Values()
    base = torch.zeros(4, 6).t()
    values.made(base, (0, 0))
    with Tracking(values), pytest.raises(UnsupportedOperation):
        torch.as_strided(base, (2,), (1,), 1)
    with Tracking(values), pytest.raises(UnsupportedOperation):
        base.view(torch.int32)


@pytest.mark.parametrize(
    "plain",
    [
        5,
        [[[2], [1], -1]],
        [[[2], [1, 1], 0]],
        [[[1], [1], 0]],  # one element has no stride
        [[[0], [1], 0]],
        [[[2.0], [1], 0]],
        [[[2], [True], 0]],
        [[[2], [1], 0]] * 17,
        [[[2], [1]]],
    ],
)
def test_a_view_has_one_form(plain: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        views.decode_view(plain)


def test_a_view_cannot_reach_beyond_its_value() -> None:
    with pytest.raises(EvidenceError) as caught:
        views.apply(torch.zeros(5), (((6,), (1,), 0),))
    assert caught.value.reason == "evidence_malformed"
    assert views.apply(torch.zeros(5), (((5,), (1,), 0),)).shape == (5,)
