"""All signatures on one run: the agreement over the spec, the checkpoint over the seal, the model's attestation.

Whatever is there must be well formed and about this run, with or without keys at hand; a key that is given must have
made its signatures. What is absent is reported, and the caller decides whether it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vt_core.errors import EvidenceError
from vt_core.evidence.agreement import check_agreement_is_about, parse_agreement
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.evidence.model import check_model, parse_model, sign_model
from vt_core.evidence.note import Checkpoint, parse_checkpoint, parse_note, sign_note
from vt_core.evidence.outline import SpecOutline, parse_outline
from vt_core.evidence.records import Commitments, Seal, SegmentRecord, check_chain, parse_seal, parse_segment

AGREEMENT, NOTE, MODEL = "agreement.json", "seal.note", "model.dsse.json"


@dataclass(frozen=True)
class PartyKeys:
    """Public keys of the parties, as the reader knows them from elsewhere; None: this reader knows none."""

    trainer: VerifierKey | None = None
    client: VerifierKey | None = None


@dataclass(frozen=True)
class Signatures:
    """Who has signed what, by key id; an empty tuple: that document is not there. ``checked``: key ids verified."""

    agreement: tuple[str, ...]
    note: tuple[str, ...]
    model: tuple[str, ...]
    checked: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the documents that are not there."""
        found = ((AGREEMENT, self.agreement), (NOTE, self.note), (MODEL, self.model))
        return tuple(name for name, signers in found if not signers)


@dataclass(frozen=True)
class Evidence:
    """The commitments of a run that passed every check which needs neither artifacts nor a replay."""

    run_id: str
    spec: SpecOutline
    records: Sequence[SegmentRecord]
    seal: Seal | None
    signatures: Signatures


def open_evidence(commitments: Commitments, keys: PartyKeys) -> Evidence:
    """Check chain, roots, seal and signatures of a run. Raises EvidenceError with reason code and place."""
    if commitments.spec is None:
        raise EvidenceError("artifact_missing", "the run has no spec.json", file="spec.json")
    spec = parse_outline(commitments.spec)
    records, seal = open_chain(commitments, spec.digest, spec.ranges())
    signatures = check_signatures(commitments, spec.digest, records, seal, keys)
    return Evidence(commitments.run_id, spec, records, seal, signatures)


def open_chain(
    commitments: Commitments, spec_digest: str, ranges: Sequence[tuple[int, int]]
) -> tuple[list[SegmentRecord], Seal | None]:
    """Parse and chain the records and the seal. Raises EvidenceError."""
    if len(commitments.segments) > len(ranges):
        raise EvidenceError("chain_broken", "there are more segments than the spec has")
    records = [parse_segment(d, f"segments/{i:05d}.json") for i, d in enumerate(commitments.segments)]
    seal = None if commitments.seal is None else parse_seal(commitments.seal)
    # A record that parses is in canonical form, so the digest of its bytes is its digest.
    digests = [sha256_bytes(data) for data in commitments.segments]
    check_chain(commitments.run_id, spec_digest, ranges, records, seal, digests)
    if not records:
        raise EvidenceError("artifact_missing", "the run has no segments yet", segment=0)
    return records, seal


def check_signatures(
    commitments: Commitments, spec_digest: str, records: Sequence[SegmentRecord], seal: Seal | None, keys: PartyKeys
) -> Signatures:
    """Check whatever is signed; see the module's docstring.

    Raises EvidenceError: ``evidence_malformed``, ``spec_mismatch`` (an agreement over another spec), ``chain_broken``
    (a checkpoint or attestation of something else than this seal) or ``signature_invalid``.
    """
    checked: list[str] = []
    agreement: tuple[str, ...] = ()
    if commitments.agreement is not None:
        signed = parse_agreement(commitments.agreement)
        check_agreement_is_about(signed, spec_digest)
        for key in (keys.client, keys.trainer):
            if key is not None:
                signed.verify(key, AGREEMENT)
                checked.append(key.keyid)
        agreement = tuple(signed.signers)
    if seal is None and (commitments.note is not None or commitments.model is not None):
        raise EvidenceError("chain_broken", "the seal that was signed is not there", file="seal.json")
    noted: tuple[str, ...] = ()
    if commitments.note is not None and seal is not None:
        note = parse_note(commitments.note, NOTE)
        if keys.trainer is not None:
            note.verify(keys.trainer, NOTE)
            checked.append(keys.trainer.keyid)
        check_checkpoint(parse_checkpoint(note, NOTE), seal)
        noted = tuple(s.keyid for s in note.signatures)
    modelled: tuple[str, ...] = ()
    if commitments.model is not None and seal is not None:
        attestation, _ = parse_model(commitments.model)
        if keys.trainer is not None:
            attestation.verify(keys.trainer, MODEL)
        check_model(attestation, records, seal)
        modelled = tuple(attestation.signers)
    return Signatures(agreement, noted, modelled, tuple(dict.fromkeys(checked)))


def require_signed(signatures: Signatures, keys: PartyKeys, sealed: bool) -> None:
    """Insist on what a reader with keys may expect. Raises EvidenceError("signature_invalid") naming what is absent.

    With any key: the agreement. With the trainer's: the signed seal and the model's attestation, once there is a seal.
    """
    wanted = [AGREEMENT] if keys.trainer or keys.client else []
    wanted += [NOTE, MODEL] if keys.trainer and sealed else []
    absent = [name for name in wanted if name in signatures.missing]
    if absent:
        raise EvidenceError(
            "signature_invalid",
            f"the run is not signed as agreed: there is no {' and no '.join(absent)}",
            file=absent[0],
        )


def checkpoint_of(seal: Seal) -> Checkpoint:
    """Return the checkpoint that a trainer signs over ``seal``."""
    return Checkpoint(seal.run_id, seal.leaf_count, seal.root, sha256_bytes(seal.to_bytes()), seal.spec)


def check_checkpoint(checkpoint: Checkpoint, seal: Seal) -> None:
    """Check that a checkpoint is that of ``seal``. Raises EvidenceError("chain_broken") naming what differs."""
    wanted = checkpoint_of(seal)
    for name in ("run_id", "size", "root", "spec", "seal"):
        if getattr(checkpoint, name) != getattr(wanted, name):
            raise EvidenceError(
                "chain_broken", f"{NOTE} is signed over another {name} than the seal has: {getattr(checkpoint, name)}",
                file=NOTE,
            )  # fmt: skip


def sign_seal(records: Sequence[SegmentRecord], seal: Seal, key: SignerKey) -> tuple[bytes, bytes]:
    """Return what a trainer publishes over its seal: the signed checkpoint and the model's attestation.

    Ed25519 is deterministic, so the same seal and key give the same bytes again.
    """
    return sign_note(checkpoint_of(seal).text(), [key]), sign_model(records, seal, [key])
