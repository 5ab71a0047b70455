"""What was audited already: coverage of the runs in a store, from the verdicts beside them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tasks.runs import RunStore
from tasks.store import Store
from vt_core.errors import EvidenceError, NotFound
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.records import parse_seal


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

    @property
    def share(self) -> float:
        """Share of the segments that some audit has replayed."""
        return len(self.audited) / self.segments if self.segments else 0.0

    @property
    def missing(self) -> list[int]:
        """Segments that no audit has replayed yet."""
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
        if name.count("/") >= 2:
            verdicts.setdefault(name.split("/")[1], []).append(name)
    runs = sorted(by_run)
    with ThreadPoolExecutor(max_workers=8) as pool:  # the time goes into waiting for the store
        return list(pool.map(lambda r: run_coverage(RunStore(store, r), by_run[r], verdicts.get(r, [])), runs))


def run_coverage(run: RunStore, names: list[str], verdict_names: list[str]) -> Coverage:
    """Return the audit state of one run from the names of its objects."""
    published = sum("/segments/" in name for name in names)
    sealed = any(name.endswith("/seal.json") for name in names)
    segments: int | None = None
    if sealed:
        try:
            segments = len(parse_seal(run.seal() or b"").segments)
        except EvidenceError:
            segments = published
    audited: set[int] = set()
    worst: tuple[str, str | None] | None = None
    for name in sorted(verdict_names):
        plain = _read(run, name)
        if plain is None:
            continue
        # What an audit of the unsealed run could not tell is settled by a later one.
        if worst is None or worst[0] == "inconclusive" or _WORSE[plain["verdict"]] > _WORSE[worst[0]]:
            worst = (plain["verdict"], plain.get("reason"))
        rows = plain.get("segments")
        for row in rows if isinstance(rows, list) else []:
            if isinstance(row, dict) and isinstance(row.get("index"), int):
                audited.add(row["index"])
    verdict, reason = worst or (None, None)
    return Coverage(run.run_id, _job(run), published, sealed, segments, frozenset(audited), verdict, reason)


def choose_unaudited(runs: list[Coverage], count: int) -> dict[str, list[int]]:
    """Choose ``count`` segments at random among all that belong to sealed runs and were never replayed.

    A run that was rejected needs no further audit. The choice comes from the system's randomness, so nobody can
    know it in advance.
    """
    open_places = [(c.run_id, i) for c in runs if c.sealed and c.verdict != "rejected" for i in c.missing]
    chosen: dict[str, list[int]] = {}
    for run_id, index in secrets.SystemRandom().sample(open_places, min(count, len(open_places))):
        chosen.setdefault(run_id, []).append(index)
    return {run_id: sorted(indices) for run_id, indices in sorted(chosen.items())}


def _job(run: RunStore) -> str | None:
    """Return the job's reference, read without the checks (and the libraries) that a replay needs."""
    try:
        plain = loads_strict(run.spec() or b"", "spec.json")
        return str(plain["reference"])
    except (EvidenceError, KeyError, TypeError):
        return None


def _read(run: RunStore, name: str) -> Mapping[str, Any] | None:
    try:
        plain = loads_strict(run.verdict(name), name)
    except (EvidenceError, NotFound):
        return None
    return plain if isinstance(plain, dict) and plain.get("verdict") in _WORSE else None
