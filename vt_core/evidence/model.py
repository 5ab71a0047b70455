"""The attestation of a final model: an in-toto Statement whose subjects are the checkpoint's files and the state root.

``model.dsse.json`` is what a client keeps with a model: it names the run spec, the sealed root and what the evidence
covers. It says what the trainer commits to; that it is true is for an audit to find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.errors import EvidenceError
from vt_core.evidence.attest import IN_TOTO, Signed, make_statement, parse_envelope, parse_statement, seal_payload
from vt_core.evidence.digests import is_sha256, sha256_bytes
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.records import Seal, SegmentRecord

MODEL_PREDICATE = "https://verifiable-training.example/model/v1"  # an identifier; there need be nothing behind it
MODEL_FILES = ("checkpoint.safetensors", "scalars.json")
STATE_SUBJECT = "state"
STATE_ALGORITHM = "vt-state-root-1"  # RFC 6962 over names, dtypes, shapes and bytes; see docs/evidence.md
_WHAT = "model.dsse.json"
_PREDICATE = {"run_id", "spec", "seal", "root", "step", "coverage"}


@dataclass(frozen=True)
class ModelStatement:
    """The checked content of a model attestation. Digests are SHA-256 in hex; ``files`` maps names to digests."""

    run_id: str
    spec: str
    seal: str
    root: str
    step: int
    state: str
    files: Mapping[str, str]
    coverage: Mapping[str, Any]


def sign_model(records: Sequence[SegmentRecord], seal: Seal, keys: Sequence[SignerKey]) -> bytes:
    """Return the signed attestation of the run that ``seal`` closes.

    Raises EvidenceError("evidence_malformed") if the last record commits to no model.
    """
    return seal_payload(_statement(records, seal), IN_TOTO, keys)


def parse_model(data: bytes, what: str = _WHAT) -> tuple[Signed, ModelStatement]:
    """Read an attestation; its signature is not checked yet. Raises EvidenceError("evidence_malformed")."""
    signed = parse_envelope(data, IN_TOTO, what)
    statement = parse_statement(signed.payload, MODEL_PREDICATE, what)
    plain = dict(statement.predicate)
    subject = {name: dict(digests) for name, digests in statement.subject.items()}
    state = subject.pop(STATE_SUBJECT, {})
    if set(plain) != _PREDICATE or set(state) != {STATE_ALGORITHM} or set(subject) != set(MODEL_FILES):
        raise _malformed(what, "its subjects or the fields of its predicate are not those of a model")
    digests = [state[STATE_ALGORITHM], *(d.get("sha256") for d in subject.values())]
    digests += [plain[name] for name in ("spec", "seal", "root")]
    if not all(is_sha256(d) for d in digests) or any(set(d) != {"sha256"} for d in subject.values()):
        raise _malformed(what, "a digest has another form")
    if type(plain["step"]) is not int or type(plain["run_id"]) is not str or not isinstance(plain["coverage"], dict):
        raise _malformed(what, "run_id, step or coverage has another form")
    files = {name: digests["sha256"] for name, digests in subject.items()}
    return signed, ModelStatement(state=state[STATE_ALGORITHM], files=files, **plain)


def check_model(signed: Signed, records: Sequence[SegmentRecord], seal: Seal) -> None:
    """Check that an attestation is about just this run and no other model. Raises EvidenceError("chain_broken")."""
    if signed.payload != _statement(records, seal):
        raise EvidenceError(
            "chain_broken",
            f"{_WHAT} attests something else than what was sealed: other files, root or spec",
            file=_WHAT,
        )


def _statement(records: Sequence[SegmentRecord], seal: Seal) -> bytes:
    last = records[-1]
    subject: dict[str, dict[str, str]] = {}
    for name in MODEL_FILES:
        entry = last.files.get(name)
        if entry is None:
            raise EvidenceError("evidence_malformed", f"the last segment commits to no {name}", segment=last.index)
        subject[name] = {"sha256": str(entry["sha256"])}
    subject[STATE_SUBJECT] = {STATE_ALGORITHM: seal.state}
    predicate = {
        "run_id": seal.run_id,
        "spec": seal.spec,
        "seal": sha256_bytes(seal.to_bytes()),
        "root": seal.root,
        "step": last.last_step,
        "coverage": {"segments": len(records), "steps": last.last_step, "leaves": seal.leaf_count},
    }
    return make_statement(subject, MODEL_PREDICATE, predicate)


def _malformed(what: str, why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what} is malformed: {why}", document=what)
