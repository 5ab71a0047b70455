"""Merkle trees: RFC 6962's published vectors, a slow reference as oracle, and named ways to break a proof."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vt_core.errors import EvidenceError
from vt_core.evidence import merkle

# The test tree of Certificate Transparency's reference implementation: eight leaves and the root after each.
CT_LEAVES = [
    bytes.fromhex(h)
    for h in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
CT_INCLUSION_0_OF_8 = [
    "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
    "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
    "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
]


def slow_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962, 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = split_point(len(leaves))
    return hashlib.sha256(b"\x01" + slow_root(leaves[:k]) + slow_root(leaves[k:])).digest()


def slow_path(m: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 6962, 2.1.1, word for word."""
    if len(leaves) == 1:
        return []
    k = split_point(len(leaves))
    if m < k:
        return [*slow_path(m, leaves[:k]), slow_root(leaves[k:])]
    return [*slow_path(m - k, leaves[k:]), slow_root(leaves[:k])]


def slow_subproof(m: int, leaves: Sequence[bytes], complete: bool) -> list[bytes]:
    """SUBPROOF of RFC 6962, 2.1.2, word for word."""
    if m == len(leaves):
        return [] if complete else [slow_root(leaves)]
    k = split_point(len(leaves))
    if m <= k:
        return [*slow_subproof(m, leaves[:k], complete), slow_root(leaves[k:])]
    return [*slow_subproof(m - k, leaves[k:], False), slow_root(leaves[:k])]


