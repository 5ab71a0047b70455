"""From results of segments to one verdict: which finding wins, what is counted, and what is never said."""

from __future__ import annotations

import dataclasses
import itertools
from math import comb
from pathlib import Path
from typing import Any

import pytest
from support.runs import SMALL_DIGITS, Trainer, read_commitments

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.verify.audit import Run, no_replay_verdict, open_run, total_counts, verdict
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.verdict import Divergence, Reason, Result, SegmentResult, detection_probability, result_of

LIMITS = AuditorLimits.default()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(read_commitments(Trainer(SMALL_DIGITS, tmp_path_factory.mktemp("run")).run().folder))


def result(index: int, reason: Reason | None = None, run: Run | None = None, **more: Any) -> SegmentResult:
    first, last = (0, 0) if index == 0 else (2 * index - 1, 2 * index)
    state = run.seal.state if run is not None and run.seal is not None and index == 3 else None
    where = None if reason is None else Divergence(index, last)
    return SegmentResult(index, first, last, reason, f"finding in {index}", where, final_state=state, **more)


def judge(run: Run, *results: SegmentResult) -> dict[str, Any]:
    return verdict(run, results, LIMITS, "nonce", {"machine": "test"})


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_one_verdict(reason: Reason) -> None:
    open_questions = {
        Reason.TOLERANCE_EXCEEDED, Reason.ENVIRONMENT_UNSUPPORTED, Reason.NOT_SEALED, Reason.PROOF_OF_REPLAY_MISSING,
    }  # fmt: skip
    assert result_of(reason) is (Result.INCONCLUSIVE if reason in open_questions else Result.REJECTED)
    plain = no_replay_verdict("r", EvidenceError(str(reason), "why", segment=1, step=3))
    assert plain["verdict"] == str(result_of(reason)) and plain["reason"] == str(reason)
    assert plain["first_divergence"] == {"segment": 1, "step": 3}
    assert result_of(None) is Result.VERIFIED


def test_all_segments_equal(run: Run) -> None:
    found = judge(run, *(result(i, run=run) for i in range(4)))
    assert (found["verdict"], found["reason"], found["first_divergence"]) == ("verified", None, None)
    assert found["coverage"] == {"replayed": 4, "total": 4, "of_share": "1.0000"}
    assert found["detection_probability"] == {"1_bad": "1.0000", "2_bad": "1.0000"}
    assert run.seal is not None and found["state"] == run.seal.state and found["state_checked"] is True


def test_part_of_the_segments_states_what_it_would_have_found(run: Run) -> None:
    found = judge(run, result(1))
    assert found["verdict"] == "verified" and found["state_checked"] is False
    assert found["coverage"] == {"replayed": 1, "total": 4, "of_share": "0.2500"}
    assert found["detection_probability"] == {"1_bad": "0.2500", "2_bad": "0.5000"}


def test_first_rejection_wins_over_anything_inconclusive(run: Run) -> None:
    reasons = (None, Reason.TOLERANCE_EXCEEDED, Reason.STATE_MISMATCH, Reason.LOG_IMPLAUSIBLE)
    for order in itertools.permutations(range(4)):
        results = [result(i, reason) for i, reason in enumerate(reasons)]
        found = judge(run, *(results[i] for i in order))
        assert (found["verdict"], found["reason"]) == ("rejected", "state_mismatch")
        assert found["first_divergence"]["segment"] == 2 and found["message"] == "finding in 2"
        assert [s["index"] for s in found["segments"]] == [0, 1, 2, 3]


def test_one_inconclusive_segment_is_enough(run: Run) -> None:
    for reason in (Reason.TOLERANCE_EXCEEDED, Reason.ENVIRONMENT_UNSUPPORTED):
        found = judge(run, result(0), result(1), result(2, reason), result(3, run=run))
        assert (found["verdict"], found["reason"]) == ("inconclusive", str(reason))


def test_nothing_replayed_is_no_verdict(run: Run) -> None:
    for results in ([], [result(1), result(1)], [result(4)], [result(-1)]):
        with pytest.raises(ValueError, match="one result for each replayed segment"):
            judge(run, *results)


def test_not_sealed_only_where_nothing_worse_is_found(run: Run) -> None:
    open_run_ = dataclasses.replace(run, seal=None)
    found = judge(open_run_, *(result(i) for i in range(4)))
    assert (found["verdict"], found["reason"]) == ("inconclusive", "not_sealed")
    assert found["root"] is None and found["state"] is None
    assert judge(open_run_, result(1, Reason.STATE_MISMATCH))["verdict"] == "rejected"


def test_seal_with_another_state(run: Run) -> None:
    other = dataclasses.replace(result(3), final_state="00" * 32)
    found = judge(run, result(2), other)
    assert (found["verdict"], found["reason"]) == ("rejected", "chain_broken")
    worse = dataclasses.replace(result(3, Reason.STATE_MISMATCH), final_state="00" * 32)
    assert judge(run, worse)["reason"] == "state_mismatch"


