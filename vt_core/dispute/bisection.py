"""Bisection of a Merkle tree by revealing a node's descendants some levels down, and the place of a leaf in a run.

Trees are those of RFC 6962 (left-complete: n leaves split at the largest power of two below n). A node is the range
``(begin, end)`` of the leaves below it. Revealing 4 levels shows at most 16 descendants, so a tree of 10,000 leaves
takes 4 rounds. All functions are pure; hashes are 32 raw bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from vt_core.evidence.merkle import leaf_hash, node_hash, root
from vt_core.evidence.ranges import last_leaves, leaves_in
from vt_core.training.spec import RunSpec

LEVELS = 4

NO_RECORD = leaf_hash(b"")
"""Fills a list of records up to a power of two. No record is empty, so nothing else has this hash."""

Node = tuple[int, int]


def split(node: Node) -> tuple[Node, Node]:
    """Return the two children of an inner node (of more than one leaf)."""
    begin, end = node
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    return (begin, middle), (middle, end)


def descendants(node: Node, levels: int = LEVELS) -> list[Node]:
    """Return the nodes ``levels`` below ``node``, left to right; leaves that lie higher stand for themselves."""
    level = [node]
    for _ in range(levels):
        level = [child for n in level for child in (split(n) if n[1] - n[0] > 1 else (n,))]
    return level


def subtree_hashes(leaf_hashes: Sequence[bytes], node: Node, levels: int = LEVELS) -> list[bytes]:
    """Return the hashes of :func:`descendants`, from the whole list of leaf hashes."""
    return [root(leaf_hashes[begin:end]) for begin, end in descendants(node, levels)]


def combine(node: Node, hashes: Sequence[bytes], levels: int = LEVELS) -> bytes:
    """Return the hash of ``node`` that follows from its descendants' hashes.

    Raises ValueError unless there is exactly one for each descendant.
    """
    if len(hashes) != len(descendants(node, levels)):
        raise ValueError(f"{len(descendants(node, levels))} hashes are needed, not {len(hashes)}")
    remaining = iter(hashes)

    def hash_of(at: Node, depth: int) -> bytes:
        if depth == 0 or at[1] - at[0] == 1:
            return next(remaining)
        left, right = split(at)
        return node_hash(hash_of(left, depth - 1), hash_of(right, depth - 1))

    return hash_of(node, levels)


def padded_size(count: int) -> int:
    """Return the smallest power of two that is at least ``count`` (at least 1)."""
    return 1 << max(0, count - 1).bit_length()


def padded_root(hashes: Sequence[bytes], node: Node) -> bytes:
    """Return the hash of a node of the tree over ``hashes``, filled up with :data:`NO_RECORD` without end.

    The node covers a power of two of leaves. Takes time for the real ones only, however wide the tree is.
    """
    begin, end = node
    level, filler, size = list(hashes[begin:end]) or [NO_RECORD], NO_RECORD, end - begin
    while size > 1:
        level += [filler] * (len(level) % 2)
        level = [node_hash(level[i], level[i + 1]) for i in range(0, len(level), 2)]
        filler, size = node_hash(filler, filler), size // 2
    return level[0]


def padded_proof(hashes: Sequence[bytes], index: int, size: int) -> list[bytes]:
    """Return the audit path of leaf ``index`` in the tree over ``hashes`` filled up to ``size``, a power of two."""
    proof, width = [], 1
    while width < size:
        sibling = (index // width ^ 1) * width
        proof.append(padded_root(hashes, (sibling, sibling + width)))
        width *= 2
    return proof


def widen(tree_root: bytes, size: int, wider: int) -> bytes:
    """Return the root of a padded tree of ``size`` leaves after padding it on to ``wider`` (both powers of two)."""
    filler = NO_RECORD
    for _ in range(size.bit_length() - 1):
        filler = node_hash(filler, filler)
    while size < wider:
        tree_root, filler, size = node_hash(tree_root, filler), node_hash(filler, filler), 2 * size
    return tree_root


def leaf_count(spec: RunSpec) -> int:
    """Return how many leaves a run of this spec has."""
    return last_leaves(spec.steps, spec.segment_steps, spec.commit_interval)[-1] + 1


def leaf_steps(spec: RunSpec, index: int) -> tuple[int, int, int]:
    """Return (segment, first step, last step) of leaf ``index``: the steps that this leaf covers.

    Raises IndexError beyond the run's leaves.
    """
    before = 0
    for segment in range(spec.segment_count):
        first, last = spec.segment_range(segment)
        here = leaves_in(first, last, spec.commit_interval)
        if index < before + here:
            interval = spec.commit_interval
            multiple = (first + interval - 1) // interval + (index - before)  # the leaf's number among the multiples
            begin = first if index == before else (multiple - 1) * interval + 1
            return segment, begin, min(multiple * interval, last)
        before += here
    raise IndexError(f"the run has {before} leaves, there is no leaf {index}")
