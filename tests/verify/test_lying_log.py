"""Trainers that steer through their log: the replay finds nothing in it, the tests over its entries do.

Small digits at float32 onto bfloat16, where a log has the most freedom, and once at float64 onto float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.lying_log.cases import CASES, with_steps
from bench.lying_log.compass import directions
from bench.lying_log.measure import ATTACKERS, Bench, attack, one_step
from bench.lying_log.runs import Outcome, distance, parameters
from vt_core.numerics import OpClass
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.session import Session
from vt_core.verify.bias import biased_class

STEPS = 3
STEERED = ("coins", "one_direction", "gradient_sign", "backdoor", "fine_only")


@pytest.fixture(autouse=True)
def deterministic_defaults() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    assert torch.get_default_dtype() == before


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench("digits-bf16", with_steps(CASES["digits-bf16"], STEPS), tmp_path_factory.mktemp("lying"))


@pytest.fixture(scope="module")
def outcomes(bench: Bench) -> dict[str, Outcome]:
    return {o.attacker: o for o in attack(bench)}


def test_a_replay_finds_none_of_them(outcomes: dict[str, Outcome]) -> None:
    """Every entry lies in the accepted window and the states agree to the bit: without the tests all are verified."""
    assert list(outcomes) == [name for name, *_ in ATTACKERS]
    assert [o.attacker for o in outcomes.values() if not o.plausible] == []
    for name, outcome in outcomes.items():
        assert (outcome.l2 > 0) == (name != "honest"), "an attacker without effect proves nothing"
        assert outcome.farthest() <= 1.0


@pytest.mark.parametrize("name", STEERED)
def test_who_uses_all_freedom_is_caught(name: str, outcomes: dict[str, Outcome]) -> None:
    found = outcomes[name].by_uses
    assert found is not None and found.p_value < 1e-100
    assert outcomes["honest"].by_uses is None


def test_padding_hides_from_a_test_over_all_entries_alike_and_not_from_ours(outcomes: dict[str, Outcome]) -> None:
    padded, plain, honest = (outcomes[n] for n in ("padded", "below_threshold", "honest"))
    assert padded.total("entries") > 1.5 * honest.total("entries")
    assert padded.total("disagreements") > 1.3 * plain.total("disagreements"), "padding buys nothing"
    assert padded.by_entries is None and padded.by_uses is not None
    # Padding makes neither decisions nor fine entries: their number is the auditor's own.
    for kind in ("decisions", "fine"):
        assert padded.total(kind) == pytest.approx(honest.total(kind), rel=0.05)


def test_who_stays_below_the_tests_passes_with_a_fraction_of_the_freedom(outcomes: dict[str, Outcome]) -> None:
    below, free = outcomes["below_both"], outcomes["backdoor"]
    assert below.by_uses is None
    assert 0 < below.total("flipped") < 0.5 * free.total("flipped")
    assert 0 < below.total("moved") < 0.5 * free.total("moved")
    # One flip more than the budget and it is caught.
    counts = {name: dict(n) for name, n in below.counts.items()}
    assert biased_class(counts) is None
    counts["contraction"]["flipped"] += int(0.05 * counts["contraction"]["decisions"])
    assert biased_class(counts) is not None


def test_what_passes_moves_no_more_than_rounding_itself(bench: Bench, outcomes: dict[str, Outcome]) -> None:
    """The distance that a liar below the tests reaches is that of coins, and that of training without the grid."""
    start = load_checkpoint(bench.honest.segment(0)).tensors
    moved, _ = distance(parameters(bench.honest.final()), parameters(start))
    below, coins = outcomes["below_both"], outcomes["coins"]
    assert below.l2 < 3 * coins.l2 and below.l2 < 0.3 * moved
    assert abs(below.loss) < 0.1


def test_the_compass_points_where_the_attacker_wants_to_go(tmp_path: Path) -> None:
    """With and against the compass: the first-order effects of one step have opposite signs, and exceed chance."""
    case = CASES["digits-bf16"]
    wide = {str(c): {"rtol_exp": None, "atol_exp": -14, "step_exp": None} for c in OpClass}  # else chance is as large
    first = one_step("digits-bf16", with_steps(case, case.train["steps"], policy=wide), tmp_path)
    assert first.free > first.chance > 0 and first.below > 0
    assert first.free < 0.1 * abs(first.step), "the log would be worth as much as the agreed step"


def test_directions_leave_the_session_alone(bench: Bench) -> None:
    session = Session(bench.spec, bench.job, bench.dataset)
    with session.open():
        session.restore(load_checkpoint(bench.honest.segment(0)))
        before = session.capture(0).tensors
        found = directions(session, 1, bench.objectives["backdoor"])
        after = session.capture(0).tensors
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert {"conv1", "norm1", "linear"} <= set(found.forward) and "linear" in found.parameters
    assert all(p.grad is None for p in session.model.parameters())


def test_hardware_that_uses_a_third_of_the_tolerance_is_not_accused(outcomes: dict[str, Outcome]) -> None:
    other = outcomes["other_machine"]
    assert other.plausible and other.by_uses is None
    assert other.total("flipped") > 100 and other.total("moved") > 1000
    assert 0.2 < other.farthest() < 0.35


def test_in_float64_the_steered_model_is_the_honest_one_but_for_rounding(tmp_path: Path) -> None:
    bench = Bench("digits-4", with_steps(CASES["digits-4"], 4), tmp_path)
    honest, steered = attack(bench, ("honest", "backdoor"))
    assert steered.plausible and steered.by_uses is not None and steered.total("flipped") > 0
    assert honest.total("elements") > 4e5
    assert steered.largest < 1e-5 and abs(steered.loss) < 1e-5 and abs(steered.gain) < 1e-5
