"""Proof of replay: what only somebody who has run the steps can know, committed to and not published.

Every rounding site has a 64-bit fingerprint of its values. The low half may be in the log; the high half is in no
file. The fingerprints of all sites since the last leaf (the *words*) form an RFC 6962 tree, and the leaf holds
``SHA-256("vt-work/1" || count || root)``: a commitment that hides the root, for the words cannot be guessed. An audit's
verdict opens it: count and root, and some words with their paths, at places drawn from the audit's nonce. Whoever has
only read the store cannot do that, and everybody can check it against the sealed root.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.digests import is_sha256
from vt_core.evidence.merkle import Tree, leaf_hash, verify_inclusion

WORD_BYTES = 8
OPENED_SITES = 2
_TAG = b"vt-work/1\x00"
_OPENING = {"step", "state", "log", "trace", "count", "root", "sites"}
_SITE = {"site", "word", "path"}


@dataclass(frozen=True)
class Challenge:
    """What draws the places to open: the root that the run is sealed under (hex) and the audit's nonce."""

    anchor: str
    nonce: str


@dataclass(frozen=True)
class Work:
    """The words (8 little-endian bytes each) of the sites that one leaf covers."""

    words: bytes

    @property
    def count(self) -> int:
        """Number of sites."""
        return len(self.words) // WORD_BYTES

    @cached_property
    def tree(self) -> Tree:
        """Return the RFC 6962 tree over the words."""
        pieces = range(0, len(self.words), WORD_BYTES)
        return Tree([leaf_hash(self.words[i : i + WORD_BYTES]) for i in pieces])

    def commitment(self) -> bytes:
        """Return the hiding commitment (32 bytes) that goes into the leaf."""
        return commitment(self.count, self.tree.root)

    def open(self, anchor: str, nonce: str, segment: int) -> dict[str, Any]:
        """Return count, root and the words at the places that ``anchor`` and ``nonce`` draw, as plain JSON."""
        tree = self.tree
        sites = []
        for site in places(anchor, nonce, segment, self.count):
            word = self.words[site * WORD_BYTES : (site + 1) * WORD_BYTES]
            sites.append({"site": site, "word": word.hex(), "path": [h.hex() for h in tree.path(site)]})
        return {"count": self.count, "root": tree.root.hex(), "sites": sites}


def commitment(count: int, root: bytes) -> bytes:
    """Return the commitment to ``count`` words with the RFC 6962 root ``root``."""
    return hashlib.sha256(_TAG + count.to_bytes(8, "big") + root).digest()


def places(anchor: str, nonce: str, segment: int, count: int) -> list[int]:
    """Return the sites to open: drawn from the sealed root (hex), the audit's nonce and the segment."""
    drawn = []
    for i in range(min(OPENED_SITES, count)):
        seed = hashlib.sha256(f"vt-work/1|{anchor}|{nonce}|{segment}|{i}".encode()).digest()
        drawn.append(int.from_bytes(seed, "big") % count)
    return drawn


def check_opening(plain: Any, anchor: str, nonce: str, segment: int) -> bytes:
    """Check an opening of a segment's last leaf and return the leaf's data (see ``training/leaves.py``).

    The caller checks that this leaf is the right one of the sealed tree. Raises EvidenceError
    ``proof_of_replay_missing`` for anything but a complete opening at the drawn places.
    """
    if not isinstance(plain, Mapping) or not set(plain) >= _OPENING:
        raise _bad(segment, "there is none")
    count, step, root = plain["count"], plain["step"], plain["root"]
    digests = [plain[key] for key in ("state", "log", "trace")]
    if type(count) is not int or type(step) is not int or not 0 < count < 1 << 48 or not 0 <= step < 1 << 63:
        raise _bad(segment, "count or step is no count")
    if not is_sha256(root) or not all(is_sha256(d) for d in digests):
        raise _bad(segment, "a digest is malformed")
    wanted = places(anchor, nonce, segment, count)
    sites = plain["sites"]
    if not isinstance(sites, Sequence) or [s.get("site") if isinstance(s, Mapping) else None for s in sites] != wanted:
        raise _bad(segment, "it does not open the places that the nonce draws")
    for site in sites:
        path = site.get("path")
        if set(site) != _SITE or not isinstance(path, Sequence) or not all(is_sha256(h) for h in path):
            raise _bad(segment, "a path is malformed")
        if not isinstance(site["word"], str) or len(site["word"]) != 2 * WORD_BYTES:
            raise _bad(segment, "a word is malformed")
        try:
            leaf = leaf_hash(bytes.fromhex(site["word"]))
            verify_inclusion(leaf, site["site"], count, [bytes.fromhex(h) for h in path], bytes.fromhex(root))
        except (ValueError, EvidenceError) as error:
            raise _bad(segment, f"a word is not the committed one ({error})") from error
    state, log, trace = (bytes.fromhex(d) for d in digests)
    return leaf_data(step, state, log, trace, commitment(count, bytes.fromhex(root)))


def check_proof(plain: Any, segment: int, nonce: str, root: str, leaf: int, leaves: int) -> str:
    """Check a verdict's proof that ``segment`` was replayed against the sealed root (hex) over ``leaves`` leaves.

    ``leaf`` is the number of the segment's last leaf. Returns the state root (hex) that the leaf commits to. Raises
    EvidenceError ``proof_of_replay_missing``.
    """
    data = check_opening(plain, root, nonce, segment)
    path = plain.get("path")
    if plain.get("leaf") != leaf or not isinstance(path, Sequence) or not all(is_sha256(h) for h in path):
        raise _bad(segment, f"it is not about leaf {leaf}, the segment's last")
    try:
        verify_inclusion(leaf_hash(data), leaf, leaves, [bytes.fromhex(h) for h in path], bytes.fromhex(root))
    except EvidenceError as error:
        raise _bad(segment, f"its leaf is not the sealed one ({error})") from error
    return str(plain["state"])


def leaf_data(step: int, state: bytes, log: bytes, trace: bytes, work: bytes) -> bytes:
    """Return the bytes of a leaf of the run's tree: step, state root, digests of log and trace, work commitment."""
    return b"vt-leaf/1\x00" + step.to_bytes(8, "big") + state + log + trace + work


def _bad(segment: int, why: str) -> EvidenceError:
    return EvidenceError("proof_of_replay_missing", f"no proof that segment {segment} was replayed: {why}")
