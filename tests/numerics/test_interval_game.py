"""The two-sided game: honest machines end equal to the bit and accuse nobody; liars gain next to nothing."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics_support import COMPUTE, GRIDS, NUMPY, TOLERANCES, bits, exact_rounding, nasty_values

from vt_core.numerics import (
    DEFAULT,
    Grid,
    OpClass,
    SiteEntries,
    Tolerance,
    auditor_round_,
    kernels,
    reference,
    trainer_round_,
)
from vt_core.numerics.grid import lattice_index, lattice_value
from vt_core.numerics.result import MAX_FINDINGS
from vt_core.numerics.scale import absolute_part, acceptable_scales, scale_exponent, stepped

HONEST = Fraction(999, 1000)
FLOAT32 = Grid.parse("float32")


def tau_of(value: float, tolerance: Tolerance, scale: int) -> Fraction:
    relative = Fraction(0) if tolerance.rtol_exp is None else Fraction(2) ** tolerance.rtol_exp
    return relative * abs(Fraction(value)) + Fraction(2) ** (tolerance.atol_exp + scale)


def largest_finite(x: torch.Tensor) -> float:
    return float(torch.where(torch.isfinite(x), x.abs(), 0.0).max())


def honest_partner(x: torch.Tensor, shares: list[float], tolerance: Tolerance, scale: int) -> torch.Tensor:
    """Another machine's values: |x - x'| <= share * tau * 999/1000, as close to that bound as the dtype allows."""
    kind = NUMPY[x.dtype]
    out = []
    for value, share in zip(x.tolist(), shares, strict=True):
        if not np.isfinite(value):
            out.append(value)
            continue
        bound = tau_of(value, tolerance, scale) * HONEST * Fraction(abs(share))
        exact = Fraction(value) + (bound if share > 0 else -bound)
        with np.errstate(over="ignore"):
            moved = kind(float(exact)) if abs(exact) < Fraction(2) ** 1023 else kind(value)
        while not np.isfinite(moved) or abs(Fraction(float(moved)) - Fraction(value)) > bound:
            moved = np.nextafter(moved, kind(value))
        out.append(float(moved))
    return torch.tensor(out, dtype=x.dtype)


@st.composite
def games(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, Tolerance, Grid, float]:
    dtype = draw(st.sampled_from(COMPUTE))
    grid = Grid.parse(draw(st.sampled_from(GRIDS)))
    tolerance = draw(st.sampled_from(TOLERANCES[dtype]))
    floor = draw(st.sampled_from([0.0, 0.0, 1.0]))
    x = draw(nasty_values(dtype, grid, max_size=16))
    limit = draw(st.sampled_from([np.inf, 2.0**4, 2.0 ** (grid.emin - 2), 2.0 ** (grid.quantum_exponent + 30)]))
    x = torch.where(x.abs() > limit, 0.0, x)  # small tensors: the absolute part must be able to get small too
    if draw(st.booleans()):  # a maximum at or near a power of two: the scale may be ambiguous
        top = 2.0 ** scale_exponent(max(largest_finite(x), 2.0**-90), dtype)
        x[0] = top * (1.0 + draw(st.sampled_from([0.0, 1.0, -1.0, 0.3])) * tolerance.atol)
    scale = scale_exponent(max(largest_finite(x), floor), dtype)
    step = absolute_part(scale, tolerance)
    spread = draw(st.lists(st.floats(-2.5, 2.5), min_size=x.numel(), max_size=x.numel()))
    moved = x + torch.tensor(spread, dtype=dtype) * step
    x = torch.where(torch.isfinite(moved), moved, x)
    scale = scale_exponent(max(largest_finite(x), floor), dtype)
    one = st.one_of(st.sampled_from([1.0, -1.0]), st.floats(-1.0, 1.0))
    shares = draw(st.lists(one, min_size=x.numel(), max_size=x.numel()))
    return x, honest_partner(x, shares, tolerance, scale), tolerance, grid, floor


@given(game=games())
@settings(max_examples=500, deadline=None)
def test_honest_machines_agree_and_accuse_nobody(
    game: tuple[torch.Tensor, torch.Tensor, Tolerance, Grid, float],
) -> None:
    x, other, tolerance, grid, floor = game
    trainer = trainer_round_(x, tolerance, grid, True, floor)
    audit = auditor_round_(other, tolerance, grid, trainer.entries, True, floor)
    assert audit.findings == [] and audit.finding_count == 0
    assert torch.equal(bits(x), bits(other))
    assert audit.fingerprint == trainer.fingerprint
    assert audit.entries == (0 if trainer.entries is None else trainer.entries.positions.size)
    assert audit.max_distance <= 1.0 and audit.disagreements <= audit.entries


@pytest.mark.parametrize("name", ["float64", "float32"])
def test_many_elements_at_the_bound(name: str) -> None:
    """2**18 normal values moved by the whole tolerance, default policy; the log is needed and mostly parity bits."""
    dtype = getattr(torch, name)
    grid = Grid.parse("float32" if name == "float64" else "bfloat16")
    for op_class in OpClass:
        tolerance = DEFAULT[name][op_class]
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(1 << 18, dtype=dtype, generator=generator)
        scale = scale_exponent(largest_finite(x), dtype)
        tau = x.abs() * tolerance.rtol + absolute_part(scale, tolerance)
        other = x + tau * (0.99 if name == "float64" else 0.9) * torch.sign(
            torch.randn(x.shape, dtype=dtype, generator=generator)
        )
        trainer = trainer_round_(x, tolerance, grid, True)
        unlogged = other.clone()
        audit = auditor_round_(other, tolerance, grid, trainer.entries, True)
        assert audit.finding_count == 0
        assert torch.equal(x, other)
        auditor_round_(unlogged, tolerance, grid, None, True)
        assert trainer.entries is not None
        assert torch.equal(x, unlogged) == (audit.disagreements == 0)
        if op_class is OpClass.CONTRACTION:
            assert audit.disagreements > 0  # without the log the two machines differ
        if op_class is OpClass.CONTRACTION and name == "float64":
            assert 1e-5 < trainer.entries.positions.size / x.numel() < 1e-3
            assert trainer.entries.full_index.size == 0


def test_the_old_zero_rule_had_a_hole() -> None:
    """Logging nothing with y = 0 loses x = s/2 - tau/2 against x' = s/2 + tau/3 (s: smallest subnormal)."""
    tolerance = Tolerance(None, -44)
    scale, s = -108, 2.0**-149
    tau = absolute_part(scale, tolerance)
    assert tau == s / 8
    x = torch.tensor([s / 2 - tau / 2, 2.0**scale], dtype=torch.float64)
    other = torch.tensor([s / 2 + tau / 3, 2.0**scale], dtype=torch.float64)
    y = exact_rounding(float(x[0]), FLOAT32)
    old_rule_logs = exact_rounding(float(x[0] - tau), FLOAT32) != exact_rounding(float(x[0] + tau), FLOAT32) and y != 0
    old_auditor = 0.0 if abs(float(other[0])) <= tau else exact_rounding(float(other[0]), FLOAT32)
    assert not old_rule_logs and old_auditor != y  # the hole

    trainer = trainer_round_(x, tolerance, FLOAT32, False)
    assert trainer.entries is not None and trainer.entries.positions.tolist() == [0]
    audit = auditor_round_(other, tolerance, FLOAT32, trainer.entries, False)
    assert other.tolist() == x.tolist() == [0.0, 2.0**scale]
    assert (audit.finding_count, audit.disagreements) == (0, 1)


