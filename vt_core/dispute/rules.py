"""What the game needs to know about op records and their judge, and the rulings and faults it can end in.

The game itself handles records as opaque bytes; :class:`Rules` is the door to what they mean. The real rules are in
:mod:`vt_core.dispute.op_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Protocol

from vt_core.dispute.messages import Role


class Fault(StrEnum):
    """Why a party loses without its operation being recomputed, or why the game ends without a winner."""

    SILENT = "silent"
    SIGNATURE_INVALID = "signature_invalid"
    MALFORMED_MESSAGE = "malformed_message"
    CONTRADICTION = "contradiction"
    SEAL_DISOWNED = "seal_disowned"
    LOG_MISMATCH = "log_mismatch"
    MALFORMED_RECORD = "malformed_record"
    WITNESS_MISSING = "witness_missing"
    WITNESS_MISMATCH = "witness_mismatch"
    CONCEDED = "conceded"
    NO_DIFFERENCE = "no_difference"
    BOTH_FAILED = "both_failed"
    WORK_DISPUTED = "work_disputed"
    JUDGE_FAILED = "judge_failed"


@dataclass(frozen=True)
class Ruling:
    """How a dispute ends: ``winner`` None is inconclusive; ``place`` names leaf, segment, step and record if known."""

    winner: Role | None
    reason: str
    detail: str
    place: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "winner": None if self.winner is None else str(self.winner),
            "reason": str(self.reason),
            "detail": self.detail,
            "place": dict(self.place),
        }


@dataclass(frozen=True)
class StepEnd:
    """What the last record of a step says: the step, the state root after it, and the digest of its trace."""

    step: int
    state: bytes
    trace: bytes


class Need(Enum):
    """What a judge needs before it can rule."""

    WITNESS = "witness"
    EXHIBIT = "exhibit"


@dataclass(frozen=True)
class Question:
    """The first record in which the parties differ, with what they agree on.

    ``agreed`` holds the earlier records that either record uses, by index; ``before`` is the agreed state root at the
    step's start (None for step 0); ``log`` the digest (32 bytes) of the trainer's log of this step; ``witness`` what
    the trainer handed over, None if it was not asked yet; ``exhibits`` what the parties showed of the facts agreed on
    before training, None if they were not asked yet.
    """

    step: int
    index: int
    trainer: bytes
    auditor: bytes
    agreed: Mapping[int, bytes]
    before: bytes | None
    log: bytes
    witness: bytes | None = None
    exhibits: Mapping[Role, bytes] | None = None


class Rules(Protocol):
    """What records mean. Methods raise EvidenceError or ValueError for a record that is malformed."""

    def end(self, record: bytes) -> StepEnd:
        """Read the last record of a step."""

    def uses(self, record: bytes, index: int) -> Sequence[int]:
        """Return the indexes (below ``index``) of the records that this record's inputs come from."""

    def judge(self, question: Question) -> Ruling | Need:
        """Rule on one record, or say what is needed first."""
