"""The audit of a run: what is checked before any replay, which segments are replayed, and the verdict over all.

Rules before a replay, in this order: the spec parses; this engine and these libraries can replay it; the tolerance
policy is no wider than the auditor's limits; the auditor's own copy of the job's code and of the data has the
agreed digests; the records form a chain; the seal covers all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vt_core import __version__
from vt_core.errors import MAX_MESSAGE, EvidenceError, SpecError
from vt_core.evidence.merkle import Tree
from vt_core.evidence.records import Commitments, Seal, SegmentRecord
from vt_core.evidence.signatures import PartyKeys, check_signatures, open_chain, require_signed
from vt_core.evidence.work import Challenge
from vt_core.training.job import Dataset, Job
from vt_core.training.spec import ENGINE, RunSpec, libraries, parse_spec, source_digests
from vt_core.verify.bias import USES, biased_class
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.verdict import Divergence, Reason, Result, SegmentResult, detection_probability, headroom, result_of

VERDICT_FORMAT = "vt-verdict/1"


@dataclass(frozen=True)
class Run:
    """Commitments that passed every check that needs no replay."""

    run_id: str
    spec: RunSpec
    records: Sequence[SegmentRecord]
    seal: Seal | None


def open_run(commitments: Commitments, keys: PartyKeys | None = None) -> Run:
    """Parse and chain the commitments of a run and check its signatures. Raises EvidenceError with reason and place.

    With ``keys`` of the parties, the run must be signed by them; without, what is signed must be about this run.
    """
    if commitments.spec is None:
        raise EvidenceError("artifact_missing", "the run has no spec.json", file="spec.json")
    spec = parse_spec(commitments.spec)
    keys = keys or PartyKeys()
    digest = spec.digest()
    records, seal = open_chain(commitments, digest, [spec.segment_range(i) for i in range(spec.segment_count)])
    signatures = check_signatures(commitments, digest, records, seal, keys)
    require_signed(signatures, keys, sealed=seal is not None)
    return Run(commitments.run_id, spec, records, seal)


def check_machine(spec: RunSpec) -> None:
    """Check that engine and libraries here are those of the spec. Raises EvidenceError("environment_unsupported")."""
    own = libraries()
    if spec.engine != ENGINE:
        raise EvidenceError(
            "environment_unsupported", f"the run is one of engine {spec.engine}, this is engine {ENGINE}"
        )
    theirs = spec.libraries.get("torch", "")
    if theirs.split(".")[:2] != own["torch"].split(".")[:2]:
        raise EvidenceError(
            "environment_unsupported",
            f"the run is one of torch {theirs}, this is torch {own['torch']}: install the agreed version",
        )


def check_agreement(spec: RunSpec, job: Job, dataset: Dataset, limits: AuditorLimits) -> None:
    """Compare the spec with the auditor's own limits, libraries, code and data. Raises EvidenceError."""
    check_machine(spec)
    refused = limits.refused_libraries(spec.libraries)
    if refused:
        names = ", ".join(f"{name} {spec.libraries.get(name, '(none named)')}" for name in refused)
        raise EvidenceError("environment_unsupported", f"this auditor does not accept runs of {names}")
    limit = limits.policy.get(spec.compute_dtype)
    wider = spec.policy.wider_than(limit) if limit is not None else ["all"]
    if wider:
        raise EvidenceError(
            "policy_too_wide", f"the tolerance is wider than this auditor accepts for: {', '.join(wider)}"
        )
    check_copies(spec, job, dataset)


