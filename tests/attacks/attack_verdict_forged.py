"""A verdict `verified` on a cheating run, signed by somebody who calls itself the auditor."""

from __future__ import annotations

from typing import Any

from attacks.zoo import VERIFIED, Attack, Finding, Lab, Mounted, Place
from support.cheats import ReplacesWeights
from support.runs import SMALL_DIGITS, Trainer, audit

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.judgement import open_verdict, sign_verdict
from vt_core.evidence.keys import SignerKey

AUDITOR, STRANGER = SignerKey.generate("auditor"), SignerKey.generate("auditor")
NAME = "20260101T000000Z-0123456789abcdef.json"


def read(envelope: bytes, data: bytes) -> Finding:
    """Check a verdict's signature as somebody does who knows the auditor's public key."""
    try:
        signed, _ = open_verdict(envelope, NAME, data)
        signed.verify(AUDITOR.verifier, "the verdict")
    except EvidenceError as error:
        return Finding.of_error(error)
    return VERIFIED


def mount(lab: Lab) -> Mounted:
    cheat = Trainer(SMALL_DIGITS, lab.folder(), make=ReplacesWeights).run()
    honest: dict[str, Any] = audit(cheat.folder)
    forged = {**honest, "verdict": "verified", "reason": None, "first_divergence": None}
    good, bad = dumps(honest), dumps(forged)
    control, found = read(sign_verdict(NAME, good, [AUDITOR]), good), read(sign_verdict(NAME, bad, [STRANGER]), bad)
    assert read(sign_verdict(NAME, good, [AUDITOR]), bad).reason == "chain_broken", "nor does the true signature fit"
    return Mounted(sha256_bytes(good), sha256_bytes(bad), control, found)


ATTACK = Attack(
    name="verdict-forged",
    kind="audit",
    does="replaces a rejection by a verdict `verified` under a key of the auditor's name",
    gain="a clean bill for a model with replaced weights",
    caught_by="signatures: verdicts are signed by the auditor's key",
    reason="signature_invalid",
    place=Place(),
    mount=mount,
)
