"""Merkle tree hash, inclusion proofs and consistency proofs of RFC 6962, section 2.1 (SHA-256).

A leaf is hashed as ``SHA-256(0x00 || data)``, an inner node as ``SHA-256(0x01 || left || right)``; the two
prefixes keep a node from passing for a leaf. A tree of n leaves splits at the largest power of two below n.
Verification follows the iterative algorithms of RFC 9162, sections 2.1.3.2 and 2.1.4.2, which describe the
same trees.

All hashes are 32 raw bytes. Functions that build proofs take the whole list of *leaf hashes* (not of leaves)
and raise ``ValueError`` for an index out of range, a mistake of the caller. Functions that verify raise
:class:`EvidenceError`: ``evidence_malformed`` for a proof of the wrong shape, and its subclass
:class:`RootMismatch` for a proof that leads to another root. They return nothing: no exception means that the
proof holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from vt_core.errors import EvidenceError

HASH_BYTES = 32

EMPTY_ROOT = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""


class RootMismatch(EvidenceError):
    """A proof is well formed but leads to another root; carries both roots (32 bytes each)."""

    def __init__(self, what: str, expected: bytes, calculated: bytes) -> None:
        self.expected, self.calculated = expected, calculated
        super().__init__(
            "chain_broken",
            f"{what} leads to root {calculated.hex()}, expected {expected.hex()}",
            expected=expected.hex(),
            calculated=calculated.hex(),
        )


def leaf_hash(data: bytes) -> bytes:
    """Return the hash (32 bytes) of one leaf's content."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash (32 bytes) of an inner node over its two children's hashes."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def root(leaf_hashes: Sequence[bytes]) -> bytes:
    """Return the root (32 bytes) over ``leaf_hashes`` in order; :data:`EMPTY_ROOT` if there are none."""
    if not leaf_hashes:
        return EMPTY_ROOT
    level = list(leaf_hashes)
    while len(level) > 1:
        level = _next_level(level)
    return level[0]


def inclusion_proof(index: int, leaf_hashes: Sequence[bytes]) -> list[bytes]:
    """Return the audit path of leaf ``index``, sibling first. Requires 0 <= index < len(leaf_hashes)."""
    if not 0 <= index < len(leaf_hashes):
        raise ValueError(f"leaf index {index} is outside a tree of {len(leaf_hashes)} leaves")
    proof = []
    level = list(leaf_hashes)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):  # the last node of an odd level has none and moves up as it is
            proof.append(level[sibling])
        level = _next_level(level)
        index //= 2
    return proof


class Tree:
    """A tree with all its nodes, for many audit paths: each takes O(log n) instead of hashing the tree again."""

    def __init__(self, leaf_hashes: Sequence[bytes]) -> None:
        """Hash the whole tree once; ``leaf_hashes`` as in :func:`root`."""
        self.levels = [list(leaf_hashes)]
        while len(self.levels[-1]) > 1:
            self.levels.append(_next_level(self.levels[-1]))

    @property
    def root(self) -> bytes:
        """The root (32 bytes)."""
        return self.levels[-1][0] if self.levels[0] else EMPTY_ROOT

    def path(self, index: int) -> list[bytes]:
        """Return the audit path of leaf ``index``, equal to that of :func:`inclusion_proof`."""
        if not 0 <= index < len(self.levels[0]):
            raise ValueError(f"leaf index {index} is outside a tree of {len(self.levels[0])} leaves")
        proof = []
        for level in self.levels[:-1]:
            if index ^ 1 < len(level):
                proof.append(level[index ^ 1])
            index //= 2
        return proof


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> None:
    """Check that the leaf hash ``leaf`` is number ``index`` of the tree of ``size`` leaves with
    ``expected_root``.

    Raises :class:`RootMismatch`, or :class:`EvidenceError` if index, size or the proof's shape is impossible.
    """
    if not 0 <= index < size:
        raise _malformed(f"leaf index {index} is outside a tree of {size} leaves")
    _check_hashes([leaf, expected_root, *proof])
    node, last, result = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise _malformed(f"the inclusion proof for leaf {index} of {size} has too many hashes ({len(proof)})")
        if node % 2 == 1 or node == last:
            result = node_hash(sibling, result)
            while node % 2 == 0 and node != 0:
                node, last = node // 2, last // 2
        else:
            result = node_hash(result, sibling)
        node, last = node // 2, last // 2
    if last != 0:
        raise _malformed(f"the inclusion proof for leaf {index} of {size} has too few hashes ({len(proof)})")
    if result != expected_root:
        raise RootMismatch(f"the inclusion proof for leaf {index} of {size}", expected_root, result)