def split_point(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def numbered(n: int) -> list[bytes]:
    return [f"leaf {i}".encode() for i in range(n)]


def hashes(leaves: Sequence[bytes]) -> list[bytes]:
    return [merkle.leaf_hash(leaf) for leaf in leaves]


def test_roots_of_the_certificate_transparency_tree() -> None:
    assert merkle.root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for n, expected in enumerate(CT_ROOTS, start=1):
        assert merkle.root(hashes(CT_LEAVES[:n])).hex() == expected


def test_inclusion_proof_of_the_certificate_transparency_tree() -> None:
    assert [h.hex() for h in merkle.inclusion_proof(0, hashes(CT_LEAVES))] == CT_INCLUSION_0_OF_8


@given(st.lists(st.binary(max_size=40), max_size=70))
@settings(max_examples=60, deadline=None)
def test_fast_root_equals_the_recursive_definition(leaves: list[bytes]) -> None:
    assert merkle.root(hashes(leaves)) == slow_root(leaves)


def test_every_inclusion_proof_up_to_33_leaves() -> None:
    for n in range(1, 34):
        leaves = numbered(n)
        leaf_hashes, root = hashes(leaves), slow_root(leaves)
        for i in range(n):
            proof = merkle.inclusion_proof(i, leaf_hashes)
            assert proof == slow_path(i, leaves)
            merkle.verify_inclusion(leaf_hashes[i], i, n, proof, root)


def test_every_consistency_proof_up_to_33_leaves() -> None:
    for n in range(34):
        leaves = numbered(n)
        leaf_hashes = hashes(leaves)
        for m in range(n + 1):
            proof = merkle.consistency_proof(m, leaf_hashes)
            assert proof == ([] if m == 0 else slow_subproof(m, leaves, True))
            merkle.verify_consistency(m, n, proof, slow_root(leaves[:m]), slow_root(leaves))


def test_an_inner_node_does_not_pass_for_a_leaf() -> None:
    """Second preimage: the two-leaf tree's root must differ from the leaf made of the two hashes."""
    left, right = hashes(numbered(2))
    assert merkle.leaf_hash(left + right) != merkle.root([left, right])


Mutation = Callable[[list[bytes]], list[bytes]]

WRONG_ROOT: dict[str, Mutation] = {
    "swapped-neighbours": lambda p: [p[1], p[0], *p[2:]],
    "flipped-bit-first": lambda p: [bytes([p[0][0] ^ 1]) + p[0][1:], *p[1:]],
    "flipped-bit-last": lambda p: [*p[:-1], p[-1][:-1] + bytes([p[-1][-1] ^ 128])],
    "reversed": lambda p: p[::-1],
    "zeroed": lambda p: [bytes(32)] * len(p),
}
WRONG_SHAPE: dict[str, Mutation] = {
    "trailing-garbage": lambda p: [*p, bytes(32)],
    "leading-garbage": lambda p: [bytes(32), *p],
    "truncated-proof": lambda p: p[:-1],
    "missing-first": lambda p: p[1:],
    "empty-proof": lambda p: [],
    "short-hash": lambda p: [p[0][:31], *p[1:]],
    "long-hash": lambda p: [p[0] + b"\x00", *p[1:]],
}


@pytest.mark.parametrize("name", [*WRONG_ROOT, *WRONG_SHAPE])
def test_broken_inclusion_proof(name: str) -> None:
    leaf_hashes = hashes(numbered(13))
    root = merkle.root(leaf_hashes)
    for index in (0, 5, 11):
        good = merkle.inclusion_proof(index, leaf_hashes)
        bad = (WRONG_ROOT | WRONG_SHAPE)[name](good)
        assert bad != good
        with pytest.raises(EvidenceError) as caught:
            merkle.verify_inclusion(leaf_hashes[index], index, 13, bad, root)
        assert_typed(caught.value, name, root)


@pytest.mark.parametrize("name", [*WRONG_ROOT, *WRONG_SHAPE])
def test_broken_consistency_proof(name: str) -> None:
    leaf_hashes = hashes(numbered(13))
    root = merkle.root(leaf_hashes)
    for old_size in (3, 6, 7, 11):
        good = merkle.consistency_proof(old_size, leaf_hashes)
        bad = (WRONG_ROOT | WRONG_SHAPE)[name](good)
        with pytest.raises(EvidenceError) as caught:
            merkle.verify_consistency(old_size, 13, bad, merkle.root(leaf_hashes[:old_size]), root)
        if name in WRONG_SHAPE:
            assert_typed(caught.value, name, root)
        else:
            assert isinstance(caught.value, merkle.RootMismatch)


def assert_typed(error: EvidenceError, name: str, root: bytes) -> None:
    if name in WRONG_SHAPE:
        assert error.reason == "evidence_malformed"
        assert not isinstance(error, merkle.RootMismatch)
    else:
        assert isinstance(error, merkle.RootMismatch)
        assert error.reason == "chain_broken"
        assert error.expected == root
        assert error.calculated != root
        assert error.place["calculated"] == error.calculated.hex()


def test_inclusion_of_another_leaf_or_another_place_is_refused() -> None:
    leaf_hashes = hashes(numbered(8))
    root = merkle.root(leaf_hashes)
    proof = merkle.inclusion_proof(3, leaf_hashes)
    with pytest.raises(merkle.RootMismatch):
        merkle.verify_inclusion(leaf_hashes[4], 3, 8, proof, root)
    with pytest.raises(merkle.RootMismatch):
        merkle.verify_inclusion(leaf_hashes[3], 4, 8, proof, root)
    for index, size in ((8, 8), (-1, 8), (0, 0)):
        with pytest.raises(EvidenceError, match="outside"):
            merkle.verify_inclusion(leaf_hashes[3], index, size, proof, root)


def test_consistency_names_the_root_that_does_not_come_out() -> None:
    leaf_hashes = hashes(numbered(9))
    old, new = merkle.root(leaf_hashes[:6]), merkle.root(leaf_hashes)
    proof = merkle.consistency_proof(6, leaf_hashes)
    other = merkle.root(leaf_hashes[1:])
    with pytest.raises(merkle.RootMismatch, match="old tree") as caught:
        merkle.verify_consistency(6, 9, proof, other, new)
    assert (caught.value.expected, caught.value.calculated) == (other, old)
    with pytest.raises(merkle.RootMismatch, match="new tree") as caught:
        merkle.verify_consistency(6, 9, proof, old, other)
    assert (caught.value.expected, caught.value.calculated) == (other, new)


def test_consistency_edge_cases() -> None:
    leaf_hashes = hashes(numbered(4))
    root, other = merkle.root(leaf_hashes), merkle.root(leaf_hashes[:3])
    with pytest.raises(merkle.RootMismatch):
        merkle.verify_consistency(4, 4, [], root, other)
    with pytest.raises(merkle.RootMismatch):
        merkle.verify_consistency(0, 4, [], other, root)
    with pytest.raises(EvidenceError, match="too many"):
        merkle.verify_consistency(4, 4, [root], root, root)
    with pytest.raises(EvidenceError, match="shrink"):
        merkle.verify_consistency(5, 4, [], root, root)
    with pytest.raises(EvidenceError, match="is empty"):
        merkle.verify_consistency(3, 4, [], other, root)


def test_caller_mistakes_are_value_errors() -> None:
    with pytest.raises(ValueError, match="outside a tree of 2"):
        merkle.inclusion_proof(2, hashes(numbered(2)))
    with pytest.raises(ValueError, match="outside a tree of 2"):
        merkle.consistency_proof(3, hashes(numbered(2)))
