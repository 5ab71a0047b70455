"""The agreement: a DSSE envelope over the canonical bytes of the run spec, signed by client and trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vt_core.errors import EvidenceError
from vt_core.evidence.attest import MAX_ENVELOPE_BYTES, Signed, add_signature, parse_envelope, seal_payload
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.evidence.outline import SpecOutline, parse_outline

SPEC_TYPE = "application/vnd.verifiable-training.run-spec+json"
_WHAT = "agreement.json"


@dataclass(frozen=True)
class AgreedSpec:
    """A run spec as a file holds it: its canonical bytes, and the envelope if it is signed."""

    spec: bytes
    outline: SpecOutline
    envelope: bytes | None
    signed: Signed | None

    @property
    def signers(self) -> tuple[str, ...]:
        """Key ids that the envelope names; not yet checked."""
        return () if self.signed is None else tuple(self.signed.signers)

    def verify(self, key: VerifierKey) -> None:
        """Check that ``key`` signed this spec. Raises EvidenceError("signature_invalid")."""
        if self.signed is None:
            raise EvidenceError("signature_invalid", f"the run spec {self.outline.digest[:16]} is not signed")
        self.signed.verify(key, "the agreed run spec")


def sign_spec(spec: bytes, keys: Sequence[SignerKey]) -> bytes:
    """Return the agreement over a spec's canonical bytes. Raises SpecError for a key that is given twice."""
    return seal_payload(spec, SPEC_TYPE, keys)


def parse_agreement(data: bytes, what: str = _WHAT) -> Signed:
    """Read an agreement; its signatures are not checked yet. Raises EvidenceError("evidence_malformed")."""
    return parse_envelope(data, SPEC_TYPE, what)


def read_spec_file(data: bytes, what: str) -> AgreedSpec:
    """Read a spec that a person handed over: signed or bare, with or without a newline at its end.

    Raises EvidenceError("evidence_malformed").
    """
    document = data.removesuffix(b"\n")
    plain = loads_strict(document, what, MAX_ENVELOPE_BYTES)
    if isinstance(plain, dict) and "payloadType" in plain:
        signed = parse_agreement(document, what)
        return AgreedSpec(signed.payload, parse_outline(signed.payload), document, signed)
    return AgreedSpec(document, parse_outline(document), None, None)


def with_signature(agreed: AgreedSpec, key: SignerKey) -> bytes:
    """Return the agreement with one more signature. Raises SpecError if this key has signed already."""
    return sign_spec(agreed.spec, [key]) if agreed.signed is None else add_signature(agreed.signed, key)


def check_agreement_is_about(signed: Signed, spec_digest: str) -> None:
    """Check that an agreement is over the published spec. Raises EvidenceError("spec_mismatch")."""
    if sha256_bytes(signed.payload) != spec_digest:
        raise EvidenceError("spec_mismatch", "the parties signed another run spec than the published one", file=_WHAT)
