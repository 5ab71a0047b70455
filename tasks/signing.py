"""Keys, agreed specs and signatures as files and objects: what the parties of a run sign, and with which key."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.runs import RunStore
from tasks.store import open_store
from vt_core.errors import EvidenceError, NotFound, SpecError
from vt_core.evidence.agreement import AgreedSpec, parse_agreement, read_spec_file
from vt_core.evidence.attest import MAX_ENVELOPE_BYTES
from vt_core.evidence.keys import SignerKey, VerifierKey, read_signer_key, read_verifier_key
from vt_core.evidence.signatures import AGREEMENT, PartyKeys, open_evidence, sign_seal

DEFAULT_TRAINER_KEY = Path("keys/trainer")


def read_file(path: Path, what: str, max_bytes: int = MAX_ENVELOPE_BYTES) -> bytes:
    """Return the content of a file that a person named. Raises SpecError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise SpecError(f"cannot read {what} {path}: {error.strerror or error}") from error
    if len(data) > max_bytes:
        raise SpecError(f"{what} {path} has more than {max_bytes} bytes")
    return data


def read_spec(location: str | Path) -> AgreedSpec:
    """Read a spec, signed or bare, from a path, a file:// URL, or an object of a bucket (as a store's URL).

    Raises SpecError if it cannot be read, EvidenceError if it is malformed, StoreError for a bucket's troubles.
    """
    text = str(location)
    if text.startswith("s3://"):
        return read_spec_file(_object(text), "the run spec")
    path = Path(text.removeprefix("file://"))
    return read_spec_file(read_file(path, "the run spec"), path.name)


def _object(url: str) -> bytes:
    """Return an object that is named as ``s3://bucket/folder/name?endpoint_url=...``."""
    place, separator, query = url.partition("?")
    parent, _, name = place.rpartition("/")
    remote = open_store(parent + separator + query).dvc_remote()
    folder = dataclasses.replace(remote, url=remote.url.removesuffix("/artifacts")).objects()
    try:
        return folder.read(name, MAX_ENVELOPE_BYTES)
    except NotFound as error:
        raise SpecError(f"cannot read the run spec: {error}") from error


def read_keys(paths: Iterable[str | Path]) -> list[SignerKey]:
    """Read private keys. Raises SpecError naming the file."""
    return [read_signer_key(Path(path)) for path in paths]


def read_public(text_or_path: str | None) -> VerifierKey | None:
    """Read a public key, given as text or as a path; None stays None. Raises SpecError."""
    return None if text_or_path is None else read_verifier_key(text_or_path)


def trainer_key(agreed: AgreedSpec | None, path: str | None) -> SignerKey | None:
    """Return the key that signs a training: that of ``path``, else ``keys/trainer`` if it has signed the spec.

    None for a spec that nobody signed, without ``path``. Raises SpecError if the spec is signed and the key that is
    at hand has not signed it: evidence under such a key would be refused.
    """
    key = None if path is None else read_signer_key(Path(path))
    if agreed is None or agreed.signed is None:
        return key
    if key is None and DEFAULT_TRAINER_KEY.exists():
        key = read_signer_key(DEFAULT_TRAINER_KEY)
        if key.keyid not in agreed.signers:
            key = None
    signers = ", ".join(agreed.signers)
    if key is None:
        raise SpecError(
            f"the spec is signed by {signers}: give the trainer's key, one of these, with --key FILE or VT_KEY, "
            f"so that the seal can be signed with it"
        )
    if key.keyid not in agreed.signers:
        raise SpecError(
            f"the key {key.keyid} has not signed the spec (only {signers}): sign it before training, with "
            f"'vt spec --add-signature {path} SPEC'"
        )
    try:
        agreed.verify(key.verifier)
    except EvidenceError as error:
        raise SpecError(f"{error}: the spec was changed after it was signed") from error
    return key


def sign_run(run: RunStore, key: SignerKey) -> dict[str, Any]:
    """Sign the seal of a finished run; returns what was signed. The same key may sign again and changes nothing.

    Raises SpecError if the run is not sealed, is signed by another key, or is under an agreement that this key has not
    signed; EvidenceError if its evidence is broken; NotFound if there is no such run.
    """
    commitments = run.commitments()
    if commitments.seal is None:
        raise SpecError(
            f"run {run.run_id!r} is not sealed: start 'vt train' again with --run-id {run.run_id} to finish it"
        )
    evidence = open_evidence(commitments, PartyKeys())
    if evidence.signatures.agreement and key.keyid not in evidence.signatures.agreement:
        raise SpecError(
            f"run {run.run_id!r} is under an agreement signed by {', '.join(evidence.signatures.agreement)}, not by "
            f"{key.keyid}: sign with the trainer's key"
        )
    if commitments.agreement is not None:  # the trainer's own signature there, or every reader would refuse this one
        parse_agreement(commitments.agreement).verify(key.verifier, AGREEMENT)
    assert evidence.seal is not None
    note, model = sign_seal(evidence.records, evidence.seal, key)
    run.publish_signatures(note, model)
    return {
        "run_id": run.run_id,
        "store": run.store.url,
        "root": evidence.seal.root,
        "state": evidence.seal.state,
        "signed_by": key.keyid,
    }
