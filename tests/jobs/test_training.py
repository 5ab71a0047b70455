"""What every job must do: learn, in float32 and in float64, and stay in that precision."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vt_core.training.job import Dataset, Job, load_job

SMALL_NET = {"batch_size": 32, "width": 8, "lr": 0.01, "momentum": 0.8}
JOBS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "digits": ("vt_core.jobs.digits:DigitsJob", {}, "", 12),
    "resnet18": ("vt_core.jobs.cifar_resnet:CifarResNetJob", {**SMALL_NET, "clip_norm": 5.0}, "cifar", 24),
    "resnet50": ("vt_core.jobs.cifar_resnet:CifarResNetJob", {**SMALL_NET, "depth": 50}, "cifar", 24),
    "gpt2-byte": (
        "vt_core.jobs.gpt2_text:Gpt2TextJob",
        {"lr": 3e-3, "warmup": 2, "total_steps": 40},
        "text",
        12,
    ),
    "gpt2-bpe": (
        "vt_core.jobs.gpt2_text:Gpt2TextJob",
        {"tokens": "bpe", "vocab_size": 300, "lr": 3e-3},
        "text",
        12,
    ),
}


@pytest.fixture(params=list(JOBS))
def case(request: pytest.FixtureRequest, cifar_folder: Path, text_file: Path) -> tuple[Job, Dataset, int]:
    reference, args, data, steps = JOBS[request.param]
    location = {"": None, "cifar": str(cifar_folder), "text": str(text_file)}[data]
    job = load_job(reference, args)
    return job, job.dataset(location), steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_loss_falls(case: tuple[Job, Dataset, int], dtype: torch.dtype, train: Any) -> None:
    job, dataset, steps = case
    model, losses = train(job, dataset, steps, dtype)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-steps // 4 :]) < 0.9 * np.mean(losses[: steps // 4]), losses
    assert {p.dtype for p in model.parameters()} == {dtype}


def test_gradient_reaches_every_parameter(case: tuple[Job, Dataset, int], train: Any) -> None:
    job, dataset, _ = case
    model, _ = train(job, dataset, 1)
    dead = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.count_nonzero()]
    assert not dead


def test_every_parameter_is_in_the_optimizer_once(case: tuple[Job, Dataset, int]) -> None:
    job, _, _ = case
    model = job.build_model()
    held = [id(p) for group in job.build_optimizer(model).param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


class _NarrowTensors(TorchDispatchMode):
    """Notes operations that give a floating tensor of another dtype than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
                self.found.add(f"{func}: {value.dtype}")
        return out


def test_no_operation_leaves_float64(case: tuple[Job, Dataset, int], train: Any, default_dtype: Any) -> None:
    job, dataset, _ = case
    # Batches are made float64 before the step, so only the job itself could narrow anything.
    with _NarrowTensors() as watch, default_dtype(torch.float64):
        _train_one_step(job, dataset)
    assert not watch.found


def _train_one_step(job: Job, dataset: Dataset) -> None:
    class Fixed:
        def uniform(self, n: int) -> np.ndarray:
            return np.zeros(n)

        def integers(self, n: int, high: int) -> np.ndarray:
            return np.zeros(n, dtype=np.int64)

    arrays = dataset.batch(np.arange(job.batch_size), Fixed())
    batch = {n: torch.tensor(a.astype(np.float64) if a.dtype.kind == "f" else a) for n, a in arrays.items()}
    model = job.build_model()
    optimizer = job.build_optimizer(model)
    job.loss(model, batch).backward()
    job.before_update(model)
    optimizer.step()


def test_batches_are_pure_and_of_the_promised_types(case: tuple[Job, Dataset, int], stream: Any) -> None:
    _, dataset, _ = case
    indices = np.array([3, 0, 3, 7])
    first, again = dataset.batch(indices, stream(1)), dataset.batch(indices, stream(1))
    for name, array in first.items():
        assert array.dtype in (np.float32, np.float64, np.int64)
        assert array.shape[0] == 4
        assert array.tobytes() == again[name].tobytes()
        assert not np.array_equal(array[0], array[1]) or array.ndim == 1
    # What a caller does to a batch must not reach the data set.
    for array in first.values():
        if array.flags.writeable:
            array[...] = 0
    after = dataset.batch(indices, stream(1))
    assert all(after[name].tobytes() == again[name].tobytes() for name in again)


def test_evaluation_gives_numbers_and_leaves_the_model_alone(case: tuple[Job, Dataset, int], train: Any) -> None:
    job, dataset, _ = case
    model, _ = train(job, dataset, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    metrics = job.evaluate(model, dataset)
    assert metrics and all(np.isfinite(v) for v in metrics.values())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_sources_cover_every_module_the_job_runs(case: tuple[Job, Dataset, int]) -> None:
    job, dataset, _ = case
    needed = {type(job).__module__, type(job.build_model()).__module__, type(dataset).__module__}
    files = {Path(str(sys.modules[name].__file__)).resolve() for name in needed}
    assert files <= set(job.sources())
    assert len(job.sources()) == len(set(job.sources()))
