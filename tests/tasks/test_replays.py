"""The board on which the workers of one audit leave the results of their replays."""

from __future__ import annotations

import json

import pytest

from tasks.replays import ReplayBoard, parse_result
from tasks.runs import RunStore
from tasks.store import open_store
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

COUNTS = {"other": {"elements": 10, "entries": 2, "disagreements": 1, "max_distance": "0.250000"}}
VERIFIED = SegmentResult(3, 7, 9, None, "replayed bit for bit", None, COUNTS, 1.5, "ab" * 32, {"count": 7, "sites": []})
ENVIRONMENT = {"machine": "aarch64"}
REJECTED = SegmentResult(
    index=4, first_step=10, last_step=12, reason=Reason.LOG_IMPLAUSIBLE, message="no honest machine",
    divergence=Divergence(
        segment=4, step=11, site=2, op="aten.mm.default", module="fc", element=5, trainer_value=0.1,
        auditor_value=float("inf"), distance=3.25, tensors=("fc.weight",),
    ),
    counts=COUNTS, seconds=0.125,
)  # fmt: skip


@pytest.fixture
def run(tmp_path) -> RunStore:
    return RunStore(open_store(str(tmp_path / "store"), create=True), "r")


@pytest.mark.parametrize("result", [VERIFIED, REJECTED, SegmentResult(0, 0, 0, None, "", None)])
def test_a_result_comes_back_as_it_was(run, result):
    ReplayBoard(run, "audit-1").put(result, ENVIRONMENT)
    found = ReplayBoard(run, "audit-1").get([result.index])[result.index]
    # What ends up in the verdict is the same to the byte, wherever the replay ran.
    assert dumps(found.result.to_json()) == dumps(result.to_json())
    assert found.result.final_state == result.final_state and found.trainer_environment == ENVIRONMENT


def test_the_first_result_counts(run):
    board = ReplayBoard(run, "a")
    board.put(VERIFIED)
    board.put(SegmentResult(3, 7, 9, Reason.LOG_IMPLAUSIBLE, "a retry", Divergence(3)))
    assert board.get([3])[3].result.reason is None


def test_audits_and_runs_do_not_see_each_others_results(run):
    ReplayBoard(run, "a").put(VERIFIED)
    assert ReplayBoard(run, "b").get([3]) == {}
    assert ReplayBoard(RunStore(run.store, "r2"), "a").get([3]) == {}


def test_missing_results_are_left_out(run):
    board = ReplayBoard(run, "a")
    board.put(VERIFIED)
    assert set(board.get(range(6))) == {3}


def test_results_lie_among_the_verdicts_and_are_none(run):
    ReplayBoard(run, "a").put(VERIFIED)
    assert run.store.verdicts.list() == ["replays/r/a/00003.json"]
    assert run.verdicts() == [] and run.store.commitments.list() == []


@pytest.mark.parametrize(
    "change",
    [
        {"index": None}, {"reason": "made_up"}, {"counts": []}, {"counts": {"other": {"elements": 1}}},
        {"divergence": {"step": 1}}, {"seconds": "soon"},
        {"final_state": "0"}, {"trainer_environment": []}, {"proof_of_replay": 1},
    ],
)  # fmt: skip
def test_malformed_results_are_findings(change):
    whole = {**REJECTED.to_json(), "final_state": None, "trainer_environment": None}
    parse_result(dumps(whole))
    plain = {**json.loads(dumps(whole)), **change}
    with pytest.raises(EvidenceError):
        parse_result(dumps(plain))


@pytest.mark.parametrize("data", [b"", b"[]", b"1", b"\xff", b'{"index":1}'])
def test_other_bytes_are_findings(data):
    with pytest.raises(EvidenceError):
        parse_result(data)