@pytest.mark.parametrize("module", [kernels, reference])
def test_a_tolerance_beyond_the_largest_grid_value(module: object) -> None:
    """float16 gradients that overflow everywhere: tau is 2**17, twice what the grid holds."""
    grid, tolerance = Grid.parse("float16"), Tolerance(None, -18)
    x = torch.tensor([2.0**35, -1.5 * 2.0**17, 1.0, 0.0, 2.0**17], dtype=torch.float32)
    other = torch.tensor([2.0**35, -1.003 * 2.0**16, 2.0**16.9, -(2.0**16.9), 200.0], dtype=torch.float32)
    trainer = module.trainer_round_(x, tolerance, grid, False)  # type: ignore[attr-defined]
    audit = module.auditor_round_(other, tolerance, grid, trainer.entries, False)  # type: ignore[attr-defined]
    assert audit.findings == []
    assert x.tolist() == other.tolist() == [np.inf, -np.inf, 1.0, 0.0, np.inf]
    lone_zero = module.trainer_round_(torch.zeros(1), tolerance, grid, False, 2.0**35).entries  # type: ignore[attr-defined]
    assert lone_zero.positions.tolist() == [0]


@pytest.mark.parametrize("module", [kernels, reference])
def test_the_zero_rule_is_no_wider_than_the_hair_of_the_assumption(module: object) -> None:
    """x is 1/512 tau and rounds to 0, its partner lies beyond tau and rounds to something else: logged."""
    tolerance, s = Tolerance(None, -44), 2.0**-149
    tau = absolute_part(-97, tolerance)
    x = torch.tensor([0.9 * s / 2, 2.0**-97], dtype=torch.float64)
    other = torch.tensor([float(x[0]) + 0.999 * tau, 2.0**-97], dtype=torch.float64)
    assert float(other[0]) > tau
    trainer = module.trainer_round_(x, tolerance, FLOAT32, False)  # type: ignore[attr-defined]
    audit = module.auditor_round_(other, tolerance, FLOAT32, trainer.entries, False)  # type: ignore[attr-defined]
    assert audit.findings == [] and x.tolist() == other.tolist() == [0.0, 2.0**-97]


