"""Leaves: what they bind, their bytes, and malformed ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.training.leaves import Leaf, decode_leaves, encode_leaves, leaves_root, make_leaf
from vt_core.training.segment import commit_steps
from vt_core.training.state import StateDigest


def leaf(step: int = 4, **changes: Any) -> Leaf:
    plain = Leaf(step, b"s" * 32, b"l" * 32, b"t" * 32, b"w" * 32, {"a": b"1" * 32, "b": b"2" * 32})
    return dataclasses.replace(plain, **changes)


def test_leaf_hash_is_the_documented_bytes() -> None:
    data = b"vt-leaf/1\x00" + (4).to_bytes(8, "big") + b"s" * 32 + b"l" * 32 + b"t" * 32 + b"w" * 32
    assert leaf().data() == data
    assert leaf().hash() == hashlib.sha256(b"\x00" + data).digest() == leaf_hash(data)
    assert leaves_root([leaf(1), leaf(2)]) == root([leaf(1).hash(), leaf(2).hash()])


def test_leaf_binds_step_state_log_trace_and_work() -> None:
    others = [leaf(5), leaf(state=b"S" * 32), leaf(log=b"L" * 32), leaf(trace=b"T" * 32), leaf(work=b"W" * 32)]
    assert len({x.hash() for x in [leaf(), *others]}) == 6
    assert leaf(tensors={}).hash() == leaf().hash(), "the tensors' roots locate; the state root binds them"


def test_made_leaf_covers_all_steps_since_the_last_one() -> None:
    state = StateDigest(b"r" * 32, {"a": b"1" * 32})
    made = make_leaf(3, state, [b"x" * 32, b"y" * 32], [b"p" * 32, b"q" * 32], [b"word0001", b"word0002"])
    assert made.log == hashlib.sha256(b"x" * 32 + b"y" * 32).digest()
    assert made.trace == hashlib.sha256(b"p" * 32 + b"q" * 32).digest()
    swapped = make_leaf(3, state, [b"y" * 32, b"x" * 32], [b"p" * 32, b"q" * 32], [b"word0001", b"word0002"])
    assert swapped.hash() != made.hash()


digests = st.binary(min_size=32, max_size=32)
leaf_strategy = st.builds(
    Leaf,
    st.integers(0, 1 << 40),
    digests,
    digests,
    digests,
    digests,
    st.dictionaries(st.text(max_size=5), digests, max_size=4),
)


def _unicode(x: Leaf) -> bool:
    return all(name.encode("utf-8", "ignore").decode() == name for name in x.tensors)


@given(st.lists(leaf_strategy.filter(_unicode), max_size=5))
def test_round_trip(leaves: list[Leaf]) -> None:
    assert decode_leaves(encode_leaves(leaves)) == leaves


def malformed(**changes: Any) -> bytes:
    plain = json.loads(encode_leaves([leaf()]))
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = plain
        for parent in parents:
            target = target[int(parent) if parent.isdigit() else parent]
        if value is None:
            del target[name]
        else:
            target[name] = value
    return dumps(plain)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "vt-leaves/2"}, {"format": None}, {"leaves": None}, {"names": None}, {"leaves": 3},
        {"leaves": [3]}, {"leaves": [[]]}, {"names": "ab"}, {"names": [3]}, {"names": [["a", 3]]},
        {"leaves__0__step": -1}, {"leaves__0__step": True}, {"leaves__0__step": "4"}, {"leaves__0__step": 1.5},
        {"leaves__0__state": "00"}, {"leaves__0__state": "zz" * 32}, {"leaves__0__state": 5},
        {"leaves__0__log": "00" * 33}, {"leaves__0__trace": None}, {"leaves__0__names": 1},
        {"leaves__0__names": -1}, {"leaves__0__names": "0"}, {"leaves__0__tensors": "00" * 32},
        {"leaves__0__tensors": "0"}, {"leaves__0__tensors": None},
    ],
    ids=str,
)  # fmt: skip
def test_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError) as caught:
        decode_leaves(malformed(**changes))
    assert caught.value.reason == "evidence_malformed"


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"3", b"{}", b"\xff", b"{" * 1000])
def test_not_even_an_object(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        decode_leaves(data)


@given(st.integers(1, 60), st.integers(0, 40), st.integers(1, 12))
def test_commit_steps_are_every_k_th_and_the_last(first: int, more: int, interval: int) -> None:
    last = first + more
    found = commit_steps(first, last, interval)
    assert found == {s for s in range(first, last + 1) if s % interval == 0 or s == last}
