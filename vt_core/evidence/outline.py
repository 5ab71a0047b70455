"""What a reader of evidence needs of a run spec, read without the libraries (and the seconds) of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.ranges import segment_count, segment_range

SPEC_FORMAT = "vt-run-spec/1"
MAX_SPEC_BYTES = 16 << 20
MAX_SEGMENTS = 1_000_000  # a reader makes lists of both: a spec must not be able to exhaust its memory
MAX_SEGMENT_STEPS = 1_000_000


@dataclass(frozen=True)
class SpecOutline:
    """Digest and step ranges of a run spec, and the fields that a person asks for."""

    digest: str
    reference: str
    steps: int
    segment_steps: int
    commit_interval: int
    plain: Mapping[str, Any]

    @property
    def segment_count(self) -> int:
        """Number of segments, the initialisation (segment 0) included."""
        return segment_count(self.steps, self.segment_steps)

    def ranges(self) -> list[tuple[int, int]]:
        """Return (first step, last step) of every segment."""
        return [segment_range(self.steps, self.segment_steps, i) for i in range(self.segment_count)]

    def segment_of(self, step: int) -> int:
        """Return the segment that ``step`` (0 to ``steps``) lies in."""
        return 0 if step == 0 else 1 + (step - 1) // self.segment_steps


def parse_outline(data: bytes) -> SpecOutline:
    """Read a spec from its canonical bytes. Raises EvidenceError("evidence_malformed").

    Only what the chain of segments depends on is checked; an audit checks the rest
    (:func:`vt_core.training.spec.parse_spec`).
    """
    plain = loads_strict(data, "spec.json", MAX_SPEC_BYTES)
    if not isinstance(plain, dict) or plain.get("format") != SPEC_FORMAT:
        raise _malformed(f"not a {SPEC_FORMAT} object")
    if not isinstance(plain.get("reference"), str):
        raise _malformed("reference must be a string")
    for name in ("steps", "segment_steps", "commit_interval"):
        if type(plain.get(name)) is not int or plain[name] < 1:
            raise _malformed(f"{name} must be a count of at least 1")
    if plain["segment_steps"] > MAX_SEGMENT_STEPS:
        raise _malformed(f"segment_steps must be at most {MAX_SEGMENT_STEPS}")
    if segment_count(plain["steps"], plain["segment_steps"]) > MAX_SEGMENTS:
        raise _malformed(f"at most {MAX_SEGMENTS} segments are allowed")
    return SpecOutline(
        sha256_bytes(data), plain["reference"], plain["steps"], plain["segment_steps"], plain["commit_interval"], plain
    )


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"spec.json: {why}", file="spec.json")