@pytest.mark.parametrize("module", [kernels, reference])
def test_below_a_power_of_two_the_boundary_is_nearer(module: object) -> None:
    """At 1 the bfloat16 cell reaches 2**-9 down and 2**-8 up; tau is 2**-9 + 2**-12."""
    x = torch.tensor([1.0], dtype=torch.float64)
    entries = module.trainer_round_(x, Tolerance(-12, -12), Grid.parse("bfloat16"), False, 8.0).entries  # type: ignore[attr-defined]
    assert entries is not None and entries.positions.tolist() == [0]


@pytest.mark.parametrize("module", [kernels, reference])
def test_a_parity_bit_among_many_candidates_is_refused(module: object) -> None:
    """The window holds thousands of grid values; a bit that happens to fit the auditor's own names none."""
    x = torch.tensor([1.0, 0.3], dtype=torch.float64)
    audit = module.auditor_round_(x, Tolerance(None, -12), FLOAT32, entries_of(0, parity=0), False)  # type: ignore[attr-defined]
    assert [(f.kind, f.trainer_value, f.distance) for f in audit.findings] == [("implausible", None, np.inf)]


def test_exact_zeros_are_not_logged() -> None:
    x = torch.zeros(1000, dtype=torch.float64)
    x[::2] = 1.5  # on the grid, far from any boundary
    x[1] = -0.0
    assert trainer_round_(x, Tolerance(None, -44), FLOAT32, False).entries is None


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("dtype", COMPUTE)
def test_scale_at_a_power_of_two(module: object, dtype: torch.dtype) -> None:
    """The two sides see exponents 3 and 4: the trainer's is in the log, also without entries, and is accepted."""
    tolerance = TOLERANCES[dtype][0]
    grid = Grid.parse("bfloat16")
    step = absolute_part(3, tolerance)
    at, above = (torch.tensor([value, 1.0], dtype=dtype) for value in (8.0, 8.0 + step / 2))
    for mine, theirs in ((at, above), (above, at)):
        x, other = mine.clone(), theirs.clone()
        trainer = module.trainer_round_(x, tolerance, grid, False)  # type: ignore[attr-defined]
        assert trainer.entries == SiteEntries.empty(scale_exponent(float(mine.max()), dtype))
        audit = module.auditor_round_(other, tolerance, grid, trainer.entries, False)  # type: ignore[attr-defined]
        assert audit.findings == []
    clear = torch.tensor([7.0, 1.0], dtype=dtype)
    assert module.trainer_round_(clear, tolerance, grid, False).entries is None  # type: ignore[attr-defined]


@given(st.integers(-90, 90), st.floats(0.5, 2.0), st.floats(-1, 1), st.sampled_from(TOLERANCES[torch.float64]))
@settings(max_examples=500, deadline=None)
def test_scales_of_two_honest_sides_are_mutually_acceptable(
    power: int, fraction: float, share: float, tolerance: Tolerance
) -> None:
    near = 1.0 + (fraction - 1.0) * tolerance.atol * 4
    largest = 2.0**power * near
    scale = scale_exponent(largest, torch.float64)
    other = largest + share * 0.999 * (tolerance.rtol * largest + absolute_part(scale, tolerance))
    seen = scale_exponent(other, torch.float64)
    trainer_range = acceptable_scales(largest, tolerance, torch.float64, auditor=False)
    assert scale in trainer_range and len(trainer_range) <= 2
    if len(trainer_range) == 1:
        assert seen == scale  # nothing in the log, and nothing needed
    assert scale in acceptable_scales(other, tolerance, torch.float64, auditor=True)


def entries_of(
    position: int, *, parity: int | None = None, full: float | None = None, scale: int | None = 0
) -> SiteEntries:
    return SiteEntries(
        scale,
        np.array([position], np.int64),
        np.array([parity or 0], np.uint8),
        np.empty(0, np.int64) if full is None else np.zeros(1, np.int64),
        np.empty(0, np.float32) if full is None else np.array([full], np.float32),
    )


