"""What was audited already: coverage of the runs in a store, from the verdicts beside them.

A verdict that says ``verified`` counts only with its proofs of replay (``vt_core/evidence/work.py``): anybody can write
that word, and only who has replayed a segment can open what its last leaf hides.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tasks.runs import RunStore, is_run_id, is_verdict_name
from tasks.store import Store
from vt_core.errors import EvidenceError, StoreError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.outline import SpecOutline, parse_outline
from vt_core.evidence.ranges import last_leaves
from vt_core.evidence.records import Seal, parse_seal
from vt_core.evidence.work import check_proof


@dataclass(frozen=True)
class Coverage:
    """The audit state of one run."""

    run_id: str
    job: str | None
    published: int
    sealed: bool
    segments: int | None  # of a sealed run
    audited: frozenset[int]
    verdict: str | None  # the worst so far that still stands
    reason: str | None
    unproven: int = 0  # verdicts without a valid proof of replay, which count as no audit
    tried: frozenset[int] = frozenset()  # segments that some audit could not tell about

    @property
    def share(self) -> float:
        """Share of the segments that some audit has settled: replayed to the bit, or found at fault."""
        return len(self.audited) / self.segments if self.segments else 0.0

    @property
    def missing(self) -> list[int]:
        """Segments that no audit has settled yet."""
        return [i for i in range(self.segments or 0) if i not in self.audited]


_WORSE = {"verified": 0, "inconclusive": 1, "rejected": 2}


def coverage(store: Store) -> list[Coverage]:
    """Return the audit state of every run in the store, sorted by name. Raises StoreError.

    One listing of commitments and one of verdicts; then the seal and the verdicts of each run are read.
    """
    names = store.commitments.list("runs/")
    by_run: dict[str, list[str]] = {}
    for name in names:
        if name.count("/") >= 2:
            by_run.setdefault(name.split("/")[1], []).append(name)
    verdicts: dict[str, list[str]] = {}
    for name in store.verdicts.list("runs/"):
        if name.count("/") >= 2 and is_verdict_name(name):
            verdicts.setdefault(name.split("/")[1], []).append(name)
    runs = sorted(filter(is_run_id, by_run))
    with ThreadPoolExecutor(max_workers=8) as pool:  # the time goes into waiting for the store
        return list(pool.map(lambda r: run_coverage(RunStore(store, r), by_run[r], verdicts.get(r, [])), runs))


def run_coverage(run: RunStore, names: list[str], verdict_names: list[str]) -> Coverage:
    """Return the audit state of one run from the names of its objects."""
    published = sum("/segments/" in name for name in names)
    sealed = any(name.endswith("/seal.json") for name in names)
    segments: int | None = None
    seal: Seal | None = None
    if sealed:
        try:
            seal = parse_seal(run.seal() or b"")
            segments = len(seal.segments)
        except EvidenceError:
            segments = published
    outline = _outline(run)
    unproven = 0
    audited: set[int] = set()
    tried: set[int] = set()
    worst: tuple[str, str | None] | None = None
    for name in sorted(verdict_names):
        plain = _read(run, name)
        if plain is None:
            continue
        rows = _rows(plain)
        if seal is not None and not _is_proven(plain, rows, outline, seal):
            unproven += 1
            continue
        # What an audit of the unsealed run could not tell is settled by a later one.
        if worst is None or worst[0] == "inconclusive" or _WORSE[plain["verdict"]] > _WORSE[worst[0]]:
            worst = (plain["verdict"], plain.get("reason"))
        for row in rows:  # "cannot tell" costs its author nothing, so it settles nothing
            (tried if row.get("result") == "inconclusive" else audited).add(row["index"])
    verdict, reason = worst or (None, None)
    job = outline.reference if outline is not None else None
    return Coverage(
        run.run_id, job, published, sealed, segments, frozenset(audited), verdict, reason, unproven,
        frozenset(tried - audited),
    )  # fmt: skip


def _rows(plain: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = plain.get("segments")
    rows = rows if isinstance(rows, list) else []
    return [row for row in rows if isinstance(row, dict) and type(row.get("index")) is int and row["index"] >= 0]


def _is_proven(
    plain: Mapping[str, Any], rows: list[Mapping[str, Any]], outline: SpecOutline | None, seal: Seal
) -> bool:  # fmt: skip
    """Whether each segment that the verdict calls replayed was: a finding against the trainer needs no such proof."""
    claimed = [row for row in rows if row.get("result") == "verified"]
    if not claimed:
        return plain["verdict"] != "verified"
    if outline is None:
        return False
    ends = last_leaves(outline.steps, outline.segment_steps, outline.commit_interval)
    try:
        for row in claimed:
            index, proof = row["index"], row.get("proof_of_replay")
            check_proof(proof, index, str(plain.get("nonce")), seal.root, ends[index], seal.leaf_count)
    except (EvidenceError, LookupError, TypeError, ArithmeticError):
        return False
    return True


def choose_unaudited(runs: list[Coverage], count: int) -> dict[str, list[int]]:
    """Choose ``count`` segments at random among all that belong to sealed runs and that no audit has settled.

    Those that no audit has tried come first: what stays inconclusive for a good reason must not keep the sampler from
    the others, and what a lazy auditor calls so is not spared for ever. A run that was rejected needs no further
    audit. The choice comes from the system's randomness, so nobody can know it in advance.
    """
    places = [(c, i) for c in runs if c.sealed and c.verdict != "rejected" for i in c.missing]
    secrets.SystemRandom().shuffle(places)
    places.sort(key=lambda place: place[1] in place[0].tried)  # stable: each of the two parts stays shuffled
    chosen: dict[str, list[int]] = {}
    for c, index in places[:count]:
        chosen.setdefault(c.run_id, []).append(index)
    return {run_id: sorted(indices) for run_id, indices in sorted(chosen.items())}


def _outline(run: RunStore) -> SpecOutline | None:
    """Return what the run spec says, read without the libraries that a replay needs; None if it is malformed."""
    try:
        return parse_outline(run.spec() or b"")
    except EvidenceError:
        return None


def _read(run: RunStore, name: str) -> Mapping[str, Any] | None:
    try:
        plain = loads_strict(run.verdict(name), name)
    except (EvidenceError, StoreError):  # one that cannot be read (a link, a pipe) must not hide all other runs
        return None
    return plain if isinstance(plain, dict) and plain.get("verdict") in tuple(_WORSE) else None
