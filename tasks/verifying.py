"""Verifying a run's evidence without a replay (and without torch): chain, roots, seal, signatures, verdicts, files."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.artifacts import ArtifactStore
from tasks.in_use import in_use
from tasks.reporter import reporter
from tasks.runs import RunStore, fetch_segments
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import loads_strict
from vt_core.evidence.digests import check_file, sha256_bytes
from vt_core.evidence.judgement import open_verdict
from vt_core.evidence.keys import VerifierKey
from vt_core.evidence.model import MODEL_FILES, parse_model
from vt_core.evidence.records import SegmentRecord
from vt_core.evidence.signatures import MODEL, NOTE, Evidence, PartyKeys, open_evidence
from vt_core.verify.verdict import Reason, result_of

VERIFIED = "verified-evidence"
NOT_SIGNED = "not_signed"
_BATCH = 16  # segments fetched at a time: a disk need not hold all checkpoints of a run


def verify_run(
    run: RunStore, keys: PartyKeys, auditor: VerifierKey | None = None, artifacts: bool = False,
    workspace: Path = Path(".vt"),
) -> dict[str, Any]:  # fmt: skip
    """Check all evidence of a run that needs no replay; returns the result as plain JSON.

    ``result`` is ``verified-evidence``, ``rejected`` or ``inconclusive`` (not sealed, or not signed by a key that was
    given), with ``reason`` and ``message``. ``artifacts`` fetches every file and checks its SHA-256 too. Raises
    NotFound if there is no such run, StoreError for the store's troubles.
    """
    began = time.perf_counter()
    commitments = run.commitments()
    read = time.perf_counter()
    plain: dict[str, Any] = {"run_id": run.run_id, "store": run.store.url, "result": VERIFIED, "reason": None}
    plain["message"] = "chain, roots, seal and signatures agree; nothing was replayed"
    try:
        evidence = open_evidence(commitments, keys)
        plain |= _facts(evidence)
        plain["seconds_checking"] = round(time.perf_counter() - read, 3)
        if artifacts:
            plain["artifacts"] = check_artifacts(run, evidence.records, workspace)
        plain["verdicts"] = [_verdict(run, name, auditor) for name in run.verdicts()]
        plain |= _verdict_on(evidence, keys, plain["verdicts"])
    except EvidenceError as error:
        plain |= {"result": str(result_of(Reason(error.reason))), "reason": error.reason, "message": str(error)}
        plain["place"] = {k: str(v) for k, v in error.place.items()}
    return plain | {"seconds": round(time.perf_counter() - began, 3)}


def check_artifacts(run: RunStore, records: Sequence[SegmentRecord], workspace: Path) -> dict[str, int]:
    """Fetch every file of ``records`` and check it; returns how many files and bytes. Raises EvidenceError."""
    files = size = 0
    report = reporter.get()
    report.start(f"files of {len(records)} segments", len(records))
    with _fetching(run, workspace) as (artifacts, folder):
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            folders, errors = fetch_segments(artifacts, folder, batch, "evidence")
            for record in batch:
                if record.index in errors:
                    raise errors[record.index]
                for name, entry in record.files.items():
                    what = f"segment {record.index}: {name}"
                    if "/" in name or name.startswith("."):
                        raise EvidenceError("evidence_malformed", f"{what} is no file's name", segment=record.index)
                    check_file(folders[record.index] / name, entry["sha256"], entry["size"], what)
                    files, size = files + 1, size + int(entry["size"])
                shutil.rmtree(folders[record.index], ignore_errors=True)
                report.advance()
    return {"files": files, "bytes": size}


def fetch_model(run: RunStore, target: Path, workspace: Path) -> dict[str, Any]:
    """Fetch the final checkpoint of a sealed run and its attestation into ``target``; returns what lies there.

    Each file has the committed SHA-256. Raises SpecError if ``target`` holds something already or the run is not
    sealed, EvidenceError for broken evidence. The signature is for ``vt verify-model`` to check.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise SpecError(f"{target} is there already; give an empty or a new folder with --out")
    commitments = run.commitments()
    evidence = open_evidence(commitments, PartyKeys())
    if evidence.seal is None:
        raise SpecError(f"run {run.run_id!r} is not sealed yet: it has no final model")
    last = evidence.records[-1]
    with _fetching(run, workspace) as (artifacts, folder):
        folders, errors = fetch_segments(artifacts, folder, [last], "evidence")
        if errors:
            raise errors[last.index]
        target.mkdir(parents=True, exist_ok=True)
        for name in MODEL_FILES:
            entry = last.files.get(name)
            if entry is None:
                raise EvidenceError("evidence_malformed", f"the last segment commits to no {name}", segment=last.index)
            check_file(folders[last.index] / name, entry["sha256"], entry["size"], f"segment {last.index}: {name}")
            shutil.copyfile(folders[last.index] / name, target / name)
    if commitments.model is not None:
        (target / MODEL).write_bytes(commitments.model)
    return {
        "run_id": run.run_id,
        "folder": str(target),
        "files": list(MODEL_FILES),
        "attestation": None if commitments.model is None else str(target / MODEL),
        "state": evidence.seal.state,
        "step": last.last_step,
    }