TAU = 2.0**-44
STEP = 2.0**-23  # float32 spacing at 1
TIE = 1.0 + STEP / 2
FORGERIES = {
    "one step further than the window": (TIE + 0.1 * TAU, {"full": 1.0 + 2 * STEP}),
    "the other neighbour, out of reach": (TIE + 1.5 * TAU, {"full": 1.0}),
    "the other parity, out of reach": (TIE + 1.5 * TAU, {"parity": 0}),
    "no reason to be there": (TIE + 3.0 * TAU, {"full": 1.0 + STEP}),
    "no reason to be there, parity": (TIE + 3.0 * TAU, {"parity": 1}),
    "no reason, far away": (1.0, {"full": 1.0}),
    "another sign": (TIE, {"full": -1.0}),
    "infinity": (TIE, {"full": np.inf}),
    "not a number": (TIE, {"full": np.nan}),
    "negative zero": (0.2 * TAU, {"full": -0.0}),
    "entry at infinity": (np.inf, {"full": np.inf}),
    "entry at infinity, parity": (np.inf, {"parity": 0}),
    "entry at a NaN": (np.nan, {"full": 1.0}),
}


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("name", FORGERIES)
def test_forged_entries_are_found_and_not_obeyed(module: object, name: str) -> None:
    value, claim = FORGERIES[name]
    x = torch.tensor([1.0, value, 0.5], dtype=torch.float64)
    expected = x.clone()
    module.auditor_round_(expected, Tolerance(None, -44), FLOAT32, None, False)  # type: ignore[attr-defined]
    scale = 1 if np.isfinite(value) and value > 1 else 0
    tolerance = Tolerance(None, -44 - scale)
    audit = module.auditor_round_(x, tolerance, FLOAT32, entries_of(1, scale=scale, **claim), False)  # type: ignore[attr-defined]
    assert [(f.kind, f.position) for f in audit.findings] == [("implausible", 1)]
    assert (audit.finding_count, audit.entries, audit.disagreements) == (1, 0, 0)
    assert torch.equal(bits(x), bits(expected))


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("kind", ["implausible", "position"])
def test_a_flood_of_forged_entries_is_counted_and_costs_little(module: object, kind: str) -> None:
    """A hostile log may hold millions of them: only the first are described."""
    count = 300_000
    x = torch.full((count,), 1.0, dtype=torch.float64)
    positions = np.arange(count, dtype=np.int64) + (count if kind == "position" else 0)
    entries = SiteEntries(1, positions, np.zeros(count, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    audit = module.auditor_round_(x, Tolerance(None, -44), FLOAT32, entries, False)  # type: ignore[attr-defined]
    assert (audit.finding_count, len(audit.findings), audit.entries) == (count, MAX_FINDINGS, 0)
    assert {f.kind for f in audit.findings} == {kind}


@pytest.mark.parametrize(
    ("name", "distance"),
    [
        ("one step further than the window", STEP / TAU - 0.1),
        ("the other neighbour, out of reach", 1.5),
        ("the other parity, out of reach", 1.5),
        ("no reason to be there", 2.0),
        ("no reason to be there, parity", 2.0),
        ("negative zero", np.inf),
        ("entry at infinity", np.inf),
    ],
)
def test_distance_says_how_far_the_assumption_was_missed(name: str, distance: float) -> None:
    value, claim = FORGERIES[name]
    x = torch.tensor([1.0, value, 0.5], dtype=torch.float64)
    scale = 1 if np.isfinite(value) and value > 1 else 0
    audit = auditor_round_(x, Tolerance(None, -44 - scale), FLOAT32, entries_of(1, scale=scale, **claim), False)
    assert audit.findings[0].distance == pytest.approx(distance, rel=1e-3)


def test_an_off_grid_value_inside_the_window_is_refused() -> None:
    """Between two grid values a liar could choose at will; bfloat16 leaves room for float32 values there."""
    x = torch.tensor([1.0, 1.0 + 2.0**-8], dtype=torch.float64)
    audit = auditor_round_(x, Tolerance(None, -26), Grid.parse("bfloat16"), entries_of(1, full=1.0 + 2.0**-9), False)
    assert [f.kind for f in audit.findings] == ["scale", "implausible"]
    assert x.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("scale", [-1, 2, 0])
def test_a_forged_scale_is_found(scale: int) -> None:
    x = torch.tensor([1.5, TIE], dtype=torch.float64)  # e is 1 and not ambiguous
    audit = auditor_round_(x, Tolerance(None, -44), FLOAT32, SiteEntries.empty(scale), False)
    finding = audit.findings[0]
    assert (finding.kind, finding.position, finding.trainer_value, finding.auditor_value) == ("scale", -1, scale, 1)


@pytest.mark.parametrize("module", [kernels, reference])
def test_bad_positions_are_findings_and_never_index_errors(module: object) -> None:
    x = torch.tensor([TIE, 1.0, TIE, TIE], dtype=torch.float64)
    positions = np.array([0, 0, 2**60, 2, 1, -1, 3, -(2**62)], np.int64)
    claims = SiteEntries(1, positions, np.zeros(8, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    audit = module.auditor_round_(x, Tolerance(None, -44), FLOAT32, claims, False)  # type: ignore[attr-defined]
    assert [f.position for f in audit.findings if f.kind == "position"] == [0, 2**60, 1, -1, -(2**62)]
    assert audit.entries == 3  # 0, 2 and 3 stand


def test_findings_are_capped_and_counted() -> None:
    x = torch.ones(100, dtype=torch.float64)
    claims = SiteEntries(0, np.arange(100), np.zeros(100, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    audit = auditor_round_(x, Tolerance(None, -44), FLOAT32, claims, False)
    assert (len(audit.findings), audit.finding_count) == (16, 100)


def test_distance_of_an_accepted_disagreement() -> None:
    x = torch.tensor([1.0, TIE + 0.75 * 2 * TAU], dtype=torch.float64)  # e is 1, so tau is 2 TAU
    audit = auditor_round_(x, Tolerance(None, -44), FLOAT32, entries_of(1, parity=0, scale=1), False)
    assert (audit.entries, audit.disagreements, audit.finding_count) == (1, 1, 0)
    assert audit.max_distance == 0.75 and x[1] == 1.0


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_liar_moves_an_element_by_at_most_tau_and_one_step(data: st.DataObject) -> None:
    x, _, tolerance, grid, _ = data.draw(games())
    n = x.numel()
    count = data.draw(st.integers(1, n))
    positions = np.sort(np.array(data.draw(st.permutations(range(n)))[:count], np.int64))
    parity = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.uint8)
    full = np.flatnonzero(np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count))))
    # Forged values: grid values a few places from the true one, with some that are off the grid.
    true = np.array([exact_rounding(v, grid) if np.isfinite(v) else 1.0 for v in x[positions[full]].tolist()])
    shift = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=full.size, max_size=full.size)), np.int64)
    top = int(lattice_index(np.array([grid.max_value]), grid)[0])
    values = lattice_value(np.clip(lattice_index(true, grid) + shift, -top, top), grid)
    values = values * data.draw(st.sampled_from([1.0, 1.0, 1.0 - 2.0**-20]))
    scale = scale_exponent(largest_finite(x), x.dtype)
    logged_scale = scale + data.draw(st.integers(-1, 1))
    claims = SiteEntries(logged_scale, positions, parity, full, values.astype(np.float32))
    y, own = x.clone(), x.clone()
    audit = auditor_round_(y, tolerance, grid, claims, False)
    auditor_round_(own, tolerance, grid, None, False)
    used = logged_scale if all(f.kind != "scale" for f in audit.findings) else scale
    grid = stepped(grid, tolerance, used)
    for before, after, alone in zip(x.tolist(), y.tolist(), own.tolist(), strict=True):
        if not np.isfinite(before):
            assert after == alone or np.isnan(alone)
            continue
        tau = tau_of(before, tolerance, used)
        low, high = (exact_rounding_of(Fraction(before) + k * tau, grid) for k in (-1, 1))
        # (1) inside the auditor's own window, which is tau and a step wide; 0 for what is within tau of 0
        assert low <= after <= high or after == 0.0
        # (2) moved only if a boundary lies within 2 tau and a hair (computed windows may be off by a place)
        if used == scale and after != alone:
            wide = [exact_rounding_of(Fraction(before) + k * tau * Fraction(201, 100), grid) for k in (-1, 1)]
            assert wide[0] != wide[1]


def exact_rounding_of(value: Fraction, grid: Grid) -> float:
    """As ``exact_rounding``, for a rational that need not be a float."""
    size = abs(value)
    if size == 0:
        return 0.0
    binade = grid.emin
    while Fraction(2) ** (binade + 1) <= size:
        binade += 1
    spacing = Fraction(2) ** (binade - grid.precision + 1)
    rounded = round(size / spacing) * spacing
    result = float("inf") if rounded >= Fraction(2) ** (grid.emax + 1) else float(rounded)
    return result if value > 0 else -result
