"""Signed runs, and what somebody finds who has the parties' public keys and reads the evidence without a replay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from attacks.zoo import VERIFIED, Finding, Lab, Mounted, commitments_digest
from support.runs import read_commitments

from vt_core.errors import EvidenceError
from vt_core.evidence.agreement import sign_spec
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.records import Commitments, parse_seal, parse_segment
from vt_core.evidence.signatures import PartyKeys, open_evidence, require_signed, sign_seal

CLIENT, TRAINER = SignerKey.generate("client"), SignerKey.generate("trainer")
KNOWN = PartyKeys(TRAINER.verifier, CLIENT.verifier)


def sign_run(folder: Path, run_id: str = "run", key: SignerKey = TRAINER) -> Commitments:
    """Return the commitments in ``folder`` with the agreement and the seal signed (the seal by ``key``)."""
    found = read_commitments(folder, run_id)
    assert found.spec is not None and found.seal is not None
    records = [parse_segment(data, f"segments/{i:05d}.json") for i, data in enumerate(found.segments)]
    note, model = sign_seal(records, parse_seal(found.seal), key)
    return dataclasses.replace(found, agreement=sign_spec(found.spec, [CLIENT, TRAINER]), note=note, model=model)


def read(commitments: Commitments, keys: PartyKeys = KNOWN) -> Finding:
    """Check a run's commitments and signatures as ``vt verify`` does."""
    try:
        evidence = open_evidence(commitments, keys)
        require_signed(evidence.signatures, keys, sealed=evidence.seal is not None)
    except EvidenceError as error:
        return Finding.of_error(error)
    return VERIFIED


def resign(lab: Lab, change: Callable[[Commitments], Commitments]) -> Mounted:
    """Change the signed commitments of the honest run, and read them."""
    honest = sign_run(lab.honest().folder)
    attacked = change(honest)
    return Mounted(commitments_digest(honest), commitments_digest(attacked), read(honest), read(attacked))
