"""A process of its own, since a CPU profile is chosen by the environment before the libraries load.

``python -m support.worker train FOLDER JOBS`` trains the named jobs under this process's profile, verified and plain,
into ``FOLDER/PROFILE/JOB``; ``... audit FOLDER JOBS PROFILES`` audits the runs that other profiles made. The result is
one JSON object, ``FOLDER/train-PROFILE.json`` or ``FOLDER/audit-PROFILE.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.runs import DIGITS, GPT, RESNET, Case, Trainer, audit

from vt_core.engine.profiles import CHANNELS_LAST, current_profile
from vt_core.engine.streams import Streams
from vt_core.numerics import OpClass
from vt_core.training.sampler import Sampler
from vt_core.verify.limits import AuditorLimits

LOW_POLICY = {
    "contraction": {"rtol_exp": None, "atol_exp": -16},
    "reduction": {"rtol_exp": None, "atol_exp": -16},
}
"""Wider than the default for float32 compute, which two memory layouts exceed (1.3 tolerances were seen)."""

USUAL = ("digits", "resnet", "gpt")
LOW = tuple(f"{name}-low" for name in USUAL)
NARROW = ("gpt-narrow", "digits-low-narrow")


def cases(folder: Path) -> dict[str, Case]:
    """Return the jobs, small; ``folder`` holds the data.

    USUAL: float64 onto float32, where a few steps rarely need the log. LOW: the same at float32 onto bfloat16, where
    two profiles round many elements differently, so that a replay without the log fails. NARROW: a tolerance that real
    hardware exceeds.
    """
    gpt = {"size": "nano", "block": 32, "batch_size": 4, "dropout": 0.1, "clip_norm": 1.0, "warmup": 2}
    resnet = {"batch_size": 8, "width": 8, "weight_decay": 5e-4, "momentum": 0.9, "clip_norm": 1.0, "warmup_steps": 1}
    text = str(folder / "text.txt")
    usual = {
        "digits": Case(DIGITS, {"width": 8, "batch_size": 32}, {"seed": 3, "steps": 4, "segment_steps": 2}),
        "resnet": Case(
            RESNET,
            {**resnet, "cosine_steps": 4, "augment": True},
            {"seed": 4, "steps": 2, "segment_steps": 1},
            str(folder / "cifar"),
        ),
        "gpt": Case(GPT, {**gpt, "total_steps": 8}, {"seed": 5, "steps": 6, "segment_steps": 3}, text),
    }
    low = {"compute_dtype": "float32", "grid": "bfloat16"}
    lower = {
        f"{n}-low": Case(c.reference, c.args, {**c.train, **low, "policy": LOW_POLICY}, c.location)
        for n, c in usual.items()
    }
    narrow = {
        "gpt-narrow": Case(
            GPT, {**gpt, "total_steps": 8}, {"seed": 5, "steps": 6, "segment_steps": 6, "policy": everywhere(-56)}, text
        ),
        "digits-low-narrow": Case(
            DIGITS,
            {"width": 8, "batch_size": 32},
            {"seed": 3, "steps": 8, "segment_steps": 8, **low, "policy": everywhere(-23)},
        ),
    }
    return {**usual, **lower, **narrow}


def everywhere(atol_exp: int) -> dict[str, Any]:
    """Return a policy of one absolute tolerance for all op classes."""
    return {str(c): {"rtol_exp": None, "atol_exp": atol_exp} for c in OpClass}


def limits() -> AuditorLimits:
    """Return what the auditor accepts: the default, and LOW_POLICY for float32."""
    return AuditorLimits.from_params({"policy": {"float32": LOW_POLICY}})


def plain_training(case: Case, dtype: torch.dtype) -> str:
    """Train as everybody does, without the engine, from the same start everywhere; returns a digest of the result.

    Dropout is off: it draws from the device's own generator.
    """
    args = {k: v for k, v in case.args.items() if k != "dropout"}
    args |= {} if case.reference == RESNET else {"dropout": 0.0}
    job, dataset, spec = Case(case.reference, args, case.train, case.location).open()
    torch.set_default_dtype(dtype)
    streams = Streams(spec.seed)
    sampler = Sampler(streams, spec.dataset_size, spec.batch_size)
    model = job.build_model().train()
    generator = np.random.Generator(np.random.PCG64(1))
    channels_last = os.environ.get(CHANNELS_LAST) == "1"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = generator.uniform(-0.1, 0.1, parameter.shape)
            gain = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_(torch.from_numpy(noise) + gain)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = job.build_optimizer(model)
    for step in range(1, spec.steps + 1):
        stream = streams.stream("augment", epoch=sampler.epoch(step), step=step)
        arrays = dataset.batch(sampler.indices(step), stream)
        batch = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()}
        batch = {n: t.to(dtype) if t.is_floating_point() else t for n, t in batch.items()}
        if channels_last:
            batch = {
                n: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for n, t in batch.items()
            }
        rate = job.learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else float(np.float32(rate))
        optimizer.zero_grad(set_to_none=True)
        job.loss(model, batch).backward()
        job.before_update(model)
        optimizer.step()
    hasher = hashlib.sha256()
    for parameter in model.parameters():
        hasher.update(parameter.detach().contiguous().numpy().tobytes())
    torch.set_default_dtype(torch.float32)
    return hasher.hexdigest()


def train(folder: Path, jobs: list[str]) -> dict[str, Any]:
    """Train jobs, verified and (the usual ones) plain; returns job -> digests of the results."""
    result: dict[str, Any] = {}
    for name in jobs:
        case = cases(folder)[name]
        trainer = Trainer(case, folder / (current_profile() or "default") / name).run()
        result[name] = {"final": trainer.final}
        if name in USUAL:
            result[name] |= {
                "float32": plain_training(case, torch.float32),
                "float64": plain_training(case, torch.float64),
            }
    return result


def audit_all(folder: Path, jobs: list[str], profiles: list[str]) -> dict[str, Any]:
    """Audit the runs of the other profiles; returns job -> profile -> verdict."""
    others = [p for p in profiles if p != current_profile()]
    known = cases(folder)
    return {
        name: {p: audit(folder / p / name, location=known[name].location, limits=limits()) for p in others}
        for name in jobs
    }


def main() -> None:
    """Do one part and write its result."""
    part, folder, jobs = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
    result = train(folder, jobs) if part == "train" else audit_all(folder, jobs, sys.argv[4].split(","))
    (folder / f"{part}-{current_profile()}.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
