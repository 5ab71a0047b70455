"""What was audited already: coverage of runs from their commitments and verdicts, and the sampler's choice."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pytest

from tasks.coverage import Coverage, choose_unaudited, coverage
from tasks.runs import RunStore
from tasks.store import Store, open_store
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import Tree, leaf_hash
from vt_core.evidence.records import Seal
from vt_core.evidence.work import Work, leaf_data


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def make_run(store: Store, run_id: str, segments: int = 4, sealed: bool = True) -> RunStore:
    """Publish what coverage reads of a run: a spec, names of segments (a step each, so one leaf each), a seal."""
    run = RunStore(store, run_id)
    run.publish_spec(
        dumps(
            {
                "format": "vt-run-spec/1",
                "reference": "my.jobs:Job",
                "steps": segments - 1,
                "segment_steps": 1,
                "commit_interval": 1,
            }
        )
    )
    for index in range(segments):
        store.commitments.create(f"runs/{run_id}/segments/{index:05d}.json", b"{}")
    if sealed:
        run.publish_seal(
            Seal(
                run_id=run_id, spec="0" * 64, segments=[f"{i:064x}" for i in range(segments)], leaf_count=segments,
                root=tree(segments).root.hex(), state="2" * 64,
            )
        )  # fmt: skip
    return run


def work_of(segment: int) -> Work:
    """The words of nine sites, which only who has replayed the segment knows."""
    return Work(b"".join(hashlib.sha256(b"%d %d" % (segment, i)).digest()[:8] for i in range(9)))


def tree(segments: int) -> Tree:
    leaves = [leaf_data(i, b"s" * 32, b"l" * 32, b"t" * 32, work_of(i).commitment()) for i in range(segments)]
    return Tree([leaf_hash(leaf) for leaf in leaves])


def proof(segment: int, nonce: str, segments: int = 4) -> dict[str, Any]:
    """What a verdict holds for a segment that was really replayed."""
    all_leaves = tree(segments)
    named = {name: (name[0].encode() * 32).hex() for name in ("state", "log", "trace")}
    return {
        **named, "step": segment, "leaf": segment, "path": [h.hex() for h in all_leaves.path(segment)],
        **work_of(segment).open(all_leaves.root.hex(), nonce, segment),
    }  # fmt: skip


def judge(
    run: RunStore,
    stamp: str,
    verdict: str,
    *indices: int,
    reason: str | None = None,
    nonce: str = "abcd0123",
    **row: Any,
) -> None:
    found = {"result": "verified" if verdict == "verified" else "rejected"}
    rows = [
        {"index": i, **found, "proof_of_replay": proof(i, nonce) if verdict == "verified" else None, **row}
        for i in indices
    ]
    run.publish_verdict({"verdict": verdict, "reason": reason, "segments": rows, "nonce": nonce}, stamp)


def only(store: Store) -> Coverage:
    (found,) = coverage(store)
    return found


def test_empty_store(store):
    assert coverage(store) == []


def test_a_run_without_verdict(store):
    make_run(store, "r")
    c = only(store)
    assert (c.run_id, c.job, c.published, c.sealed, c.segments) == ("r", "my.jobs:Job", 4, True, 4)
    assert c.verdict is None and c.share == 0.0 and c.missing == [0, 1, 2, 3]


def test_an_unsealed_run_has_no_share(store):
    make_run(store, "r", sealed=False)
    c = only(store)
    assert not c.sealed and c.segments is None and c.share == 0.0 and c.missing == []


def test_verdicts_add_up(store):
    run = make_run(store, "r")
    judge(run, "20260101T000000Z", "verified", 0, 2)
    judge(run, "20260102T000000Z", "verified", 2, 3)
    c = only(store)
    assert c.audited == {0, 2, 3} and c.share == 0.75 and c.missing == [1] and c.verdict == "verified"


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["verified", "rejected"], "rejected"),
        (["rejected", "verified"], "rejected"),  # another segment that is fine does not heal a run
        (["inconclusive", "verified"], "verified"),  # what could not be told then was told later
        (["verified", "inconclusive"], "inconclusive"),
        (["inconclusive", "rejected", "inconclusive"], "rejected"),
    ],
)
def test_the_worst_verdict_that_still_stands(store, verdicts, expected):
    run = make_run(store, "r")
    for n, verdict in enumerate(verdicts):
        judge(run, f"2026010{n + 1}T000000Z", verdict, n, reason=None if verdict == "verified" else f"reason_{n}")
    c = only(store)
    assert c.verdict == expected
    assert (c.reason is None) == (expected == "verified")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b'{"verdict":"splendid"}',
        b'{"verdict":"verified","segments":[1,{"index":"x"}]}',
        b'{"verdict":"verified","segments":7}',
    ],
)
def test_broken_verdicts_audit_nothing(store, data):
    make_run(store, "r")
    store.verdicts.create("runs/r/20260101T000000Z-00.json", data)
    assert only(store).audited == frozenset()


def test_a_broken_seal_or_spec_does_not_hide_the_run(store):
    store.commitments.create("runs/r/spec.json", b"\xff")
    store.commitments.create("runs/r/segments/00000.json", b"{}")
    store.commitments.create("runs/r/seal.json", b"{}")
    c = only(store)
    assert c.sealed and c.segments == 1 and c.job is None


def test_runs_are_sorted_and_kept_apart(store):
    for name in ("b", "a", "a.1"):
        judge(make_run(store, name), "20260101T000000Z", "verified", 0)
    assert [(c.run_id, c.published, len(c.audited)) for c in coverage(store)] == [
        ("a", 4, 1), ("a.1", 4, 1), ("b", 4, 1),
    ]  # fmt: skip


def _coverage(run_id: str, audited: set[int], **changes: Any) -> Coverage:
    plain: dict[str, Any] = {
        "run_id": run_id, "job": None, "published": 4, "sealed": True, "segments": 4, "audited": frozenset(audited),
        "verdict": None, "reason": None,
    }  # fmt: skip
    return Coverage(**{**plain, **changes})


def test_choice_skips_what_needs_no_audit():
    runs = [
        _coverage("done", {0, 1, 2, 3}),
        _coverage("rejected", {0}, verdict="rejected"),
        _coverage("training", set(), sealed=False, segments=None),
        _coverage("open", {1, 3}, verdict="verified"),
    ]
    assert choose_unaudited(runs, 100) == {"open": [0, 2]}
    assert choose_unaudited(runs, 0) == {} and choose_unaudited([], 3) == {}


def test_inconclusive_settles_nothing_and_comes_last(store):
    """Who writes "inconclusive" without any work must not keep the sampler away."""
    run = make_run(store, "r")
    judge(run, "20260101T000000Z", "inconclusive", 0, 1, result="inconclusive", reason="environment_unsupported")
    judge(run, "20260102T000000Z", "verified", 1)
    c = only(store)
    assert (c.audited, c.tried, c.missing) == ({1}, {0}, [0, 2, 3])
    for _ in range(20):
        assert choose_unaudited([c], 2) == {"r": [2, 3]}
    assert choose_unaudited([c], 3) == {"r": [0, 2, 3]}


def test_choice_is_fair_over_all_segments():
    runs = [_coverage("small", {0, 1, 2}), _coverage("large", set())]  # 1 and 4 open segments
    counts: Counter[tuple[str, int]] = Counter()
    tries = 2000
    for _ in range(tries):
        chosen = choose_unaudited(runs, 1)
        counts.update((run, i) for run, indices in chosen.items() for i in indices)
    assert set(counts) == {("small", 3), *(("large", i) for i in range(4))}
    # Binomial(2000, 1/5) has a standard deviation of 18: eight of them are never reached by chance.
    assert all(abs(n - tries / 5) < 8 * 18 for n in counts.values()), counts


LIES = {
    "none": lambda p: None,
    "echo of another audit": lambda p: proof(1, "ffff9999"),
    "of another segment": lambda p: proof(2, "abcd0123"),
    "another word": lambda p: {**p, "sites": [{**p["sites"][0], "word": "00" * 8}, *p["sites"][1:]]},
    "fewer sites": lambda p: {**p, "sites": p["sites"][:1]},
    "another root": lambda p: {**p, "root": "0" * 64},
    "another count": lambda p: {**p, "count": p["count"] + 1},
    "no path": lambda p: {**p, "path": []},
    "no object": lambda p: [p],
    "text for sites": lambda p: {**p, "sites": "ab"},
    "a word that is a number": lambda p: {**p, "sites": [{**s, "word": 7} for s in p["sites"]]},
    "another state": lambda p: {**p, "state": "0" * 64},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_verdict_without_proof_of_replay_is_no_audit(store, lie):
    """An auditor who only reads the store can write ``verified``; it must not count."""
    run = make_run(store, "r")
    judge(run, "20260101T000000Z", "verified", 1, proof_of_replay=LIES[lie](proof(1, "abcd0123")))
    c = only(store)
    assert c.verdict is None and c.audited == frozenset() and c.unproven == 1
    judge(run, "20260102T000000Z", "verified", 1)
    c = only(store)
    assert c.verdict == "verified" and c.audited == {1} and c.unproven == 1


def test_a_rejection_needs_no_proof_and_no_readable_spec(store):
    """A finding may be that the spec cannot be read."""
    run = RunStore(store, "r")
    run.publish_spec(b"{}")
    run.publish_seal(Seal(run_id="r", spec="0" * 64, segments=["0" * 64], leaf_count=1, root="1" * 64, state="2" * 64))
    run.publish_verdict({"verdict": "rejected", "reason": "evidence_malformed", "segments": []}, "20260101T000000Z")
    c = only(store)
    assert c.verdict == "rejected" and c.unproven == 0 and c.job is None


def test_a_segment_counts_once_whatever_number_it_is_given(store):
    """Segment -1 would be the last one under another name, with a proof that holds."""
    run = make_run(store, "r")
    rows = [{"index": i, "result": "verified", "proof_of_replay": proof(3, "abcd0123")} for i in (3, -1)]
    rows[1]["proof_of_replay"] = {**rows[1]["proof_of_replay"], **work_of(3).open(tree(4).root.hex(), "abcd0123", -1)}
    verdict = {"verdict": "verified", "reason": None, "segments": rows, "nonce": "abcd0123"}
    run.publish_verdict(verdict, "20260101T000000Z")
    assert only(store).audited == {3} and only(store).share == 0.25


def test_a_verdict_over_nothing_is_no_audit(store):
    run = make_run(store, "r")
    judge(run, "20260101T000000Z", "verified")
    assert only(store).verdict is None and only(store).unproven == 1
