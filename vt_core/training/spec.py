"""The run spec: everything both sides agree on before training, as canonical JSON with one digest.

Floats are stored as hexadecimal strings and the seed as a decimal string, because canonical JSON (RFC 8785) cannot
hold them exactly. Where the data lies and which device runs is not part of the spec: each side has its own.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vt_core.engine.scale import LEAST_GROWTH
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps, float_from_hex, float_to_hex, loads_strict
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.outline import MAX_SEGMENT_STEPS, MAX_SEGMENTS, SPEC_FORMAT
from vt_core.evidence.outline import MAX_SPEC_BYTES as MAX_SPEC_BYTES
from vt_core.evidence.ranges import segment_count, segment_range
from vt_core.numerics import DEFAULT, Grid, OpClass, TolerancePolicy
from vt_core.numerics.scale import least_atol_exp
from vt_core.training.job import Dataset, Job

ENGINE = "4"  # raised whenever the engine would compute other bits or another trace for the same job
CONTRACTIONS = ("logged", "exact", "exact2")
FUNCTIONS = ("logged", "exact")
COMPUTE = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class RunSpec:
    """The agreed program of a run; see the module's docstring and ``docs/evidence.md``."""

    reference: str
    args: Mapping[str, Any]
    sources: Mapping[str, str]
    manifest: Mapping[str, str]
    dataset_size: int
    batch_size: int
    seed: int
    steps: int
    segment_steps: int
    commit_interval: int
    compute_dtype: str
    grid: str
    policy: TolerancePolicy
    fingerprints: bool
    promote: bool
    engine: str
    libraries: Mapping[str, str]
    contractions: str = "logged"
    """``logged``, or ``exact`` with one slice or ``exact2`` with two (``engine/exact_contractions.py``)."""
    functions: str = "logged"
    """``logged`` or ``exact`` (``engine/exact_functions.py``)."""
    agreed: Mapping[str, str] = field(default_factory=dict)
    """Roots over what each step is given and runs, ``SIZE:ROOT`` by name (``dispute/inputs.py``); optional."""

    @property
    def compute(self) -> torch.dtype:
        """The dtype in which every operation computes."""
        return COMPUTE[self.compute_dtype]

    @property
    def steps_per_epoch(self) -> int:
        """Steps until every sample was used once; an incomplete last batch is dropped."""
        return max(1, self.dataset_size // self.batch_size)

    @property
    def segment_count(self) -> int:
        """Number of segments: the initialisation (segment 0) and the training segments."""
        return segment_count(self.steps, self.segment_steps)

    def segment_range(self, index: int) -> tuple[int, int]:
        """Return (first step, last step) of a segment, both included; segment 0 is step 0, the initialisation."""
        if not 0 <= index < self.segment_count:
            raise SpecError(f"segment {index} does not exist: the run has segments 0 to {self.segment_count - 1}")
        return segment_range(self.steps, self.segment_steps, index)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as canonical-JSON-ready data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= {
            "format": SPEC_FORMAT,
            "args": encode(self.args),
            "sources": dict(self.sources),
            "manifest": dict(self.manifest),
            "libraries": dict(self.libraries),
            "seed": str(self.seed),
            "policy": self.policy.to_json(),
            "agreed": dict(self.agreed),
        }
        if not self.agreed:
            del plain["agreed"]
        if self.contractions == "logged":
            del plain["contractions"]
        if self.functions == "logged":
            del plain["functions"]
        return plain

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return dumps(self.to_json())

    def digest(self) -> str:
        """Return SHA-256 (hex) over the canonical bytes."""
        return sha256_bytes(self.to_bytes())


def parse_spec(data: bytes) -> RunSpec:
    """Read a spec from its canonical bytes. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "spec.json", MAX_SPEC_BYTES)
    try:
        if not isinstance(plain, dict) or plain.pop("format", None) != SPEC_FORMAT:
            raise ValueError(f"not a {SPEC_FORMAT} object")
        spec = RunSpec(
            **{
                **plain,
                "args": decode(plain["args"]),
                "seed": int(plain["seed"]),
                "policy": TolerancePolicy.from_json(plain["policy"]),
            }
        )
        _check_types(spec)
        _check(spec)
        if spec.to_bytes() != data:  # "07" and "7" as a seed: one spec must have one byte string and one digest
            raise ValueError("a value is not written in its canonical form")
    except (KeyError, TypeError, ValueError, AttributeError, SpecError) as error:
        raise EvidenceError("evidence_malformed", f"spec.json: {error}", file="spec.json") from error
    return spec


def _check_types(spec: RunSpec) -> None:
    for name in ("dataset_size", "batch_size", "seed", "steps", "segment_steps", "commit_interval"):
        if type(getattr(spec, name)) is not int:
            raise ValueError(f"{name} must be an integer")
    for name in ("reference", "compute_dtype", "grid", "engine", "contractions", "functions"):
        if type(getattr(spec, name)) is not str:
            raise ValueError(f"{name} must be a string")
    for name in ("fingerprints", "promote"):
        if type(getattr(spec, name)) is not bool:
            raise ValueError(f"{name} must be true or false")
    if not isinstance(spec.args, dict):
        raise ValueError("args must map names to values")
    for name in ("sources", "manifest", "libraries", "agreed"):
        value = getattr(spec, name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise ValueError(f"{name} must map names to strings")


def _check(spec: RunSpec) -> None:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", spec.reference):
        raise SpecError(f"job reference {spec.reference!r} is not of the form 'package.module:Class'")
    for name in ("steps", "segment_steps", "commit_interval", "batch_size", "dataset_size"):
        if getattr(spec, name) < 1:
            raise SpecError(f"{name} must be at least 1, not {getattr(spec, name)}")
    if spec.segment_steps > MAX_SEGMENT_STEPS:
        raise SpecError(f"segment_steps must be at most {MAX_SEGMENT_STEPS}, not {spec.segment_steps}")
    if spec.segment_count > MAX_SEGMENTS:
        raise SpecError(f"segment_steps makes {spec.segment_count} segments: at most {MAX_SEGMENTS} are allowed")
    if spec.dataset_size < spec.batch_size:
        raise SpecError(f"a batch of {spec.batch_size} is larger than the dataset of {spec.dataset_size} samples")
    for name, text in spec.agreed.items():
        if not re.fullmatch(r"(0|[1-9][0-9]{0,15}):[0-9a-f]{64}", text):
            raise SpecError(f"agreed.{name} must be a number of leaves and a root, 'SIZE:ROOT', not {text!r}")
    if not 0 <= spec.seed < 1 << 64:
        raise SpecError("seed must be between 0 and 2^64 - 1")
    if spec.compute_dtype not in COMPUTE:
        raise SpecError(f"compute_dtype must be one of {sorted(COMPUTE)}, not {spec.compute_dtype!r}")
    if spec.contractions not in CONTRACTIONS:
        raise SpecError(f"contractions must be one of {', '.join(CONTRACTIONS)}, not {spec.contractions!r}")
    if spec.functions not in FUNCTIONS:
        raise SpecError(f"functions must be one of {', '.join(FUNCTIONS)}, not {spec.functions!r}")
    if spec.contractions != "logged" and spec.compute_dtype != "float64":
        raise SpecError(f"contractions: {spec.contractions} needs compute_dtype float64: float32 has too few bits")
    for op_class in OpClass:
        # Short sums of products have a narrower tolerance than the policy says.
        least = least_atol_exp(spec.compute) - (LEAST_GROWTH if op_class is OpClass.CONTRACTION else 0)
        if spec.policy[op_class].atol_exp < least:
            raise SpecError(f"policy.{op_class}: atol_exp must be at least {least} for {spec.compute_dtype}")
    grid = Grid.parse(spec.grid)
    if spec.compute_dtype == "float32" and grid.precision > 16:
        raise SpecError(
            f"compute_dtype float32 leaves no room to round onto {spec.grid}: choose a grid of at most 16 significant "
            f"bits (bfloat16, float16, float32-d8), or compute_dtype float64"
        )


def build_spec(
    job: Job, dataset: Dataset, reference: str, args: Mapping[str, Any], train: Mapping[str, Any]
) -> RunSpec:
    """Make the spec of a run from a job, its dataset and the ``train`` section of the parameters.

    Raises SpecError, naming the parameter, for anything unknown or out of range.
    """
    known = {
        "seed": 0, "steps": None, "epochs": None, "segment_steps": None, "commit_interval": 1,
        "compute_dtype": "float64", "grid": "float32", "policy": None, "fingerprints": True, "promote": False,
        "device": "cpu", "contractions": None, "functions": None,
    }  # fmt: skip
    unknown = sorted(set(train) - set(known))
    if unknown:
        raise SpecError(f"unknown parameter in section 'train': {', '.join(unknown)}; known: {', '.join(known)}")
    given = {**known, **{k: v for k, v in train.items() if v is not None}}
    for name in ("seed", "steps", "epochs", "segment_steps", "commit_interval"):
        if given[name] is not None and (isinstance(given[name], bool) or not isinstance(given[name], int)):
            raise SpecError(f"train.{name} must be an integer, not {given[name]!r}")
    for name in ("fingerprints", "promote"):
        if not isinstance(given[name], bool):
            raise SpecError(f"train.{name} must be true or false, not {given[name]!r}")
    size = len(dataset)
    per_epoch = max(1, size // job.batch_size)
    if (given["steps"] is None) == (given["epochs"] is None):
        raise SpecError("give exactly one of train.steps and train.epochs")
    steps = given["steps"] if given["steps"] is not None else given["epochs"] * per_epoch
    compute = str(given["compute_dtype"])
    if compute not in COMPUTE:
        raise SpecError(f"train.compute_dtype must be one of {sorted(COMPUTE)}, not {compute!r}")
    policy = DEFAULT[compute]
    if given["policy"] is not None:
        try:
            policy = policy.changed(given["policy"])
        except (AttributeError, TypeError, ValueError, KeyError, SpecError) as error:
            raise SpecError(f"train.policy: {error}") from error
    spec = RunSpec(
        reference=reference,
        args=dict(args),
        sources=source_digests(job),
        manifest=dict(sorted(dataset.manifest().items())),
        dataset_size=size,
        batch_size=job.batch_size,
        seed=given["seed"],
        steps=steps,
        segment_steps=given["segment_steps"] or min(per_epoch, steps),
        commit_interval=given["commit_interval"],
        compute_dtype=compute,
        grid=str(given["grid"]),
        policy=policy,
        fingerprints=given["fingerprints"],
        promote=given["promote"],
        contractions=str(given["contractions"] or ("exact" if compute == "float64" else "logged")),
        functions=str(given["functions"] or "exact"),
        engine=ENGINE,
        libraries=libraries(),
    )
    _check(spec)
    return spec


def source_digests(job: Job) -> dict[str, str]:
    """Return file name -> SHA-256 of the job's sources, with line endings made equal (git may convert them)."""
    digests: dict[str, str] = {}
    for path in job.sources():
        text = Path(path).read_bytes().replace(b"\r\n", b"\n")
        name, found = Path(path).name, hashlib.sha256(text).hexdigest()
        if digests.setdefault(name, found) != found:
            raise SpecError(f"two of the job's source files are called {name!r}: rename one of them")
    return dict(sorted(digests.items()))


def libraries() -> dict[str, str]:
    """Return the versions of what computes: a different minor version may run another sequence of operations."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "numpy": np.__version__,
    }


def encode(value: Any) -> Any:
    """Return JSON-ready data with floats as {"float": hex}; raises SpecError for what JSON cannot hold."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else {"int": str(value)}
    if isinstance(value, float):
        return {"float": float_to_hex(value)}
    if isinstance(value, (list, tuple)):
        return [encode(v) for v in value]
    if isinstance(value, Mapping):
        if set(value) in ({"float"}, {"int"}):
            raise SpecError("a job argument must not be a mapping with the only key 'float' or 'int'")
        return {str(k): encode(v) for k, v in value.items()}
    raise SpecError(f"a job argument of type {type(value).__name__} cannot be put into the run spec")


def decode(value: Any) -> Any:
    """Undo :func:`encode`; raises ValueError or TypeError for malformed data."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float_from_hex(value["float"], "a scalar", finite=False)
        if set(value) == {"int"}:
            return int(value["int"])
        return {k: decode(v) for k, v in value.items()}
    return value
