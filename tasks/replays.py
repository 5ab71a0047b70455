"""Results of single replays in the store: how the workers of an audit hand over what they found.

They lie among the verdicts, where an auditor may write and a trainer may not, under the audit's own name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.runs import RunStore
from vt_core.errors import AlreadyExists, EvidenceError, NotFound
from vt_core.evidence.canonical import dumps, float_from_hex, loads_strict
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

_COUNTS = ("elements", "entries", "disagreements")


class ReplayBoard:
    """The results of one audit, by segment."""

    def __init__(self, run: RunStore, audit: str) -> None:
        """Name an audit; its results lie under ``replays/RUN/AUDIT/``."""
        self._store, self._base = run.store.verdicts, f"replays/{run.run_id}/{audit}"

    def put(self, result: SegmentResult) -> None:
        """Hand over a result; the first one for a segment counts."""
        try:
            self._store.create(self._name(result.index), dumps(result.to_json()))
        except AlreadyExists:
            return  # a retried worker: the earlier result is as good

    def get(self, indices: Iterable[int]) -> dict[int, SegmentResult]:
        """Return the results that are there."""
        found: dict[int, SegmentResult] = {}
        for index in indices:
            try:
                found[index] = parse_result(self._store.read(self._name(index)))
            except NotFound:
                continue
        return found

    def _name(self, index: int) -> str:
        return f"{self._base}/{index:05d}.json"


def parse_result(data: bytes) -> SegmentResult:
    """Read the result of a replay from its canonical bytes. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "replay result")
    try:
        return SegmentResult(
            index=int(plain["index"]),
            first_step=int(plain["first_step"]),
            last_step=int(plain["last_step"]),
            reason=None if plain["reason"] is None else Reason(plain["reason"]),
            message=str(plain["message"]),
            divergence=None if plain["divergence"] is None else _divergence(plain["divergence"]),
            counts={str(c): _counts(n) for c, n in plain["counts"].items()},
            seconds=float(plain["seconds"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError("evidence_malformed", f"a replay result is malformed: {error!r}") from error


def _divergence(plain: dict[str, Any]) -> Divergence:
    def number(name: str) -> float | None:
        return float_from_hex(plain[name], name, finite=False) if name in plain else None

    return Divergence(
        segment=int(plain["segment"]),
        step=plain.get("step"),
        site=plain.get("site"),
        op=plain.get("op"),
        module=plain.get("module"),
        element=plain.get("element"),
        trainer_value=number("trainer_value"),
        auditor_value=number("auditor_value"),
        distance=number("distance"),
        tensors=tuple(plain.get("tensors", ())),
    )


def _counts(plain: dict[str, Any]) -> dict[str, Any]:
    return {**{key: int(plain[key]) for key in _COUNTS}, "max_distance": f"{float(plain['max_distance']):.6f}"}