def verify_model(model: Path, attestation: bytes, key: VerifierKey) -> dict[str, Any]:
    """Check a final model against its attestation: signature, files, and the state root recomputed from them.

    ``model`` is the folder of the checkpoint or one of its files. Raises EvidenceError: ``signature_invalid``,
    ``artifact_missing``, ``artifact_corrupt``, ``state_mismatch`` or ``evidence_malformed``.
    """
    signed, said = parse_model(attestation.removesuffix(b"\n"), "the attestation")
    signed.verify(key, "the attestation")
    folder = model if model.is_dir() else model.parent
    if not model.exists():
        raise SpecError(f"there is no {model}: give the folder that 'vt fetch-model' has written")
    if not model.is_dir() and model.name not in said.files:
        raise EvidenceError("artifact_missing", f"{model.name} is no file of this model: {', '.join(said.files)}")
    for name, sha256 in said.files.items():
        path = folder / name
        check_file(path, sha256, path.stat().st_size if path.exists() else 0, name)
    # The root is over the tensors themselves, so the files are read as a replay would read them.
    from vt_core.training.checkpoint import load_checkpoint
    from vt_core.training.state import digest

    state = load_checkpoint(folder)
    found = digest(state).root.hex()
    if found != said.state or state.step != said.step:
        raise EvidenceError(
            "state_mismatch", f"the model's state root is {found}, the attestation says {said.state}", step=said.step
        )
    return {
        "result": VERIFIED, "reason": None, "message": "signature, files and state root agree",
        "run_id": said.run_id, "spec": said.spec, "root": said.root, "state": said.state, "step": said.step,
        "coverage": dict(said.coverage), "signed_by": key.keyid,
    }  # fmt: skip


def _facts(evidence: Evidence) -> dict[str, Any]:
    seal, signatures = evidence.seal, evidence.signatures
    return {
        "spec": evidence.spec.digest,
        "root": None if seal is None else seal.root,
        "state": None if seal is None else seal.state,
        "segments": len(evidence.records),
        "segment_count": evidence.spec.segment_count,
        "leaves": sum(len(record.leaves) for record in evidence.records),
        "steps": evidence.spec.steps,
        "signed_by": {
            "agreement": list(signatures.agreement), "seal": list(signatures.note), "model": list(signatures.model),
        },
        "keys_checked": list(signatures.checked),
        "artifacts": None,
    }  # fmt: skip


def _verdict_on(evidence: Evidence, keys: PartyKeys, verdicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is still to be said of evidence that holds together."""
    forged = next((row for row in verdicts if row["signature"] == "invalid"), None)
    if forged is not None:
        reason = Reason.SIGNATURE_INVALID
        return {"result": str(result_of(reason)), "reason": str(reason), "message": str(forged["problem"])}
    inconclusive = {"result": "inconclusive"}
    if evidence.seal is None:
        done = f"{len(evidence.records)} of {evidence.spec.segment_count} segments"
        return inconclusive | {
            "reason": "not_sealed",
            "message": f"what there is agrees ({done}), but it is not sealed",
        }
    if keys.trainer is None:
        return inconclusive | {
            "reason": NOT_SIGNED,
            "message": "everything agrees, but only a signature says whose it is: give --key, the trainer's public key",
        }
    missing = [name for name in (NOTE, MODEL) if name in evidence.signatures.missing]
    if keys.client is not None and not evidence.signatures.agreement:
        missing.append("agreement.json")
    if missing:
        why = f"everything agrees, but there is no {' and no '.join(missing)}: 'vt seal' signs a finished run"
        return inconclusive | {"reason": NOT_SIGNED, "message": why}
    return {}


def _verdict(run: RunStore, name: str, auditor: VerifierKey | None) -> dict[str, Any]:
    """Return one row on a stored verdict. ``signature``: absent, unchecked, other_key, valid, invalid or malformed."""
    row: dict[str, Any] = {"name": name, "verdict": None, "reason": None, "time": None, "signed_by": []}
    row |= {"signature": "absent", "problem": None}
    try:
        data = run.verdict(name)
        plain = loads_strict(data, name)
        if not name.removesuffix(".json").endswith(sha256_bytes(data)[:16]):
            raise EvidenceError("evidence_malformed", f"the verdict {name} was changed after it was stored")
        if not isinstance(plain, dict) or plain.get("run_id") != run.run_id:
            raise EvidenceError("evidence_malformed", f"{name} is no verdict on run {run.run_id!r}")
        row |= {key: plain.get(key) for key in ("verdict", "reason", "time")}
        envelope = run.verdict_signature(name)
        if envelope is None:
            return row
        signed, _ = open_verdict(envelope, name.rpartition("/")[2], data)
        row["signed_by"] = list(signed.signers)
    except EvidenceError as error:
        return row | {"signature": "malformed", "problem": f"{error.reason}: {error}"}
    if auditor is None:
        return row | {"signature": "unchecked"}
    if auditor.keyid not in signed.signers:
        return row | {"signature": "other_key"}
    try:
        signed.verify(auditor, f"the verdict {name}")
    except EvidenceError as error:
        return row | {"signature": "invalid", "problem": str(error)}
    return row | {"signature": "valid"}


@contextmanager
def _fetching(run: RunStore, workspace: Path) -> Iterator[tuple[ArtifactStore, Path]]:
    """Hold a DVC process in a fresh folder of ``workspace``, which is removed again."""
    workspace.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="verify-", dir=workspace))
    try:
        with in_use(folder), ArtifactStore(folder, run.store.dvc_remote()) as artifacts:
            artifacts.init()
            yield artifacts, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
