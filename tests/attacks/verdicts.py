"""Verdicts in a store, and whether the store's readers count them as audits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attacks.zoo import VERIFIED, Finding, Lab
from support.runs import audit, read_commitments
from support.signed import publish

from tasks.coverage import coverage
from tasks.store import open_store
from vt_core.errors import EvidenceError
from vt_core.evidence.ranges import last_leaves
from vt_core.evidence.records import parse_seal
from vt_core.evidence.work import check_proof
from vt_core.training.spec import parse_spec


def honest_verdict(lab: Lab, nonce: str) -> dict[str, Any]:
    """Return the verdict of an auditor that replayed the honest run."""
    if nonce not in lab.shared:
        lab.shared[nonce] = audit(lab.honest().folder, nonce=nonce)
    found: dict[str, Any] = lab.shared[nonce]
    return found


def count(lab: Lab, verdict: Mapping[str, Any]) -> Finding:
    """Put ``verdict`` beside the honest run into a store and return what coverage makes of it."""
    found = read_commitments(lab.honest().folder)
    store = open_store(str(lab.folder()), create=True)
    publish(store, found).publish_verdict(verdict, "20260101T000000Z")
    [row] = coverage(store)
    assert found.spec is not None and found.seal is not None
    spec, seal = parse_spec(found.spec), parse_seal(found.seal)
    ends = last_leaves(spec.steps, spec.segment_steps, spec.commit_interval)
    try:
        for s in verdict["segments"]:
            check_proof(
                s["proof_of_replay"], s["index"], verdict["nonce"], seal.root, ends[s["index"]], seal.leaf_count
            )
    except EvidenceError as error:
        assert (row.unproven, row.audited, row.verdict) == (1, frozenset(), None), "it must count as no audit"
        return Finding.of_error(error)
    assert (row.unproven, row.share, row.verdict) == (0, 1.0, "verified")
    return VERIFIED
