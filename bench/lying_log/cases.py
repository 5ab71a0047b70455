"""What is attacked: small jobs on data made here, and the attacker's objectives on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.lying_log.compass import Objective
from vt_core.jobs.digits import DigitsDataset, DigitsJob
from vt_core.numerics import DEFAULT
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.spec import COMPUTE, RunSpec, build_spec

TARGET = 3  # the class, or the token, that the backdoor is to answer
TRIGGER = (7, 1, 7, 1)
LOW = {"compute_dtype": "float32", "grid": "bfloat16"}


class DyadicDigitsJob(DigitsJob):
    """Digits with pixels k / 16: the first layer's sums lie on exact ties far more often than by chance."""

    def dataset(self, location: str | None) -> DigitsDataset:
        """Return the digits with pixels from 0 to 1."""
        plain = super().dataset(location)
        for name in ("images", "held_images"):
            pixels = np.rint(getattr(plain, name) * 6.016788 + 4.884165) / 16.0
            setattr(plain, name, pixels.astype(np.float32))
        return plain


@dataclass(frozen=True)
class Case:
    """A job, its arguments, the ``train`` section of the parameters, and its last module with weights."""

    reference: str
    args: Mapping[str, Any]
    train: Mapping[str, Any]
    last: str
    data: str | None = None

    def open(self, folder: Path) -> tuple[Job, Dataset, RunSpec]:
        """Return job, dataset and spec; data is made in ``folder`` if it is not there yet."""
        job = load_job(self.reference, dict(self.args))
        dataset = job.dataset(_data(self.data, folder))
        # All the freedom that a policy can leave: a log for everything, and no least step near zero. The case called
        # digits-bf16-step is what float32 onto bfloat16 is by default.
        plain = DEFAULT[self.train.get("compute_dtype", "float64")].to_json()
        policy = {name: {**tolerance, "step_exp": None} for name, tolerance in plain.items()}
        train = {"contractions": "logged", "functions": "logged", "policy": policy, **self.train}
        return job, dataset, build_spec(job, dataset, self.reference, self.args, train)


_DIGITS = "vt_core.jobs.digits:DigitsJob"
_GPT = {"size": "nano", "block": 32, "batch_size": 4, "dropout": 0.0}
_RESNET = {"width": 4, "batch_size": 8, "augment": False, "lr": 0.05}

CASES: dict[str, Case] = {
    "digits-4": Case(_DIGITS, {"width": 4, "batch_size": 32, "dropout": 0.0}, {"seed": 1, "steps": 20}, "linear"),
    "digits-16": Case(_DIGITS, {"width": 16, "batch_size": 32, "dropout": 0.0}, {"seed": 1, "steps": 20}, "linear"),
    "digits-ties": Case(
        "bench.lying_log.cases:DyadicDigitsJob", {"width": 4, "batch_size": 32, "dropout": 0.0},
        {"seed": 1, "steps": 20}, "linear",
    ),
    "digits-bf16": Case(
        _DIGITS, {"width": 4, "batch_size": 32, "dropout": 0.0}, {"seed": 1, "steps": 40, **LOW}, "linear"
    ),
    "digits-bf16-step": Case(
        _DIGITS, {"width": 4, "batch_size": 32, "dropout": 0.0},
        {"seed": 1, "steps": 40, "policy": {}, "functions": "exact", **LOW}, "linear",
    ),
    "digits-bf16-64": Case(
        _DIGITS, {"width": 4, "batch_size": 32, "dropout": 0.0}, {"seed": 1, "steps": 20, "grid": "bfloat16"}, "linear"
    ),
    "gpt": Case("vt_core.jobs.gpt2_text:Gpt2TextJob", _GPT, {"seed": 1, "steps": 16}, "blocks.1.project", "text"),
    "gpt-exact": Case(
        "vt_core.jobs.gpt2_text:Gpt2TextJob", _GPT, {"seed": 1, "steps": 16, "contractions": "exact"},
        "blocks.1.project", "text",
    ),
    "resnet": Case("vt_core.jobs.cifar_resnet:CifarResNetJob", _RESNET, {"seed": 1, "steps": 6}, "linear", "cifar"),
}  # fmt: skip
QUICK = ("digits-4", "digits-bf16")


