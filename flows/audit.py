"""The audit flow: reads a run from the store alone, replays segments, gives a verdict."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_logger

from flows.artifacts import AuditArtifacts
from flows.observing import observed, segment_tags, store_tags
from flows.replay import replay_elsewhere
from tasks.auditing import Auditor, distinct_environments
from tasks.replays import Replayed
from tasks.runs import RunStore
from tasks.store import open_store
from vt_core.errors import EvidenceError
from vt_core.evidence.keys import read_signer_key
from vt_core.verify.limits import AuditorLimits, portable_limits
from vt_core.verify.verdict import SegmentResult

# A replay is never cached: a verdict that comes from a cache says nothing.


@task(
    task_run_name="prepare", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=[2, 10],
    timeout_seconds=6 * 3600,
    retry_condition_fn=lambda task, run, state: not isinstance(getattr(state, "data", None), EvidenceError),
)  # fmt: skip
def prepare(auditor: Auditor, segments: str, fetch: bool) -> list[int]:
    """Check commitments, code and data; choose segments and fetch their artifacts."""
    return auditor.prepare(segments) if fetch else auditor.choose(segments)


@task(task_run_name="replay-segment-{index}", cache_policy=NO_CACHE, persist_result=False)
def replay_segment(auditor: Auditor, index: int) -> SegmentResult:
    """Replay one segment."""
    return auditor.replay(index)


def run_audit(
    auditor: Auditor,
    segments: str,
    elsewhere: Callable[[list[int], Callable[[], None]], list[Replayed]] | None = None,
    report: Path | None = None,
) -> dict[str, Any]:
    """Audit a run; returns the verdict, which is stored as well. Call it inside a flow.

    ``elsewhere`` replays the chosen segments on other workers and calls its second argument after each; without it
    they are replayed here. ``report`` is where
    to write a report; the verdict then says under ``report`` where it is, None if it could not be written.
    """
    shown = AuditArtifacts(auditor.run.run_id)
    with observed(auditor.run.run_id, "audit"), auditor.open():
        try:
            with store_tags():
                chosen = prepare(auditor, segments, fetch=elsewhere is None)
        except EvidenceError as error:
            verdict = auditor.without_replay(error)
        else:
            environments = None
            if elsewhere is not None:
                replayed = elsewhere(chosen, shown.counting(len(chosen)))
                results = [r.result for r in replayed]
                environments = distinct_environments({r.result.index: r.trainer_environment for r in replayed})
            else:
                results = []
                for index in shown.progress(chosen):
                    with segment_tags(index):
                        results.append(replay_segment(auditor, index))
            verdict = auditor.conclude(results, environments)
        shown.conclude(verdict)
        shown.link(f"{auditor.run.store.verdicts.url}/{verdict['stored_as']}", "the stored verdict")
        if report is not None:
            verdict["report"] = _write_report(auditor, verdict, report)
        return verdict


@flow(name="audit", flow_run_name="audit-{run_id}", persist_result=False, validate_parameters=False)
def audit(
    run_id: str,
    store: str,
    segments: str = "all",
    data: str | None = None,
    device: str = "cpu",
    limits: dict[str, Any] | None = None,
    workspace: str = ".vt",
    keep: bool = False,
    replay_deployment: str | None = None,
    report: str | None = None,
    nonce: str | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """Audit ``run_id`` in ``store`` and return the verdict (see ``docs/verdicts.md``).

    ``segments``: ``all``, ``sample:N`` or numbers as in ``0,2,5-7``. ``data``: where this auditor's copy of the data
    lies. ``replay_deployment``: fan the replays out over that deployment's workers (``replay/default``) instead of
    replaying here. ``report``: write an HTML report to that file. ``nonce``: draws samples and proofs of
    replay (hex), if the client gives one. ``key``: path of the private key that signs the verdict, by default what
    VT_KEY names. Raises NotFound, StoreError and SpecError for
    problems that are not the trainer's.
    """
    run = RunStore(open_store(store), run_id)
    path = key or os.environ.get("VT_KEY")
    signer = None if path is None else read_signer_key(Path(path))
    own = AuditorLimits.from_params(limits)
    auditor = Auditor(run, Path(workspace) / "audit", own, data, device, keep, nonce, signer)
    target = None if report is None else Path(report)
    if replay_deployment is None:
        return run_audit(auditor, segments, report=target)
    elsewhere = portable_limits(limits, each=True)
    passed_on = {"store": store, "data": data, "device": device, "limits": elsewhere, "workspace": workspace}
    return run_audit(
        auditor,
        segments,
        lambda chosen, done: replay_elsewhere(run, chosen, auditor.nonce, replay_deployment, passed_on, done),
        target,
    )


def _write_report(auditor: Auditor, verdict: dict[str, Any], path: Path) -> str | None:
    """Write the report; whatever goes wrong with it is logged and leaves the verdict as it is."""
    from tasks.reporting import write_report  # matplotlib is slow to load, and most audits need none

    try:
        write_report(path, verdict, auditor.report_inputs(verdict))
    except Exception as error:
        get_logger("vt").error("the report %s could not be written: %s", path, error)
        return None
    return str(path)
