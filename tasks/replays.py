"""Results of single replays in the store: how the workers of an audit hand over what they found.

They lie among the verdicts, where an auditor may write and a trainer may not, under the audit's own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasks.runs import RunStore
from vt_core.errors import AlreadyExists, EvidenceError, NotFound
from vt_core.evidence.canonical import dumps, float_from_hex, loads_strict
from vt_core.evidence.digests import is_sha256
from vt_core.verify.bias import USES
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

_COUNTS = ("elements", "entries", "disagreements")


@dataclass(frozen=True)
class Replayed:
    """What a worker hands over: the result, and the segment's environment record (None if it could not be read)."""

    result: SegmentResult
    trainer_environment: Mapping[str, Any] | None


class ReplayBoard:
    """The results of one audit, by segment."""

    def __init__(self, run: RunStore, audit: str) -> None:
        """Name an audit; its results lie under ``replays/RUN/AUDIT/``."""
        self._store, self._base = run.store.verdicts, f"replays/{run.run_id}/{audit}"

    def put(self, result: SegmentResult, trainer_environment: Mapping[str, Any] | None = None) -> None:
        """Hand over a result, and what the trainer says it ran on; the first one for a segment counts."""
        more = {"final_state": result.final_state, "trainer_environment": trainer_environment}
        try:
            self._store.create(self._name(result.index), dumps({**result.to_json(), **more}))
        except AlreadyExists:
            return  # a retried worker: the earlier result is as good

    def get(self, indices: Iterable[int]) -> dict[int, Replayed]:
        """Return the results that are there."""
        found: dict[int, Replayed] = {}
        for index in indices:
            try:
                found[index] = parse_result(self._store.read(self._name(index)))
            except NotFound:
                continue
            if found[index].result.index != index:
                raise EvidenceError("evidence_malformed", f"the replay result of segment {index} is about another one")
        return found

    def _name(self, index: int) -> str:
        return f"{self._base}/{index:05d}.json"


def parse_result(data: bytes) -> Replayed:
    """Read the result of a replay from its canonical bytes. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "replay result")
    try:
        environment, state, opening = (plain[k] for k in ("trainer_environment", "final_state", "proof_of_replay"))
        if not isinstance(environment, dict | None) or not isinstance(opening, dict | None):
            raise ValueError("trainer_environment and proof_of_replay must be objects")
        if state is not None and not is_sha256(state):
            raise ValueError("final_state must be a SHA-256 digest")
        result = SegmentResult(
            index=_count(plain["index"]),
            first_step=_count(plain["first_step"]),
            last_step=_count(plain["last_step"]),
            reason=None if plain["reason"] is None else Reason(plain["reason"]),
            message=str(plain["message"]),
            divergence=None if plain["divergence"] is None else _divergence(plain["divergence"]),
            counts={str(c): _counts(n) for c, n in plain["counts"].items()},
            seconds=float(plain["seconds"]),
            final_state=state,
            opening=opening,
        )
        return Replayed(result, environment)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EvidenceError("evidence_malformed", f"a replay result is malformed: {error!r}") from error


def _divergence(plain: dict[str, Any]) -> Divergence:
    def number(name: str) -> float | None:
        return float_from_hex(plain[name], name, finite=False) if name in plain else None

    def given(name: str, kind: type) -> Any:
        value = plain.get(name)
        if value is not None and type(value) is not kind:
            raise ValueError(f"{name} must be of type {kind.__name__}")
        return value

    tensors = plain.get("tensors", [])
    if not isinstance(tensors, list) or not all(isinstance(name, str) for name in tensors):
        raise ValueError("tensors must be a list of names")
    return Divergence(
        segment=_count(plain["segment"]),
        step=given("step", int),
        site=given("site", int),
        op=given("op", str),
        module=given("module", str),
        element=given("element", int),
        trainer_value=number("trainer_value"),
        auditor_value=number("auditor_value"),
        distance=number("distance"),
        tensors=tuple(tensors),
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value


def _counts(plain: dict[str, Any]) -> dict[str, Any]:
    counts: dict[str, Any] = {key: _count(plain[key]) for key in _COUNTS}
    counts |= {key: _count(plain[key]) for key in USES if key in plain}
    if "pushed" in plain:
        counts["pushed"] = f"{float(plain['pushed']):.6f}"
    return counts | {"max_distance": f"{float(plain['max_distance']):.6f}"}