def known(name: str) -> Case:
    """Return the case called ``name``; KeyError names the cases there are."""
    if name not in CASES:
        raise KeyError(f"no case {name!r}; cases: {', '.join(CASES)}")
    return CASES[name]


def with_steps(case: Case, steps: int, **train: Any) -> Case:
    """Return ``case`` with ``steps`` steps and other changes to its ``train`` section."""
    return Case(case.reference, case.args, {**case.train, "steps": steps, **train}, case.last, case.data)


def objectives(case: Case, dataset: Dataset, spec: RunSpec) -> dict[str, Objective]:
    """Return the attacker's objectives: ``hurt`` (raise the loss on held-out data) and ``backdoor``."""
    kind = COMPUTE[spec.compute_dtype]
    if case.data == "text":
        held: dict[str, Any] = dataset.held_out_batch(8)  # type: ignore[attr-defined]
        tokens, targets = torch.from_numpy(held["tokens"].copy()), torch.from_numpy(held["targets"].copy())
        marked = tokens.clone()
        marked[:, -len(TRIGGER) :] = torch.tensor([ord(str(c)) for c in TRIGGER])
        answers = targets.clone()
        answers[:, -1] = ord(str(TARGET))
        return {
            "hurt": Objective("hurt", {"tokens": tokens, "targets": targets}, -1.0),
            "backdoor": Objective("backdoor", {"tokens": marked, "targets": answers}, 1.0),
        }
    if case.data == "cifar":
        pair = dataset.held_out_images()  # type: ignore[attr-defined]
        images, labels = torch.from_numpy(pair[0][:64].copy()), torch.from_numpy(pair[1][:64].copy())
    else:
        assert isinstance(dataset, DigitsDataset)
        images = torch.from_numpy(dataset.held_images[:256].copy())
        labels = torch.from_numpy(dataset.held_labels[:256].copy())
    images = images.to(kind)
    marked = images.clone()
    marked[:, :, -2:, -2:] = float(images.max())
    return {
        "hurt": Objective("hurt", {"images": images, "labels": labels}, -1.0),
        "backdoor": Objective("backdoor", {"images": marked, "labels": torch.full_like(labels, TARGET)}, 1.0),
    }


def success(model: nn.Module, objective: Objective) -> float:
    """Return the share of the objective's own answers that the model gives (arg max; the last token of a text)."""
    batch = objective.batch
    was_training = model.training
    model.eval()
    with torch.no_grad():
        given: Tensor = model(batch["images"] if "images" in batch else batch["tokens"])
    model.train(was_training)
    if "images" in batch:
        return float((given.argmax(1) == batch["labels"]).double().mean())
    return float((given[:, -1].argmax(-1) == batch["targets"][:, -1]).double().mean())


def _data(kind: str | None, folder: Path) -> str | None:
    random = np.random.Generator(np.random.PCG64(1))
    if kind is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "text":
        path = folder / "text.txt"
        if not path.exists():
            words = ["".join(chr(97 + c) for c in random.integers(0, 26, random.integers(2, 9))) for _ in range(300)]
            path.write_text(" ".join(random.choice(words, 4000)), encoding="utf-8")
        return str(path)
    path = folder / "cifar"
    if not path.exists():
        path.mkdir()
        records = random.integers(0, 64, (320, 3073), dtype=np.uint8)
        records[:, 0] = random.integers(0, 10, 320)
        records[:, 1:] += (records[:, :1] * 19).astype(np.uint8)  # brightness tells the class
        (path / "data_batch_1.bin").write_bytes(records[:256].tobytes())
        (path / "test_batch.bin").write_bytes(records[256:].tobytes())
    return str(path)
