"""The train flow: one Prefect task trains a segment, one publishes it; a killed run goes on where it stopped."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.futures import PrefectFuture

from flows.observing import observed, segment_tags, store_tags
from tasks.training import Trainer, open_trainer
from vt_core.errors import SpecError
from vt_core.evidence.records import Seal, SegmentRecord
from vt_core.training.segment import SegmentDraft

STORE_TIMEOUT_S = 6 * 3600
"""A transfer that takes longer than this hangs; it is tried again."""

# A training step is never cached: an equal tensor would not hit the cache, and an unequal one must not.


@task(task_run_name="train-segment-{index}", cache_policy=NO_CACHE, persist_result=False)
def train_segment(trainer: Trainer, index: int) -> SegmentDraft:
    """Train one segment; its checkpoint is written when it is published."""
    return trainer.run_steps(index)


@task(
    task_run_name="publish-segment-{index}", cache_policy=NO_CACHE, persist_result=False,
    retries=3, retry_delay_seconds=[2, 10, 30], retry_jitter_factor=0.5, timeout_seconds=STORE_TIMEOUT_S,
    retry_condition_fn=lambda task, run, state: not isinstance(_error(state), SpecError),
)  # fmt: skip
def publish_segment(trainer: Trainer, index: int, segment: SegmentDraft) -> SegmentRecord:
    """Write the segment's files, push them and commit to them; the store may be away for a while."""
    return trainer.publish(segment)


@task(task_run_name="seal", cache_policy=NO_CACHE, persist_result=False, retries=3, retry_delay_seconds=[2, 10, 30])
def seal_run(trainer: Trainer) -> Seal:
    """Commit to the whole run."""
    return trainer.seal()


def run_segments(trainer: Trainer) -> dict[str, Any]:
    """Train, publish and seal what is missing of a run; returns the summary. Call it inside a flow."""
    started = time.perf_counter()
    with observed(trainer.run.run_id, "train"), trainer.open():
        _train_and_publish(trainer)
        summary = trainer.summary(seal_run(trainer), time.perf_counter() - started)
    # Starts an audit where a deployment listens for it (prefect.yaml); elsewhere it is only a note.
    emit_event(
        event="vt.run.sealed",
        resource={"prefect.resource.id": f"vt.run.{summary['run_id']}"},
        payload={"run_id": summary["run_id"], "store": summary["store"], "root": summary["root"]},
    )
    return summary


def _train_and_publish(trainer: Trainer) -> None:
    """Train segment after segment; each is written and published while the next one computes.

    One at a time and in order, for each record names the one before. A failure to publish ends the run before the next
    segment is handed over, with its own error.
    """
    publishing: PrefectFuture[SegmentRecord] | None = None
    try:
        for index in range(trainer.begin(), trainer.published.segment_count):
            with segment_tags(index):
                segment = train_segment(trainer, index)
                if publishing is not None:
                    publishing.result()
                with store_tags():
                    publishing = publish_segment.submit(trainer, index, segment)
        if publishing is not None:
            publishing.result()
    except Exception:
        if publishing is not None:
            publishing.wait()  # a whole segment: it counts, whatever stopped the one behind it
        raise


@flow(name="train", persist_result=False, validate_parameters=False)
def train(
    params: str = "params.yaml",
    store: str | None = None,
    run_id: str | None = None,
    workspace: str = ".vt",
    spec: str | None = None,
    data: str | None = None,
    device: str | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """Train the run that the parameter file or an agreed ``spec`` (a path or URL) describes.

    Returns run id, state digest, root and sizes. A run of the same ``run_id`` is resumed. ``key`` is the path of the
    private key that signs the seal, by default what VT_KEY names: the server keeps parameters, so never the key itself.
    Raises SpecError, StoreError, and the engine's errors.
    """
    key = key or os.environ.get("VT_KEY")
    return run_segments(open_trainer(Path(params), store, run_id, Path(workspace), spec, data, device, key))


def _error(state: Any) -> BaseException | None:
    data = getattr(state, "data", None)
    return data if isinstance(data, BaseException) else None
