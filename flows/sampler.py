"""The sampler: on a schedule, audit a random sample of what nobody has replayed yet."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.audit import audit
from flows.slots import release_dead_slots
from tasks.coverage import choose_unaudited, coverage
from tasks.store import open_store


@flow(name="audit-sampler", persist_result=False, validate_parameters=False)
def audit_sampler(
    store: str,
    segments: int = 3,
    data: str | None = None,
    device: str = "cpu",
    limits: dict[str, Any] | None = None,
    workspace: str = ".vt",
    replay_deployment: str | None = None,
) -> dict[str, Any]:
    """Audit ``segments`` randomly chosen segments of sealed runs that were never replayed.

    Returns run id -> verdict. The other parameters are those of the audit flow. One run that cannot be
    audited does not keep the others from it; the flow fails at the end if any could not.
    """
    log = get_run_logger()
    released = release_dead_slots()
    if released:
        log.warning("%d places under the store's limit were held by dead runs and are free again", released)
    chosen = choose_unaudited(coverage(open_store(store)), segments)
    log.info("chosen: %s", chosen or "nothing is left to audit")
    verdicts: dict[str, Any] = {}
    failed: list[str] = []
    for run_id, indices in chosen.items():
        try:
            verdict = audit(
                run_id, store, ",".join(map(str, indices)), data, device, limits, workspace,
                replay_deployment=replay_deployment,
            )  # fmt: skip
        except Exception as error:  # the other runs of the sample are audited all the same
            log.error("run %s could not be audited: %s", run_id, error)
            failed.append(run_id)
            continue
        verdicts[run_id] = {"verdict": verdict["verdict"], "reason": verdict["reason"], "segments": indices}
        log.info("run %s: %s", run_id, verdicts[run_id])
    if failed:
        raise RuntimeError(f"these runs could not be audited: {', '.join(failed)}")
    return verdicts
