"""The parts of the demonstration that need a process of their own: another CPU profile is another process.

``python -m flows.cli.demo_parts plain|train|audit FOLDER`` writes ``FOLDER/PART[-PROFILE].json`` (and parameters).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flows import settings

SEED, EPOCHS, CHEAT_SEGMENT, POISONED_SAMPLE = 7, 3, 2, 123
REFERENCE = "vt_core.jobs.digits:DigitsJob"
HONEST, CHEAT = "honest", "poisoned"


def plain_training(folder: Path) -> dict[str, Any]:
    """Train the job as everybody does, in float32 without the engine, and save the final parameters."""
    import numpy as np
    import torch

    from vt_core.engine.profiles import current_profile
    from vt_core.engine.streams import Streams
    from vt_core.training.job import load_job
    from vt_core.training.sampler import Sampler

    torch.manual_seed(SEED)
    job = load_job(REFERENCE, {"dropout": 0.0})
    dataset, streams = job.dataset(None), Streams(SEED)
    sampler = Sampler(streams, len(dataset), job.batch_size)
    # The same start on both profiles: what differs in the end comes from training alone.
    model = job.build_model()
    generator = np.random.Generator(np.random.PCG64(SEED))
    with torch.no_grad():
        for parameter in model.parameters():
            noise = generator.uniform(-0.1, 0.1, parameter.shape).astype(np.float32)
            parameter.copy_(torch.from_numpy(noise) + (1.0 if parameter.dim() == 1 else 0.0))
    optimizer = job.build_optimizer(model.train())
    for step in range(1, EPOCHS * (len(dataset) // job.batch_size) + 1):
        arrays = dataset.batch(sampler.indices(step), streams.stream("augment", step=step))
        batch = {n: torch.from_numpy(a) for n, a in arrays.items()}
        batch = {n: t.to(torch.float32) if t.is_floating_point() else t for n, t in batch.items()}
        optimizer.zero_grad()
        job.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    final = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    profile = current_profile() or "default"
    np.save(folder / f"plain-{profile}.npy", final)
    return {"profile": profile, "parameters": int(final.size)}


class PoisonedDataset:
    """The agreed dataset with one wrong label: what a cheating trainer feeds in secret."""

    def __init__(self, honest: Any) -> None:
        self._honest = honest

    def __len__(self) -> int:
        return len(self._honest)

    def batch(self, indices: Any, stream: Any) -> dict[str, Any]:
        """Return the agreed batch, but sample 123 gets the label of another digit."""
        batch: dict[str, Any] = self._honest.batch(indices, stream)
        labels = next(name for name, array in batch.items() if array.dtype.kind == "i")
        poisoned = batch[labels].copy()
        poisoned[indices == POISONED_SAMPLE] = (poisoned[indices == POISONED_SAMPLE] + 1) % 10
        return {**batch, labels: poisoned}

    def manifest(self) -> dict[str, str]:
        """Claim to be the agreed dataset."""
        manifest: dict[str, str] = self._honest.manifest()
        return manifest


def train_both(folder: Path) -> dict[str, Any]:
    """Train the run twice under Prefect: honestly, and with one poisoned label in segment 2."""
    from prefect import flow

    from flows.train import publish_segment, run_segments, seal_run, train_segment
    from tasks.params import Params
    from tasks.runs import RunStore
    from tasks.store import open_store
    from tasks.training import Trainer

    params = Params(REFERENCE, {}, None, {"seed": SEED, "epochs": EPOCHS}, str(folder / "store"))

    def trainer_of(run_id: str) -> Trainer:
        job, dataset = params.open_job()
        run = RunStore(open_store(str(folder / "store"), create=True), run_id)
        return Trainer(run, folder / "trainer", params.spec(job, dataset), job, dataset)

    @flow(name="train", flow_run_name=HONEST, persist_result=False)
    def honest() -> dict[str, Any]:
        return run_segments(trainer_of(HONEST))

    @flow(name="train", flow_run_name=CHEAT, persist_result=False)
    def cheating() -> dict[str, Any]:
        trainer = trainer_of(CHEAT)
        agreed = trainer.session.dataset
        with trainer.open():
            for index in range(trainer.begin(), trainer.published.segment_count):
                trainer.session.dataset = PoisonedDataset(agreed) if index == CHEAT_SEGMENT else agreed
                publish_segment(trainer, index, train_segment(trainer, index))
            return trainer.summary(seal_run(trainer), 0.0)

    return {HONEST: honest(), CHEAT: cheating()}


def audit_both(folder: Path) -> dict[str, Any]:
    """Audit both runs from the store alone."""
    from flows.audit import audit

    store, workspace = str(folder / "store"), str(folder / "auditor")
    return {run: audit(run, store, workspace=workspace) for run in (HONEST, CHEAT)}


def main() -> None:
    """Run one part and write its result."""
    settings.apply()
    part, folder = sys.argv[1], Path(sys.argv[2])
    result = {"plain": plain_training, "train": train_both, "audit": audit_both}[part](folder)
    suffix = f"-{result['profile']}" if part == "plain" else ""
    (folder / f"{part}{suffix}.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
