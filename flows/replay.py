"""One replay in a worker of its own: audits fan out over the auditor pool, one run of this flow a segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from prefect import flow, get_client
from prefect.client.schemas.objects import DeploymentStatus
from prefect.context import get_run_context
from prefect.deployments import run_deployment
from prefect.logging import get_run_logger

from flows.observing import observed, segment_tags
from tasks.auditing import Auditor
from tasks.replays import ReplayBoard, Replayed
from tasks.runs import RunStore
from tasks.store import open_store
from vt_core.errors import EvidenceError, VtError
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

MAX_PARALLEL = 64  # runs asked for at once; how many work at once is up to the pool's workers


@flow(name="replay", flow_run_name="replay-{run_id}-{index}", persist_result=False, validate_parameters=False)
def replay(
    run_id: str,
    store: str,
    index: int,
    audit: str,
    data: str | None = None,
    device: str = "cpu",
    limits: dict[str, Any] | None = None,
    workspace: str = ".vt",
) -> str:
    """Replay segment ``index`` for audit ``audit`` and leave the result in the store; returns what it says."""
    run = RunStore(open_store(store), run_id)
    auditor = Auditor(run, Path(workspace) / "audit", AuditorLimits.from_params(limits), data, device, nonce=audit)
    environment: Mapping[str, Any] | None = None
    with observed(run_id, f"replay-{index}"), segment_tags(index), auditor.open():
        try:
            auditor.prepare(str(index))
            result = auditor.replay(index)
            environment = auditor.trainer_environment(index)
        except EvidenceError as error:  # the commitments changed under our hands
            result = SegmentResult(index, 0, 0, Reason(error.reason), str(error), Divergence(index))
    ReplayBoard(run, audit).put(result, environment)
    return str(result.result)


def replay_elsewhere(
    run: RunStore, chosen: list[int], audit: str, deployment: str, parameters: dict[str, Any],
    done: Callable[[], None] = lambda: None,
) -> list[Replayed]:  # fmt: skip
    """Run deployment ``deployment`` once for each chosen segment and collect the results from the store.

    ``audit`` is the audit's nonce; ``done`` is called after each segment.
    Segments are independent, so N workers give close to N times the throughput. Raises VtError if a worker failed to
    hand over a result: an audit with a hole is no audit.
    """
    get_run_context()  # only inside a flow: the replays become its children
    with get_client(sync_client=True) as client:
        known = client.read_deployment_by_name(deployment)
        if known.status == DeploymentStatus.NOT_READY:
            get_run_logger().warning(
                "no worker serves the pool %r of %s: the audit waits until one does", known.work_pool_name, deployment
            )

    def one(index: int) -> None:
        run_deployment(
            deployment,
            parameters={"run_id": run.run_id, "index": index, "audit": audit, **parameters},
            flow_run_name=f"replay-{run.run_id}-{index}",
            tags=[f"run:{run.run_id}", f"segment:{index}"],
            poll_interval=1,
            as_subflow=False,
        )

    with ThreadPoolExecutor(max_workers=min(MAX_PARALLEL, max(1, len(chosen)))) as pool:
        for waiting in as_completed([pool.submit(one, index) for index in chosen]):
            waiting.result()
            done()
    found = ReplayBoard(run, audit).get(chosen)
    missing = [index for index in chosen if index not in found]
    if missing:
        raise VtError(
            f"no result for segments {missing} of run {run.run_id!r}: their workers failed, see the flow runs named "
            f"replay-{run.run_id}-N. Start the audit again."
        )
    return [found[index] for index in chosen]
