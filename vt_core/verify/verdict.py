"""Verdicts: what an audit says, why, and where.

``verified``: every audited segment was replayed to the bit. ``rejected``: the evidence or the training is not what
was agreed. ``inconclusive``: this audit cannot tell. A bare bool is never returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import comb
from typing import Any

from vt_core.errors import MAX_MESSAGE

MAX_TENSORS = 1000  # named in a verdict; a forged leaf may name as many as it likes


class Result(StrEnum):
    """The three verdicts."""

    VERIFIED = "verified"
    REJECTED = "rejected"
    INCONCLUSIVE = "inconclusive"


class Reason(StrEnum):
    """Why a verdict is not ``verified``."""

    SIGNATURE_INVALID = "signature_invalid"
    CHAIN_BROKEN = "chain_broken"
    ARTIFACT_MISSING = "artifact_missing"
    ARTIFACT_CORRUPT = "artifact_corrupt"
    EVIDENCE_MALFORMED = "evidence_malformed"
    SPEC_MISMATCH = "spec_mismatch"
    CODE_MISMATCH = "code_mismatch"
    DATA_MISMATCH = "data_mismatch"
    POLICY_TOO_WIDE = "policy_too_wide"
    TRACE_MISMATCH = "trace_mismatch"
    LOG_IMPLAUSIBLE = "log_implausible"
    LOG_BIASED = "log_biased"
    STATE_MISMATCH = "state_mismatch"
    WORK_MISMATCH = "work_mismatch"
    PROOF_OF_REPLAY_MISSING = "proof_of_replay_missing"  # about an audit, never about a trainer
    TOLERANCE_EXCEEDED = "tolerance_exceeded"
    ENVIRONMENT_UNSUPPORTED = "environment_unsupported"
    NOT_SEALED = "not_sealed"


# Reasons that leave open whether the trainer cheated; every other reason rejects.
INCONCLUSIVE = frozenset(
    {
        Reason.TOLERANCE_EXCEEDED,
        Reason.ENVIRONMENT_UNSUPPORTED,
        Reason.NOT_SEALED,
        Reason.PROOF_OF_REPLAY_MISSING,
    }
)


def result_of(reason: Reason | None) -> Result:
    """Return the verdict that a reason (None: nothing found) leads to."""
    if reason is None:
        return Result.VERIFIED
    return Result.INCONCLUSIVE if reason in INCONCLUSIVE else Result.REJECTED


@dataclass(frozen=True)
class Divergence:
    """The first place where replay and evidence part. What is not known is None.

    ``op`` and ``module`` come from fingerprints, which locate and never decide; ``element`` (logical index),
    the two values and their distance in tolerances are known where the finding is a log entry.
    """

    segment: int
    step: int | None = None
    site: int | None = None
    op: str | None = None
    module: str | None = None
    element: int | None = None
    trainer_value: float | None = None
    auditor_value: float | None = None
    distance: float | None = None
    tensors: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the known fields; floats as hex strings, with a decimal form beside them for people."""
        plain: dict[str, Any] = {"segment": self.segment}
        for name in ("step", "site", "op", "module", "element"):
            value = getattr(self, name)
            if value is not None:
                plain[name] = value
        for name in ("trainer_value", "auditor_value", "distance"):
            value = getattr(self, name)
            if value is not None:
                plain[name] = float(value).hex()
                plain[f"{name}_text"] = f"{value:.9g}"
        if self.tensors:
            plain["tensors"] = [name[:500] for name in self.tensors[:MAX_TENSORS]]
        return plain


@dataclass(frozen=True)
class SegmentResult:
    """The outcome for one audited segment."""

    index: int
    first_step: int
    last_step: int
    reason: Reason | None = None
    message: str = "replayed bit for bit"
    divergence: Divergence | None = None
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    final_state: str | None = None  # state root (hex) that the last leaf commits to, if the evidence could be opened
    opening: dict[str, Any] | None = None  # the proof of replay (evidence/work.py), if the segment agreed

    @property
    def result(self) -> Result:
        """The verdict on this segment alone."""
        return result_of(self.reason)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "index": self.index,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "result": str(self.result),
            "reason": None if self.reason is None else str(self.reason),
            "message": self.message[:MAX_MESSAGE],
            "divergence": None if self.divergence is None else self.divergence.to_json(),
            "counts": self.counts,
            "seconds": f"{self.seconds:.3f}",
            "proof_of_replay": self.opening,
        }


def headroom(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each op class that rounded anything how far trainer and auditor differed, over the tolerance.

    ``largest`` is certain, and a lower bound: where a log entry names another value than the auditor's own rounding
    (``seen_at`` entries), the two values lay on both sides of a boundary, so they differ at least by the auditor's
    distance to it. Elsewhere nothing is seen. ``mean`` estimates the mean difference of an honest trainer, from how
    often that happens among the ``decisions`` (``bias.py``); None without decisions. Numbers are decimal text.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, n in counts.items():
        if n["elements"]:
            decisions, flipped = int(n.get("decisions", 0)), int(n.get("flipped", 0))
            found[name] = {
                "largest": n["max_distance"],
                "mean": f"{2.0 * flipped / decisions:.6f}" if decisions else None,
                "seen_at": n["disagreements"],
                "decisions": decisions,
            }
    return found


def detection_probability(total: int, sampled: int, bad: int = 1) -> float:
    """Return the chance that a sample of ``sampled`` of ``total`` segments holds one of ``bad`` bad ones."""
    if not 0 <= sampled <= total or not 0 <= bad <= total:
        raise ValueError("0 <= sampled, bad <= total is needed")
    return 1.0 - comb(total - bad, sampled) / comb(total, sampled)
