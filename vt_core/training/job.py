"""What a training job is: the protocol between a user's model and the engine, and how a job is found by name.

A job is plain PyTorch code. It names no device, keeps no random state and never rounds: the engine does that
from outside. The one rule is that each of its methods is a pure function of its own arguments and of the
constructor's, because the auditor calls the same methods again on another machine.
"""

from __future__ import annotations

import abc
import importlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vt_core.errors import SpecError


class Stream(Protocol):
    """A counter-based random stream; each call continues where the last one stopped."""

    def uniform(self, n: int, /) -> npt.NDArray[np.float64]:
        """Return ``n`` float64 values in [0, 1)."""
        ...

    def integers(self, n: int, high: int, /) -> npt.NDArray[np.int64]:
        """Return ``n`` int64 values in [0, high)."""
        ...


@runtime_checkable
class Dataset(Protocol):
    """Training samples by index; it holds no position and no random state."""

    def __len__(self) -> int:
        """Return the number of training samples."""
        ...

    def batch(self, indices: npt.NDArray[np.int64], stream: Stream, /) -> dict[str, npt.NDArray[Any]]:
        """Return the samples ``indices`` (int64, shape (B,)) as named arrays, first axis B.

        A pure function of the indices and the stream. Floating arrays are float64 or float32 (the engine
        rounds them onto the grid); integer arrays are int64 and stay so. Augmentation draws from ``stream``.
        """
        ...

    def manifest(self) -> dict[str, str]:
        """Return name -> SHA-256 hex of all content that ``batch`` depends on, never of paths."""
        ...


class Job(abc.ABC):
    """A model, its data, its loss and its optimizer; subclass it to bring a job of your own.

    Constructor arguments must be keyword-friendly and JSON values (str, int, float, bool, None, lists), since
    they stand in the agreed run spec. Raise :class:`SpecError` for an unusable one.
    """

    batch_size: int
    """Samples a step."""

    @abc.abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model, initialised by ``torch.nn.init`` or module defaults.

        Called inside the engine, where torch's default dtype is the compute dtype: name no dtype, no device.
        """

    @abc.abstractmethod
    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of ``model``'s parameters."""

    @abc.abstractmethod
    def dataset(self, location: str | None) -> Dataset:
        """Return the dataset that lies at ``location`` on this machine (a path; not part of the run spec).

        Raises SpecError if the data is absent or malformed.
        """

    @abc.abstractmethod
    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the scalar loss of one batch (the arrays of :meth:`Dataset.batch` as tensors)."""

    def learning_rate(self, step: int) -> float | None:
        """Return the learning rate of ``step`` (counted from 1), or None to leave the optimizer's own.

        The engine rounds it to float32, so the last bits of ``math.cos`` do not matter.
        """
        return None

    def before_update(self, model: nn.Module) -> None:
        """Run between the backward pass and the optimizer's step, for example gradient clipping."""
        return None

    def evaluate(self, model: nn.Module, dataset: Dataset) -> dict[str, float]:
        """Return metrics on held-out data; outside the evidence, so it may use plain arithmetic."""
        return {}

    def sources(self) -> list[Path]:
        """Return the files whose digests go in the run spec, each once, in a stable order.

        By default the files of the job's class and of its bases up to :class:`Job`. A job with helper modules
        extends the list (see :func:`module_files`). Raises SpecError for a class without a file.
        """
        files: list[Path] = []
        for cls in type(self).__mro__:
            if not issubclass(cls, Job) or cls is Job:
                continue
            file = _source_file(cls, f"class {cls.__qualname__}")
            if file not in files:
                files.append(file)
        return files


def module_files(*modules: Any) -> list[Path]:
    """Return the source files of ``modules`` (module objects), for use in :meth:`Job.sources`."""
    return [_source_file(m, f"module {m.__name__}") for m in modules]


def load_job(reference: str, args: Mapping[str, Any] | None = None) -> Job:
    """Import and construct the job ``reference`` = ``"package.module:Class"`` with keyword ``args``.

    The module is found as by ``import``, so a user's own file works once its folder is on ``PYTHONPATH``.
    Raises SpecError for a malformed reference, a module that is absent or fails to import, a missing
    attribute, one that is no concrete Job subclass, and arguments that the constructor does not take.
    """
    cls = _find_class(reference)
    given = dict(args or {})
    _check_arguments(reference, cls, given)
    try:
        job: Job = cls(**given)
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError) as exc:
        raise SpecError(f"job {reference!r} does not accept the arguments {given!r}: {exc}") from exc
    size = getattr(job, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise SpecError(f"job {reference!r} has batch_size {size!r}; set self.batch_size to an int of 1 or more")
    return job


def _find_class(reference: str) -> type[Job]:
    module_name, colon, attribute = reference.partition(":")
    parts = module_name.split(".")
    if not colon or not attribute.isidentifier() or not all(p.isidentifier() for p in parts):
        raise SpecError(
            f"job reference {reference!r} is not of the form 'package.module:Class' "
            "(for example 'vt_core.jobs.digits:DigitsJob')"
        )
    # A run spec names the job, and importing executes: the standard library has modules that open a browser or end the
    # process with a code that would pass for a verdict, and a __main__ reads the command line as its own.
    if "__main__" in parts or parts[0] in sys.stdlib_module_names:
        raise SpecError(f"job reference {reference!r}: no job is in a __main__ module or in Python's own library")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise SpecError(
                f"job reference {reference!r}: there is no module {exc.name!r}; "
                "put the folder that holds it on PYTHONPATH"
            ) from exc
        raise SpecError(f"job module {module_name!r} needs the module {exc.name!r}, which is absent") from exc
    except (Exception, SystemExit) as exc:  # a user's module may fail in any way while it is imported
        raise SpecError(f"job module {module_name!r} failed to import: {type(exc).__name__}: {exc}") from exc
    if not hasattr(module, attribute):
        jobs = sorted(n for n, v in vars(module).items() if _is_job_class(v) and not inspect.isabstract(v))
        raise SpecError(
            f"module {module_name!r} has no attribute {attribute!r}; jobs in it: {', '.join(jobs) or 'none'}"
        )
    found = getattr(module, attribute)
    if not _is_job_class(found):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
        raise SpecError(f"{reference!r} is {kind}, not a subclass of vt_core.training.job.Job")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise SpecError(f"job {reference!r} is not complete; it lacks the methods {', '.join(missing)}")
    cls: type[Job] = found
    return cls


def _is_job_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Job) and value is not Job


def _check_arguments(reference: str, cls: type[Job], given: dict[str, Any]) -> None:
    """Raise SpecError that names the accepted arguments, before the constructor's own terser TypeError."""
    parameters = inspect.signature(cls).parameters.values()
    keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [p for p in parameters if p.kind in keyword]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    accepted = ", ".join(p.name if p.default is inspect.Parameter.empty else f"{p.name}={p.default!r}" for p in named)
    unknown = sorted(set(given) - {p.name for p in named})
    if unknown and not takes_any:
        raise SpecError(f"job {reference!r} has no argument {', '.join(unknown)}; it accepts: {accepted or 'none'}")
    absent = [p.name for p in named if p.default is inspect.Parameter.empty and p.name not in given]
    if absent:
        raise SpecError(f"job {reference!r} needs the argument {', '.join(absent)}; it accepts: {accepted}")


def _source_file(thing: Any, name: str) -> Path:
    try:
        file = inspect.getsourcefile(thing)
    except (TypeError, OSError):
        file = None
    if file is None or not Path(file).is_file():
        raise SpecError(f"{name} has no source file, so its digest cannot be agreed; put it in a .py file")
    return Path(file).resolve()
