"""Proofs of replay: complete openings hold, everything else is refused, and places depend on all that draws them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vt_core.errors import EvidenceError
from vt_core.evidence.merkle import EMPTY_ROOT, Tree, inclusion_proof, leaf_hash, root
from vt_core.evidence.ranges import last_leaves, segment_count, segment_range
from vt_core.evidence.work import OPENED_SITES, Work, check_opening, check_proof, leaf_data, places
from vt_core.training.segment import commit_steps

ANCHOR, NONCE = "ab" * 32, "0123456789abcdef"
NAMED: dict[str, Any] = {"step": 7, "state": "11" * 32, "log": "22" * 32, "trace": "33" * 32}


def work(count: int = 13) -> Work:
    return Work(random.Random(5).randbytes(8 * count))


def opening(count: int = 13) -> dict[str, Any]:
    return NAMED | work(count).open(ANCHOR, NONCE, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 13, 64, 1000])
def test_an_opening_leads_to_the_leaf(count: int) -> None:
    data = check_opening(opening(count), ANCHOR, NONCE, 2)
    digests = [bytes.fromhex(NAMED[k]) for k in ("state", "log", "trace")]
    assert data == leaf_data(7, *digests, work(count).commitment())  # type: ignore[call-arg]
    assert len(opening(count)["sites"]) == min(OPENED_SITES, count)


def test_places_depend_on_everything_that_draws_them() -> None:
    drawn = {
        tuple(places(*given, 10**6))
        for given in ((ANCHOR, NONCE, 2), ("cd" * 32, NONCE, 2), (ANCHOR, "00", 2), (ANCHOR, NONCE, 3))
    }
    assert len(drawn) == 4
    assert places(ANCHOR, NONCE, 2, 0) == []
    # Every place of a small tree is drawn by some nonce.
    assert {p for n in range(200) for p in places(ANCHOR, str(n), 2, 13)} == set(range(13))


def test_a_word_changed_or_moved_changes_the_commitment() -> None:
    words = work().words
    other = {
        Work(words[8:] + words[:8]).commitment(),
        Work(words[:-8]).commitment(),
        Work(words + bytes(8)).commitment(),
    }
    assert len(other | {work().commitment()}) == 4


BROKEN = {
    "none": lambda p: None,
    "list": lambda p: [p],
    "missing-field": lambda p: {k: v for k, v in p.items() if k != "trace"},
    "count-0": lambda p: {**p, "count": 0, "sites": []},
    "count-true": lambda p: {**p, "count": True},
    "count-huge": lambda p: {**p, "count": 1 << 60},
    "step-negative": lambda p: {**p, "step": -1},
    "step-huge": lambda p: {**p, "step": 1 << 70},
    "root-short": lambda p: {**p, "root": "ab"},
    "state-upper-case": lambda p: {**p, "state": "AA" * 32},
    "no-sites": lambda p: {**p, "sites": []},
    "sites-swapped": lambda p: {**p, "sites": p["sites"][::-1]},
    "site-elsewhere": lambda p: {
        **p,
        "sites": [{**p["sites"][0], "site": (p["sites"][0]["site"] + 1) % 13}, p["sites"][1]],
    },
    "word-of-another-site": lambda p: {**p, "sites": [{**p["sites"][0], "word": "00" * 8}, p["sites"][1]]},
    "word-short": lambda p: {**p, "sites": [{**s, "word": s["word"][:-2]} for s in p["sites"]]},
    "word-no-hex": lambda p: {**p, "sites": [{**s, "word": "zz" * 8} for s in p["sites"]]},
    "path-short": lambda p: {**p, "sites": [{**s, "path": s["path"][:-1]} for s in p["sites"]]},
    "path-long": lambda p: {**p, "sites": [{**s, "path": [*s["path"], "00" * 32]} for s in p["sites"]]},
    "extra-key": lambda p: {**p, "sites": [{**s, "more": 1} for s in p["sites"]]},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_openings(name: str) -> None:
    check_opening(opening(), ANCHOR, NONCE, 2)
    with pytest.raises(EvidenceError) as caught:
        check_opening(BROKEN[name](opening()), ANCHOR, NONCE, 2)
    assert caught.value.reason == "proof_of_replay_missing"


@pytest.mark.parametrize("given", [("cd" * 32, NONCE, 2), (ANCHOR, "0123456789abcdee", 2), (ANCHOR, NONCE, 1)])
def test_an_opening_for_another_audit(given: tuple[str, str, int]) -> None:
    with pytest.raises(EvidenceError, match="does not open the places"):
        check_opening(opening(10000), *given)


def test_the_leaf_must_be_the_sealed_one() -> None:
    leaves = [leaf_hash(b"%d" % i) for i in range(5)]
    digests = [bytes.fromhex(NAMED[k]) for k in ("state", "log", "trace")]
    leaves[3] = leaf_hash(leaf_data(7, *digests, work().commitment()))  # type: ignore[call-arg]
    tree = Tree(leaves)
    anchor = tree.root.hex()
    plain = NAMED | work().open(anchor, NONCE, 2) | {"leaf": 3, "path": [h.hex() for h in tree.path(3)]}
    assert check_proof(plain, 2, NONCE, anchor, 3, 5) == NAMED["state"]
    for change in ({"leaf": 2}, {"path": plain["path"][:-1]}, {"path": None}, {"state": "44" * 32}):
        with pytest.raises(EvidenceError):
            check_proof({**plain, **change}, 2, NONCE, anchor, 3, 5)
    with pytest.raises(EvidenceError):
        check_proof(plain, 2, NONCE, anchor, 2, 5)


def test_the_tree_equals_the_functions() -> None:
    for size in (0, 1, 2, 3, 7, 8, 9, 33):
        leaves = [leaf_hash(bytes([i])) for i in range(size)]
        tree = Tree(leaves)
        assert tree.root == root(leaves) and (size or tree.root == EMPTY_ROOT)
        assert [tree.path(i) for i in range(size)] == [inclusion_proof(i, leaves) for i in range(size)]
        with pytest.raises(ValueError, match="outside a tree"):
            tree.path(size)


@pytest.mark.parametrize("steps", [1, 2, 7, 12])
@pytest.mark.parametrize("segment", [1, 3, 5, 20])
@pytest.mark.parametrize("interval", [1, 2, 3, 50])
def test_last_leaves_are_those_of_the_trainer(steps: int, segment: int, interval: int) -> None:
    counts = [
        len(commit_steps(*segment_range(steps, segment, i), interval)) for i in range(segment_count(steps, segment))
    ]
    assert last_leaves(steps, segment, interval) == [sum(counts[: i + 1]) - 1 for i in range(len(counts))]