def check_copies(spec: RunSpec, job: Job, dataset: Dataset) -> None:
    """Check that job and data here are the agreed ones. Raises EvidenceError: code_mismatch, data_mismatch, or
    spec_mismatch for another batch size.
    """
    sources = source_digests(job)
    if sources != dict(spec.sources):
        differing = sorted(n for n in sources.keys() | spec.sources.keys() if sources.get(n) != spec.sources.get(n))
        raise EvidenceError("code_mismatch", f"this copy of the job's code differs in: {', '.join(differing)}")
    manifest = dataset.manifest()
    if manifest != dict(spec.manifest) or len(dataset) != spec.dataset_size:
        differing = sorted(n for n in manifest.keys() | spec.manifest.keys() if manifest.get(n) != spec.manifest.get(n))
        raise EvidenceError("data_mismatch", f"this copy of the data differs in: {', '.join(differing) or 'its size'}")
    if job.batch_size != spec.batch_size:
        raise EvidenceError(
            "spec_mismatch", f"the job makes batches of {job.batch_size}, the spec says {spec.batch_size}"
        )


def choose_segments(choice: str, run: Run, nonce: str) -> list[int]:
    """Return the segments to replay: ``all``, a list like ``0,2,5-7``, or ``sample:N``.

    A sample is drawn from the sealed root (or the last record) and the auditor's nonce, so neither side chooses
    alone. Raises SpecError for anything else.
    """
    total = len(run.records)
    choice = choice.strip()
    if choice == "all":
        return list(range(total))
    if choice.startswith("sample:"):
        count = re.fullmatch(r"0*([0-9]{1,18})", choice.removeprefix("sample:"))
        wanted = int(count[1]) if count else 0
        if wanted < 1:
            raise SpecError(f"segments {choice!r}: give a count of at least 1, as in sample:3")
        anchor = run.seal.root if run.seal is not None else run.records[-1].digest()
        key = {i: hashlib.sha256(f"vt-sample/1|{anchor}|{nonce}|{i}".encode()).digest() for i in range(total)}
        return sorted(sorted(key, key=lambda i: key[i])[: min(wanted, total)])
    chosen: set[int] = set()
    for part in choice.split(","):
        bounds = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", part)
        if bounds is None:
            raise SpecError(f"segments {choice!r}: use 'all', 'sample:N', or numbers as in '0,2,5-7'")
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if last < first:
            raise SpecError(f"segments {choice!r}: the range {part.strip()!r} runs backwards")
        if last >= total:
            raise SpecError(f"segments {choice!r}: the run has segments 0 to {total - 1}")
        chosen |= set(range(first, last + 1))
    return sorted(chosen)


def no_replay_verdict(run_id: str, error: EvidenceError) -> dict[str, Any]:
    """Return the verdict for evidence that fails before any replay."""
    reason = Reason(error.reason)
    plain = _head(run_id, result_of(reason), reason, str(error))
    segment, step = error.place.get("segment"), error.place.get("step")
    where = Divergence(segment, step if isinstance(step, int) else None) if isinstance(segment, int) else None
    return plain | {
        "segments": [],
        "coverage": {"replayed": 0, "total": 0},
        "first_divergence": None if where is None else where.to_json(),
        "place": {k: str(v)[:500] for k, v in error.place.items()},
    }


