"""One element near a boundary explains a fingerprint; anything else does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vt_core.numerics import Grid, Tolerance, fingerprint, max_magnitude, round_plain_
from vt_core.numerics.scale import scale_exponent, stepped
from vt_core.verify.explain import Explanation, explain

GRID = Grid.parse("float32")
TOLERANCE = Tolerance(None, -44)
WITHIN = 64.0


def values(n: int = 4000, near: dict[int, float] | None = None, seed: int = 0) -> torch.Tensor:
    """Return float64 values below 1; element i of ``near`` lies that many tolerances below a rounding boundary."""
    random = np.random.Generator(np.random.PCG64(seed))
    x = torch.from_numpy(random.uniform(0.5, 1.0, n).astype(np.float32).astype(np.float64) + 2.0**-27)
    for i, distance in (near or {}).items():
        below = np.float64(np.float32(0.75) + np.float32(i) * np.float32(2.0**-20))
        x[i] = below + 2.0**-25 - distance * 2.0**-44  # the boundary is half a unit above, the scale is 2^0
    return x


def scale_of(x: torch.Tensor, floor: float = 0.0) -> int:
    return scale_exponent(max(max_magnitude(x), floor), x.dtype)


def rounded(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    round_plain_(y, GRID, False)
    return y


def flipped(x: torch.Tensor, *positions: int, steps: int = 1) -> torch.Tensor:
    """Return the rounding of ``x`` with the next grid value at some places."""
    y = rounded(x)
    for i in positions:
        value = y[i].to(torch.float32)
        for _ in range(steps):
            value = torch.nextafter(value, torch.tensor(2.0))
        y[i] = value.to(torch.float64)
    return y


def look(x: torch.Tensor, trainer: torch.Tensor, **more: Any) -> Explanation | None:
    return explain(x, rounded(x), TOLERANCE, GRID, scale_of(x), fingerprint(trainer) & 0xFFFFFFFF, WITHIN, **more)


@pytest.mark.parametrize("distance", [0.25, 1.5, 20.0, 60.0])
def test_one_flip_is_found_with_values_and_distance(distance: float) -> None:
    x = values(near={7: 5.0, 100: distance, 2000: 30.0})
    found = look(x, flipped(x, 100))
    assert found is not None
    assert found.position == 100 and found.distance == pytest.approx(distance, rel=1e-3)
    assert found.auditor_value == rounded(x)[100].item()
    assert found.trainer_value == flipped(x, 100)[100].item()
    assert found.flips == ((100, found.trainer_value),)


def test_two_flips_are_found_together() -> None:
    x = values(near={7: 5.0, 100: 2.0, 2000: 30.0})
    trainer = flipped(x, 7, 2000)
    found = look(x, trainer)
    assert found is not None
    assert dict(found.flips) == {7: trainer[7].item(), 2000: trainer[2000].item()}
    assert found.position == 2000 and found.distance == pytest.approx(30.0, rel=1e-3), "the farther one is reported"


def test_flip_downwards() -> None:
    x = values(near={5: -3.0})  # just above the boundary: the auditor rounds up
    trainer = rounded(x)
    trainer[5] = torch.nextafter(trainer[5].float(), torch.tensor(0.0)).double()
    found = look(x, trainer)
    assert found is not None and found.position == 5 and found.distance == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(
    "how", ["far-element", "two-steps", "three-flips", "beyond-reach", "other-computation", "decided", "equal"]
)
def test_what_is_no_explanation(how: str) -> None:
    near = {7: 5.0, 100: 2.0, 2000: 30.0, 9: 80.0}
    x = values(near=near)
    trainer = {
        "far-element": flipped(x, 50),
        "two-steps": flipped(x, 100, steps=2),
        "three-flips": flipped(x, 7, 100, 2000),
        "beyond-reach": flipped(x, 9),
        "other-computation": rounded(values(seed=1)),
        "decided": flipped(x, 100),
        "equal": rounded(x),
    }[how]
    # What the log decides was taken from it: it cannot be what differs.
    more = {"decided": np.array([100, 10**9])} if how == "decided" else {}
    assert look(x, trainer, **more) is None


def test_other_computation_is_hardly_ever_explained_by_chance() -> None:
    """300 wrong fingerprints against 40 candidates (820 combinations): a match has a chance of 6e-5."""
    x = values(near={10 * i + 1: 1.0 + i for i in range(40)})
    for seed in range(300):
        assert look(x, rounded(values(seed=seed + 1))) is None


def test_no_candidate_at_all() -> None:
    x = values()
    assert look(x, flipped(x, 3)) is None
    assert look(x[:0], x[:0]) is None
    strange = torch.tensor([torch.nan, torch.inf, 0.0], dtype=torch.float64)
    assert look(strange, torch.tensor([1.0, torch.inf, 0.0], dtype=torch.float64)) is None


def test_layout_and_shape_do_not_matter() -> None:
    """Positions are logical: a channels_last tensor has the same elements at the same places."""
    x = values(4 * 3 * 5 * 5, near={100: 2.0})
    trainer = fingerprint(flipped(x, 100))
    image = x.view(4, 3, 5, 5)
    for form in (image, image.contiguous(memory_format=torch.channels_last)):
        found = explain(form, rounded(form), TOLERANCE, GRID, scale_of(form), trainer, WITHIN)
        assert found is not None and found.position == 100


def test_floor_of_the_scale_is_used() -> None:
    """A sum that cancels is small, but its error is as large as its terms: the floor widens the tolerance."""
    x = values(near={100: 2.0})
    trainer = flipped(x, 100)
    found = explain(x, rounded(x), TOLERANCE, GRID, scale_of(x, 4.0), fingerprint(trainer), WITHIN)
    assert found is not None and found.distance == pytest.approx(0.5, rel=1e-2)


def test_float32_onto_bfloat16() -> None:
    grid, tolerance = Grid.parse("bfloat16"), Tolerance(None, -18)
    x = torch.full((50,), 0.75, dtype=torch.float32)
    x[20] = 0.75 + 2.0**-9 - 3 * 2.0**-18
    own = x.clone()
    round_plain_(own, grid, False)
    trainer = own.clone()
    trainer[20] = 0.75 + 2.0**-8
    found = explain(x, own, tolerance, grid, scale_of(x), fingerprint(trainer), WITHIN)
    assert found is not None and (found.position, found.trainer_value) == (20, 0.75 + 2.0**-8)
    assert found.distance == pytest.approx(3.0)


def test_near_zero_the_grid_is_that_of_the_least_step() -> None:
    tolerance, step = Tolerance(None, -44, 5), 2.0**-39
    x = values()
    x[9] = 3.5 * step - 0.25 * 2.0**-44
    own = x.clone()
    round_plain_(own, stepped(GRID, tolerance, 0), False)
    trainer = own.clone()
    trainer[9] = 4 * step
    found = explain(x, own, tolerance, GRID, 0, fingerprint(trainer) & 0xFFFFFFFF, WITHIN)
    assert found is not None and found.flips == ((9, 4 * step),)
    assert found.auditor_value == 3 * step and found.distance == pytest.approx(0.25, rel=1e-3)