COUNTS = {
    "reduction": {"elements": 1000, "entries": 100, "disagreements": 60, "max_distance": "0.500000"},
    "contraction": {"elements": 5, "entries": 0, "disagreements": 0, "max_distance": "0.000000"},
}


def test_bias_is_found_over_all_segments_together(run: Run) -> None:
    few = {"reduction": {**COUNTS["reduction"], "entries": 8, "disagreements": 5}}
    assert judge(run, result(1, counts=few))["verdict"] == "verified"
    found = judge(run, *(result(i, counts=few) for i in range(3)), result(3, run=run, counts=few))
    assert (found["verdict"], found["reason"]) == ("rejected", "log_biased")
    assert "reduction" in found["message"] and "20 of 32" in found["message"]
    # It also decides where a segment alone is inconclusive, and never hides a rejection.
    assert judge(run, result(1, Reason.TOLERANCE_EXCEEDED, counts=COUNTS))["reason"] == "log_biased"
    assert judge(run, result(1, Reason.STATE_MISMATCH, counts=COUNTS))["reason"] == "state_mismatch"


def test_counts_are_added_and_distances_compared_as_numbers() -> None:
    other = {"reduction": {"elements": 1, "entries": 2, "disagreements": 3, "max_distance": "10.000000"}}
    total = total_counts([result(0, counts=COUNTS), result(1, counts=other)])
    assert total["reduction"] == {"elements": 1001, "entries": 102, "disagreements": 63, "max_distance": "10.000000"}
    assert total["contraction"] == COUNTS["contraction"]
    reverse = total_counts(
        [result(1, counts=other), result(0, counts={"reduction": {**other["reduction"], "max_distance": "9.0"}})]
    )
    assert reverse["reduction"]["max_distance"] == "10.000000"


def test_headroom_per_class(run: Run) -> None:
    """The largest certain divergence over all segments, and the mean that the flipped decisions suggest."""
    told = {**COUNTS["reduction"], "disagreements": 5, "decisions": 1000, "flipped": 3}
    far = {**told, "max_distance": "0.75", "flipped": 1}
    unused = {"elements": 0, "entries": 0, "disagreements": 0, "max_distance": "0.000000"}
    counts = [{"reduction": told, "other": unused, "contraction": COUNTS["contraction"]}, {"reduction": far}]
    found = judge(run, *(result(i, counts=n) for i, n in enumerate(counts)))
    assert found["headroom"] == {
        "reduction": {"largest": "0.75", "mean": "0.004000", "seen_at": 10, "decisions": 2000},
        "contraction": {"largest": "0.000000", "mean": None, "seen_at": 0, "decisions": 0},
    }
    assert found["largest_divergence_in_tolerances"] == "0.750000"
    assert judge(run, result(0))["headroom"] == {}


def test_verdict_is_canonical_json(run: Run) -> None:
    place = Divergence(2, 3, 5, "aten.mm.default", "linear", 7, float("nan"), 1 / 3, float("inf"), ("param.a",))
    bad = dataclasses.replace(result(2, Reason.LOG_IMPLAUSIBLE, counts=COUNTS), divergence=place)
    found = judge(run, bad)
    assert loads_strict(dumps(found), "verdict") == found
    first = found["first_divergence"]
    assert (first["trainer_value"], first["distance"]) == ("nan", "inf")
    assert float.fromhex(first["auditor_value"]) == 1 / 3 and first["auditor_value_text"] == "0.333333333"


def test_zero_is_a_known_place_and_none_is_not() -> None:
    plain = Divergence(0, 0, 0, element=0, distance=0.0).to_json()
    assert plain == {
        "segment": 0, "step": 0, "site": 0, "element": 0, "distance": "0x0.0p+0", "distance_text": "0",
    }  # fmt: skip
    assert Divergence(3).to_json() == {"segment": 3}


def test_detection_probability_against_counting() -> None:
    for total in range(1, 7):
        for sampled in range(total + 1):
            for bad in range(total + 1):
                hits = sum(1 for s in itertools.combinations(range(total), sampled) if any(i < bad for i in s))
                expected = hits / comb(total, sampled)
                assert detection_probability(total, sampled, bad) == pytest.approx(expected)
    for wrong in ((3, 4, 1), (3, -1, 1), (3, 1, 4), (3, 1, -1)):
        with pytest.raises(ValueError, match="is needed"):
            detection_probability(*wrong)


def test_reading_a_run_opens_no_file_but_the_commitments(tmp_path: Path) -> None:
    """``open_run`` works on bytes: whoever fetched them, from wherever."""
    folder = Trainer(SMALL_DIGITS, tmp_path / "run").run().folder
    found = read_commitments(folder)
    (folder / "spec.json").unlink()
    assert len(open_run(found).records) == 4