def consistency_proof(old_size: int, leaf_hashes: Sequence[bytes]) -> list[bytes]:
    """Return the proof that the tree over ``leaf_hashes`` only appends to the tree over its first
    ``old_size``.

    Requires 0 <= old_size <= len(leaf_hashes). The proof is empty for an empty or an equal old tree.
    """
    size = len(leaf_hashes)
    if not 0 <= old_size <= size:
        raise ValueError(f"old size {old_size} is outside a tree of {size} leaves")
    if old_size in (0, size):
        return []
    # SUBPROOF of RFC 6962, 2.1.2, walked from the root down; the proof lists its hashes from the bottom up.
    begin, end, proof = 0, size, []
    while begin + old_size != end:
        split = 1 << (end - begin - 1).bit_length() - 1
        if old_size <= split:
            proof.append(root(leaf_hashes[begin + split : end]))
            end = begin + split
        else:
            proof.append(root(leaf_hashes[begin : begin + split]))
            begin, old_size = begin + split, old_size - split
    if begin != 0:  # a complete left subtree is the old root itself, which the verifier has
        proof.append(root(leaf_hashes[begin:end]))
    return proof[::-1]


def verify_consistency(old_size: int, new_size: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Check that the tree of ``new_size`` leaves with ``new_root`` begins with the tree of ``old_size``,
    ``old_root``.

    Raises :class:`RootMismatch` (naming the root that does not come out), or :class:`EvidenceError` if the
    sizes or the proof's shape are impossible.
    """
    name = f"the consistency proof from {old_size} to {new_size} leaves"
    if not 0 <= old_size <= new_size:
        raise _malformed(f"{name}: a tree cannot shrink")
    _check_hashes([old_root, new_root, *proof])
    if old_size in (0, new_size):
        if proof:
            raise _malformed(f"{name} has too many hashes ({len(proof)})")
        if old_size == 0 and old_root != EMPTY_ROOT:
            raise RootMismatch(f"{name}: the empty tree", old_root, EMPTY_ROOT)
        if new_size == 0 and new_root != EMPTY_ROOT:
            raise RootMismatch(f"{name}: the empty tree", new_root, EMPTY_ROOT)
        if old_size == new_size and old_root != new_root:
            raise RootMismatch(f"{name}: an unchanged tree", old_root, new_root)
        return
    # A power of two is a complete subtree: its root starts the path although the proof does not repeat it.
    path = list(proof) if old_size & (old_size - 1) else [old_root, *proof]
    if not path:
        raise _malformed(f"{name} is empty")
    node, last = old_size - 1, new_size - 1
    while node % 2 == 1:
        node, last = node // 2, last // 2
    old = new = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise _malformed(f"{name} has too many hashes ({len(proof)})")
        if node % 2 == 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while node % 2 == 0 and node != 0:
                node, last = node // 2, last // 2
        else:
            new = node_hash(new, sibling)
        node, last = node // 2, last // 2
    if last != 0:
        raise _malformed(f"{name} has too few hashes ({len(proof)})")
    if old != old_root:
        raise RootMismatch(f"{name}, for the old tree,", old_root, old)
    if new != new_root:
        raise RootMismatch(f"{name}, for the new tree,", new_root, new)


def _next_level(level: list[bytes]) -> list[bytes]:
    """Hash neighbours in pairs; an odd last node moves up as it is, which gives RFC 6962's left-complete
    shape.
    """
    paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return paired if len(level) % 2 == 0 else [*paired, level[-1]]


def _check_hashes(hashes: Sequence[bytes]) -> None:
    for value in hashes:
        if not isinstance(value, bytes) or len(value) != HASH_BYTES:
            raise _malformed(f"a hash of a Merkle proof is not {HASH_BYTES} bytes long")


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", why)
