"""Signed verdicts: an in-toto Statement whose subject is the stored verdict and whose predicate repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.attest import IN_TOTO, Signed, make_statement, parse_envelope, parse_statement, seal_payload
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.keys import SignerKey

VERDICT_PREDICATE = "https://verifiable-training.example/verdict/v1"  # an identifier; there need be nothing behind it


def sign_verdict(name: str, data: bytes, keys: Sequence[SignerKey]) -> bytes:
    """Return the signed Statement over a verdict's canonical bytes, stored under ``name``."""
    verdict = loads_strict(data, name)
    return seal_payload(
        make_statement({name: {"sha256": sha256_bytes(data)}}, VERDICT_PREDICATE, verdict), IN_TOTO, keys
    )


def open_verdict(envelope: bytes, name: str, data: bytes) -> tuple[Signed, Mapping[str, Any]]:
    """Check that ``envelope`` is about just the verdict ``data``; returns it, signatures unchecked, and the verdict.

    Raises EvidenceError: ``evidence_malformed``, or ``chain_broken`` for the signature of another verdict.
    """
    what = f"the signature of {name}"
    signed = parse_envelope(envelope, IN_TOTO, what)
    statement = parse_statement(signed.payload, VERDICT_PREDICATE, what)
    if dict(statement.subject) != {name: {"sha256": sha256_bytes(data)}} or statement.predicate != loads_strict(
        data, name
    ):
        raise EvidenceError("chain_broken", f"{what} is that of another verdict", file=name)
    return signed, statement.predicate
