"""Messages of a dispute: canonical JSON in DSSE envelopes, chained by digest.

The referee's messages form a chain: each names the digest of the one before and the digests of the answers that it
received. A party's answer names the digest of the request that it answers. So the referee's last message fixes the
whole transcript, and nobody can drop, swap or change a message afterwards. Envelopes follow DSSE
(https://github.com/secure-systems-lab/dsse) with Ed25519 keys; only the canonical byte string of an envelope is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.attest import parse_envelope, seal_payload
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.digests import is_sha256, sha256_bytes
from vt_core.evidence.keys import SignerKey, VerifierKey

FORMAT = "vt-dispute-message/1"
PAYLOAD_TYPE = "application/vnd.verifiable-training.dispute+json"
MAX_MESSAGE_BYTES = 16 << 20
MAX_ROUNDS = 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FIELDS = {"format", "run", "seal", "dispute", "round", "sender", "previous", "kind", "body"}


class Role(StrEnum):
    """Who takes part."""

    TRAINER = "trainer"
    AUDITOR = "auditor"
    REFEREE = "referee"


PARTIES = (Role.TRAINER, Role.AUDITOR)
OTHER = {Role.TRAINER: Role.AUDITOR, Role.AUDITOR: Role.TRAINER}


@dataclass(frozen=True)
class Subject:
    """What a dispute is about: the run, SHA-256 (hex) of its seal's bytes, and the dispute's own id."""

    run: str
    seal: str
    dispute: str


@dataclass(frozen=True)
class Message:
    """One message. ``previous`` is the digest of the referee's message before it, None in the first one."""

    subject: Subject
    round: int
    sender: Role
    previous: str | None
    kind: str
    body: Mapping[str, Any]

    def payload(self) -> bytes:
        """Return the canonical bytes that are signed."""
        return dumps(
            {
                "format": FORMAT,
                "run": self.subject.run,
                "seal": self.subject.seal,
                "dispute": self.subject.dispute,
                "round": self.round,
                "sender": str(self.sender),
                "previous": self.previous,
                "kind": self.kind,
                "body": dict(self.body),
            }
        )


def check_dispute_id(text: str) -> str:
    """Return ``text`` if it may name a dispute. Raises ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"dispute id {text!r}: use letters, digits, '.', '_' and '-'")
    return text


def file_name(number: int, sender: Role) -> str:
    """Return the name of a message's file."""
    return f"{number:04d}-{sender}.json"


def sign(message: Message, key: SignerKey) -> bytes:
    """Return the canonical bytes of the envelope that holds ``message``, signed by ``key`` (Ed25519)."""
    return seal_payload(message.payload(), PAYLOAD_TYPE, [key])


def digest(data: bytes) -> str:
    """Return the digest (hex) by which other messages name this envelope."""
    return sha256_bytes(data)


def open_message(data: bytes, keys: Mapping[Role, VerifierKey], sender: Role) -> Message:
    """Check the envelope, ``sender``'s signature on it, and the message's form, in this order; return the message.

    Raises EvidenceError: ``evidence_malformed``, or ``signature_invalid`` if the signature is not ``sender``'s.
    """
    what = f"the {sender}'s message"
    payload = _payload(data, keys[sender], what)
    plain = loads_strict(payload, what, MAX_MESSAGE_BYTES)
    if not isinstance(plain, dict) or set(plain) != _FIELDS or plain["format"] != FORMAT:
        raise _malformed(what, f"not a {FORMAT} object")
    texts = (plain["run"], plain["dispute"], plain["kind"])
    if not all(isinstance(t, str) and _NAME.fullmatch(t) for t in texts) or not is_sha256(plain["seal"]):
        raise _malformed(what, "run, dispute, seal or kind has another form")
    if type(plain["round"]) is not int or not 0 <= plain["round"] < MAX_ROUNDS:
        raise _malformed(what, "round must be a small count")
    if plain["sender"] != sender or not isinstance(plain["body"], dict):
        raise _malformed(what, f"sender must be {sender}, and body an object")
    if plain["previous"] is not None and not is_sha256(plain["previous"]):
        raise _malformed(what, "previous must be a digest")
    subject = Subject(plain["run"], plain["seal"], plain["dispute"])
    return Message(subject, plain["round"], sender, plain["previous"], plain["kind"], plain["body"])


def _payload(data: bytes, key: VerifierKey, what: str) -> bytes:
    if len(data) > 2 * MAX_MESSAGE_BYTES:  # base64 takes a third more
        raise _malformed(what, f"it has {len(data)} bytes, the limit is {2 * MAX_MESSAGE_BYTES}")
    signed = parse_envelope(data, PAYLOAD_TYPE, what)
    if list(signed.signers) != [key.keyid]:
        raise EvidenceError("signature_invalid", f"{what} is signed by {', '.join(signed.signers)}, not by {key.keyid}")
    signed.verify(key, what)
    return signed.payload


def _malformed(what: str, why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what} is malformed: {why}")
