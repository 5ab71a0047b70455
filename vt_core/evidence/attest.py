"""Attestations: DSSE envelopes (https://github.com/secure-systems-lab/dsse) and in-toto Statements, version 1.

The envelope's signature covers the payload's type and bytes (DSSE's PAE), so a signature made for one purpose never
passes for another. An envelope is stored in canonical JSON and read only in exactly that form, with no fields but
DSSE's. Signatures are made and checked by securesystemslib.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.keys import SignerKey, VerifierKey

if TYPE_CHECKING:  # loaded where it is used, see keys.py
    from securesystemslib.dsse import Envelope

IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
MAX_ENVELOPE_BYTES = 64 << 20
MAX_SIGNATURES = 64


@dataclass(frozen=True)
class Signed:
    """A parsed envelope. ``signers`` are the key ids it names; nothing may be believed before :meth:`verify`."""

    payload: bytes
    payload_type: str
    signers: Sequence[str]
    _envelope: Envelope

    def verify(self, key: VerifierKey, what: str) -> None:
        """Check that ``key`` signed the payload under its type. Raises EvidenceError("signature_invalid")."""
        if key.keyid not in self.signers:
            raise EvidenceError(
                "signature_invalid", f"{what} is not signed by {key.keyid}, only by {', '.join(self.signers)}"
            )
        from securesystemslib.exceptions import VerificationError

        try:
            self._envelope.verify([key.dsse_key()], threshold=1)
        except (VerificationError, ValueError) as error:
            raise EvidenceError("signature_invalid", f"{what}: the signature by {key.keyid} is not valid") from error


@dataclass(frozen=True)
class Statement:
    """An in-toto Statement: digests of each subject by name and algorithm, and the predicate."""

    subject: Mapping[str, Mapping[str, str]]
    predicate: Mapping[str, Any]


def seal_payload(payload: bytes, payload_type: str, keys: Sequence[SignerKey]) -> bytes:
    """Return the envelope (canonical JSON) over ``payload``, signed by each of ``keys`` once. Raises SpecError."""
    from securesystemslib.dsse import Envelope

    if not keys:
        raise SpecError("no key to sign with")
    envelope = Envelope(payload, payload_type, {})
    for key in keys:
        _add(envelope, key)
    return _to_bytes(envelope)


def add_signature(signed: Signed, key: SignerKey) -> bytes:
    """Return the envelope with one more signature. Raises SpecError if this key has signed it already."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(signed.payload, signed.payload_type, dict(signed._envelope.signatures))
    _add(envelope, key)
    return _to_bytes(envelope)


def parse_envelope(data: bytes, payload_type: str, what: str) -> Signed:
    """Read an envelope whose payload is of ``payload_type``. Raises EvidenceError("evidence_malformed")."""
    from securesystemslib.dsse import Envelope

    plain = loads_strict(data, what, MAX_ENVELOPE_BYTES)
    if not isinstance(plain, dict) or set(plain) != {"payload", "payloadType", "signatures"}:
        raise _malformed(what, "it is no DSSE envelope")
    if plain["payloadType"] != payload_type:
        raise _malformed(what, f"its payload is of type {plain['payloadType']!r}, not {payload_type!r}")
    rows = plain["signatures"]
    if not isinstance(plain["payload"], str) or not isinstance(rows, list) or not 0 < len(rows) <= MAX_SIGNATURES:
        raise _malformed(what, f"it needs a payload and 1 to {MAX_SIGNATURES} signatures")
    for row in rows:
        if (
            not isinstance(row, dict)
            or set(row) != {"keyid", "sig"}
            or not all(isinstance(v, str) for v in row.values())
        ):
            raise _malformed(what, "a signature needs exactly keyid and sig")
    try:
        envelope = Envelope.from_dict(plain)
        same = _to_bytes(envelope) == data
    except (binascii.Error, ValueError, KeyError, TypeError) as error:
        raise _malformed(what, f"it is no DSSE envelope: {error}") from error
    if not same:
        raise _malformed(what, "it is not in canonical base64, or its signatures are not in the order of their key ids")
    return Signed(envelope.payload, envelope.payload_type, tuple(envelope.signatures), envelope)


def make_statement(
    subject: Mapping[str, Mapping[str, str]], predicate_type: str, predicate: Mapping[str, Any]
) -> bytes:
    """Return the canonical bytes of an in-toto Statement v1 over ``subject`` (name -> algorithm -> digest in hex)."""
    return dumps(
        {
            "_type": STATEMENT,
            "subject": [{"name": name, "digest": dict(digests)} for name, digests in subject.items()],
            "predicateType": predicate_type,
            "predicate": dict(predicate),
        }
    )


def parse_statement(payload: bytes, predicate_type: str, what: str) -> Statement:
    """Read an in-toto Statement v1 of ``predicate_type``. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(payload, what, MAX_ENVELOPE_BYTES)
    if not isinstance(plain, dict) or set(plain) != {"_type", "subject", "predicateType", "predicate"}:
        raise _malformed(what, "it is no in-toto Statement")
    if plain["_type"] != STATEMENT or plain["predicateType"] != predicate_type:
        raise _malformed(what, f"it is no {STATEMENT} with a predicate of type {predicate_type}")
    subject: dict[str, dict[str, str]] = {}
    for row in plain["subject"] if isinstance(plain["subject"], list) else []:
        if not isinstance(row, dict) or set(row) != {"name", "digest"} or not isinstance(row["name"], str):
            raise _malformed(what, "a subject needs exactly name and digest")
        digests = row["digest"]
        if not isinstance(digests, dict) or not digests or not all(isinstance(v, str) for v in digests.values()):
            raise _malformed(what, f"the digest of subject {row['name']!r} has another form")
        if row["name"] in subject:
            raise _malformed(what, f"it has two subjects of the name {row['name']!r}")
        subject[row["name"]] = digests
    if not subject or not isinstance(plain["predicate"], dict):
        raise _malformed(what, "it needs a subject and a predicate")
    return Statement(subject, plain["predicate"])


def _add(envelope: Envelope, key: SignerKey) -> None:
    if key.keyid in envelope.signatures:
        raise SpecError(f"{key.keyid} has signed this already")
    envelope.sign(key.dsse_signer())


def _to_bytes(envelope: Envelope) -> bytes:
    plain = envelope.to_dict()
    plain["signatures"] = sorted(plain["signatures"], key=lambda row: str(row["keyid"]))
    return dumps(plain)


def _malformed(what: str, why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what} is malformed: {why}", document=what)
