"""Reading a party's answer: the same for the referee that receives it and for whoever checks the transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.dispute.claims import WitnessClaim
from vt_core.dispute.messages import Message, Role, open_message
from vt_core.dispute.moves import Answer, Failure, Request
from vt_core.dispute.party import MAX_PARTS, PART_BYTES
from vt_core.dispute.rules import Fault
from vt_core.errors import EvidenceError
from vt_core.evidence.keys import VerifierKey

Keys = Mapping[Role, VerifierKey]


@dataclass(frozen=True)
class Received:
    """What came from a party in one round: the envelope as it is, and the parts of a witness that arrived."""

    data: bytes
    parts: Sequence[bytes] = ()


def terms_of(request: Request, answer_by: int) -> dict[str, Any]:
    """Return what a request says in its body: what is asked, of whom, and until when."""
    return {"ask": dict(request.ask), "of": [str(role) for role in request.of], "answer_by": answer_by}


def announced(request: Message, request_digest: str, keys: Keys, role: Role, data: bytes) -> WitnessClaim | None:
    """Return what a valid answer to a request for a witness announces, None for every other message."""
    if request.kind != "witness":
        return None
    answer = read_answer(request, request_digest, keys, role, data, None)
    if isinstance(answer, Failure) or _concedes(answer.body):
        return None
    return WitnessClaim.parse(answer.body, MAX_PARTS, PART_BYTES)


def read_answer(
    request: Message, request_digest: str, keys: Keys, role: Role, data: bytes | None, witness: bytes | None
) -> Answer | Failure:
    """Read a party's envelope as an answer to ``request``; None is silence."""
    if data is None:
        return Failure(Fault.SILENT, f"no answer in the round {request.kind!r} by the deadline")
    try:
        message = open_message(data, keys, role)
    except EvidenceError as error:
        invalid = error.reason == "signature_invalid"
        return Failure(Fault.SIGNATURE_INVALID if invalid else Fault.MALFORMED_MESSAGE, str(error))
    if (message.subject, message.round, message.previous, message.kind) != (
        request.subject, request.round, request_digest, request.kind,
    ):  # fmt: skip
        return Failure(Fault.MALFORMED_MESSAGE, f"the message does not answer the round {request.kind!r}")
    if request.kind == "witness" and not _concedes(message.body):
        try:
            WitnessClaim.parse(message.body, MAX_PARTS, PART_BYTES)
        except (ValueError, TypeError, KeyError) as error:
            return Failure(Fault.MALFORMED_MESSAGE, f"in the round 'witness': {error}")
    return Answer(message.body, witness)


def _concedes(body: Mapping[str, Any]) -> bool:
    return set(body) == {"concede"}
