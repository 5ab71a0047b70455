"""Training as everybody does it, without the engine: what verified training is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vt_core.engine.streams import Streams
from vt_core.training.job import Dataset, Job
from vt_core.training.sampler import Sampler
from vt_core.training.spec import RunSpec


def plain_steps(job: Job, dataset: Dataset, spec: RunSpec, model: nn.Module, dtype: torch.dtype) -> Iterator[Tensor]:
    """Train ``model`` on the batches and learning rates of ``spec`` in ``dtype``; yields the loss of each step."""
    optimizer = job.build_optimizer(model)
    streams = Streams(spec.seed)
    sampler = Sampler(streams, spec.dataset_size, spec.batch_size)
    for step in range(1, spec.steps + 1):
        stream = streams.stream("augment", epoch=sampler.epoch(step), step=step)
        arrays = dataset.batch(sampler.indices(step), stream)
        batch = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
        rate = job.learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else float(np.float32(rate))
        optimizer.zero_grad(set_to_none=True)
        loss = job.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        job.before_update(model)
        optimizer.step()
        yield loss.detach()
