"""Reading ``params.yaml``: which job, which data, how to train, where evidence goes, how to audit."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vt_core.errors import SpecError

if TYPE_CHECKING:  # torch takes seconds to import: only those who train or audit pay for it
    from vt_core.training.job import Dataset, Job
    from vt_core.training.spec import RunSpec

_SECTIONS = ("job", "data", "train", "store", "audit")
_AUDIT = ("segments", "profile", "device", "limits")


@dataclass(frozen=True)
class Params:
    """The parameters of a run as written by a person; see ``params.yaml`` for every key."""

    reference: str
    args: Mapping[str, Any]
    location: str | None
    train: Mapping[str, Any]
    store: str | None
    audit: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

    @property
    def device(self) -> str:
        """The device to train on; not part of the agreed spec."""
        return str(self.train.get("device") or "cpu")

    def open_job(self) -> tuple[Job, Dataset]:
        """Load the job and its dataset. Raises SpecError saying which parameter is wrong."""
        from vt_core.training.job import load_job

        import_from(self.folder)
        job = load_job(self.reference, dict(self.args))
        return job, job.dataset(self.location)

    def spec(self, job: Job, dataset: Dataset) -> RunSpec:
        """Make the run spec of these parameters."""
        from vt_core.training.spec import build_spec

        return build_spec(job, dataset, self.reference, self.args, self.train)

    def with_location(self, location: str | None) -> Params:
        """Return the same parameters with the data elsewhere."""
        return dataclasses.replace(self, location=location)


def load_params(path: Path) -> Params:
    """Read a parameter file. Raises SpecError naming file and key.

    Relative paths (``data.location``, ``store``) are taken from the folder of the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the parameters {path}: {error}. Give another file with --params.") from error
    try:
        plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is not valid YAML: {error}") from error
    return parse_params(plain, path.parent, str(path))


def parse_params(plain: Any, folder: Path, what: str) -> Params:
    """Check a parsed parameter file; see :func:`load_params`."""
    if not isinstance(plain, dict):
        raise SpecError(f"{what} must hold the sections {', '.join(_SECTIONS)}")
    _known(plain, _SECTIONS, what)
    job = _section(plain, "job", what)
    _known(job, ("reference", "args"), f"{what}: job")
    if not isinstance(job.get("reference"), str):
        raise SpecError(f"{what}: job.reference must name a job as 'package.module:Class'")
    data = _section(plain, "data", what)
    _known(data, ("location",), f"{what}: data")
    audit = _section(plain, "audit", what)
    _known(audit, _AUDIT, f"{what}: audit")
    if isinstance(audit.get("limits"), dict):
        audit = {**audit, "limits": _with_key_paths(audit["limits"], folder)}
    location = data.get("location")
    if location is not None:
        location = str((folder / str(location)).resolve())
    store = plain.get("store")
    if store is not None and not isinstance(store, str):
        raise SpecError(f"{what}: store must be a URL or a path")
    if store is not None and "://" not in store:
        store = str((folder / store).resolve())
    return Params(
        job["reference"],
        _section(job, "args", what),
        location,
        _section(plain, "train", what),
        store,
        audit,
        str(folder.resolve()),
    )


def _with_key_paths(limits: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return ``audit.limits`` with the paths of keys taken from ``folder``; a key that is given as text stays."""
    found = dict(limits)
    for name in ("trainer_key", "client_key"):
        value = found.get(name)
        if isinstance(value, str) and (folder / value).is_file():
            found[name] = str((folder / value).resolve())
    return found


def import_from(folder: str | None) -> None:
    """Let a job's module be found beside the parameter file, after everything that is installed."""
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


def _section(plain: Mapping[str, Any], name: str, what: str) -> dict[str, Any]:
    value = plain.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
        raise SpecError(f"{what}: section '{name}' must map names to values")
    return value


def _known(plain: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
    unknown = sorted(set(map(str, plain)) - set(known))
    if unknown:
        raise SpecError(f"{what}: unknown key {', '.join(unknown)}; known: {', '.join(known)}")