def verdict(
    run: Run, results: Sequence[SegmentResult], limits: AuditorLimits, nonce: str, environment: Mapping[str, Any],
    trainer_environments: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the verdict over the replayed segments as plain JSON.

    Raises ValueError without results, or for two results of one segment: a verdict over nothing would be verified.
    """
    ordered = sorted(results, key=lambda r: r.index)
    indexes = [r.index for r in ordered]
    if not indexes or len(set(indexes)) != len(indexes) or not set(indexes) <= set(range(len(run.records))):
        raise ValueError(f"a verdict needs one result for each replayed segment of the run, not {indexes}")
    counts = total_counts(ordered)
    worst = next((r for r in ordered if r.result is Result.REJECTED), None)
    worst = worst or next((r for r in ordered if r.result is Result.INCONCLUSIVE), None)
    reason = None if worst is None else worst.reason
    message = "every replayed segment agrees bit for bit" if worst is None else worst.message
    divergence = None if worst is None else worst.divergence
    if result_of(reason) is not Result.REJECTED:
        bias = biased_class(counts, limits.honest_rate)
        if bias is not None:
            reason, divergence = Reason.LOG_BIASED, None
            message = (
                f"the log takes the other rounding in {bias.disagreements} of {bias.entries} entries of class "
                f"{bias.op_class} (p = {bias.p_value:.1e}): honest hardware does so in at most {limits.honest_rate:.0%}"
            )
    last = ordered[-1] if indexes[-1] == len(run.records) - 1 else None
    sealed_state = None if run.seal is None or last is None else last.final_state
    # The seal names the final model; nothing else in the chain ties that name to the last checkpoint.
    renamed = run.seal is not None and sealed_state is not None and run.seal.state != sealed_state
    if renamed and result_of(reason) is not Result.REJECTED:
        reason, divergence = Reason.CHAIN_BROKEN, Divergence(indexes[-1], ordered[-1].last_step)
        message = "the seal names another final state than the last segment commits to"
    if reason is None and run.seal is None:
        reason, message = (
            Reason.NOT_SEALED,
            "what was published agrees bit for bit, but the run is not sealed yet",
        )
    total = run.spec.segment_count
    replayed = len(ordered)
    largest = max((float(c["max_distance"]) for c in counts.values()), default=0.0)
    return _head(run.run_id, result_of(reason), reason, message) | {
        "spec": run.spec.digest(),
        "root": None if run.seal is None else run.seal.root,
        "state": None if run.seal is None else run.seal.state,
        "state_checked": sealed_state is not None,
        "segments": _rows(run, ordered),
        "coverage": {"replayed": replayed, "total": total, "of_share": f"{replayed / total:.4f}"},
        "detection_probability": {
            f"{bad}_bad": f"{detection_probability(total, replayed, bad):.4f}" for bad in (1, 2, 5) if bad <= total
        },
        "first_divergence": None if divergence is None else divergence.to_json(),
        "counts": counts,
        "largest_divergence_in_tolerances": f"{largest:.6f}",
        "headroom": headroom(counts),
        "nonce": nonce,
        "environment": dict(environment),
        "trainer_environments": dict(trainer_environments or {}),
    }


def _rows(run: Run, results: Sequence[SegmentResult]) -> list[dict[str, Any]]:
    """Return the results as plain JSON; each proof of replay with its leaf's path to the sealed root."""
    rows = [result.to_json() for result in results]
    if run.seal is None:
        return rows  # there is no root yet, so nobody could check a path
    tree = Tree([leaf for record in run.records for leaf in record.leaf_hashes()])
    ends = list(accumulate(len(record.leaves) for record in run.records))
    for row in rows:
        if row["proof_of_replay"] is not None:
            leaf = ends[row["index"]] - 1
            row["proof_of_replay"] |= {"leaf": leaf, "path": [h.hex() for h in tree.path(leaf)]}
    return rows


def challenge(run: Run, nonce: str) -> Challenge:
    """Return what draws the places that a proof of replay opens, from the run and the audit's nonce."""
    return Challenge(run.seal.root if run.seal is not None else run.records[-1].digest(), nonce)


def total_counts(results: Sequence[SegmentResult]) -> dict[str, dict[str, Any]]:
    """Return the sum of the counts per op class over segments."""
    total: dict[str, dict[str, Any]] = {}
    for result in results:
        for name, n in result.counts.items():
            into = total.setdefault(name, {"elements": 0, "entries": 0, "disagreements": 0, "max_distance": "0.000000"})
            for key in ("elements", "entries", "disagreements"):
                into[key] += n[key]
            for key in USES:  # absent in results of an auditor that does not tell entries apart
                if key in n:
                    into[key] = into.get(key, 0) + n[key]
            if "pushed" in n:
                into["pushed"] = f"{float(into.get('pushed', 0)) + float(n['pushed']):.6f}"
            into["max_distance"] = max(into["max_distance"], n["max_distance"], key=float)
    return total


def _head(run_id: str, result: Result, reason: Reason | None, message: str) -> dict[str, Any]:
    return {
        "format": VERDICT_FORMAT,
        "tool": f"verifiable-training {__version__}",
        "run_id": run_id,
        "verdict": str(result),
        "reason": None if reason is None else str(reason),
        "message": message[:MAX_MESSAGE],
    }
