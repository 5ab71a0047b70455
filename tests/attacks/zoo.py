"""The attack zoo: what an attack is, where it is mounted, and what has to come out.

Each file ``attack_NAME.py`` holds one ``ATTACK``: the description as data and a function that mounts it on a small
real run. The tests run all of them; ``python -m tests.attacks.table`` writes ``docs/attacks.md`` from the same data.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.forging import SEGMENT as SEGMENT
from support.runs import SMALL_DIGITS, Case, SessionMaker, StateChange, Trainer, audit, copy_run, read_commitments

from vt_core.errors import EvidenceError
from vt_core.evidence.records import Commitments
from vt_core.training.job import Dataset, Job
from vt_core.training.segment import FILES
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.verify.verdict import Reason, result_of

KINDS = ("data", "training", "compute", "code and spec", "log", "evidence", "signatures", "audit", "dispute")
OTHER = Case(SMALL_DIGITS.reference, SMALL_DIGITS.args, {**SMALL_DIGITS.train, "seed": 8})
"""Another honest run of the same job, for what is taken from elsewhere."""

SIGNED = ("agreement.json", "seal.note", "model.dsse.json")


@dataclass(frozen=True)
class Place:
    """Where a finding points. ``part`` is an operation with its module, a tensor, or a file."""

    segment: int | None = None
    step: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        named = [
            *([f"segment {self.segment}"] if self.segment is not None else []),
            *([f"step {self.step}"] if self.step is not None else []),
            *([f"`{self.part}`"] if self.part is not None else []),
        ]
        return ", ".join(named) or "the whole run"


@dataclass(frozen=True)
class Finding:
    """What a verifier says: result, reason code (None: nothing found) and place."""

    result: str
    reason: str | None = None
    place: Place = field(default_factory=Place)
    message: str = field(default="", compare=False)

    @staticmethod
    def of_verdict(verdict: Mapping[str, Any]) -> Finding:
        """Return the finding of an audit's verdict."""
        where = verdict["first_divergence"] or {}
        place = Place(where.get("segment"), where.get("step"), _part(verdict, where))
        return Finding(verdict["verdict"], verdict["reason"], place, verdict["message"])

    @staticmethod
    def of_error(error: EvidenceError) -> Finding:
        """Return the finding of a verifier that raised ``error``."""
        segment, step, file = (error.place.get(name) for name in ("segment", "step", "file"))
        place = Place(
            segment if isinstance(segment, int) else None,
            step if isinstance(step, int) else None,
            str(file) if file is not None else _named_file(str(error)),
        )
        return Finding(str(result_of(Reason(error.reason))), error.reason, place, str(error))


def _part(verdict: Mapping[str, Any], where: Mapping[str, Any]) -> str | None:
    if "op" in where:
        return f"{where['op']} ({where['module']})" if where["module"] else str(where["op"])
    if tensors := where.get("tensors"):
        return str(tensors[0]) + (" and others" if len(tensors) > 1 else "")
    if file := verdict.get("place", {}).get("file"):
        return str(file)
    return _named_file(verdict["message"])


def _named_file(message: str) -> str | None:
    return next((name for name in (*FILES, *SIGNED) if name in message), None)


VERIFIED = Finding("verified")


@dataclass(frozen=True)
class Mounted:
    """An attack that was carried out.

    ``honest`` and ``attacked`` stand for what would have been published and what was (a final state or a digest of
    bytes): they differ, or it was no attack. ``control`` is what the same verifier says of the honest run.
    """

    honest: str
    attacked: str
    control: Finding
    found: Finding


@dataclass(frozen=True)
class Attack:
    """One attack: what is done, what for, and where which verifier finds it with which reason code."""

    name: str
    kind: str
    does: str
    gain: str
    caught_by: str
    reason: str
    place: Place
    mount: Callable[[Lab], Mounted]
    result: str = "rejected"
    needs_log: bool = False
    """It lies in the log, so it cannot be mounted on a run whose operations all have one result."""

    @property
    def expected(self) -> Finding:
        """The finding that has to come out."""
        return Finding(self.result, self.reason, self.place)


@dataclass(frozen=True)
class ChangedCase(Case):
    """A case whose trainer publishes, and honestly follows, another spec, job or data than was agreed."""

    change: Callable[[Job, Dataset, RunSpec], tuple[Job, Dataset, RunSpec]] = lambda j, d, s: (j, d, s)

    def open(self) -> tuple[Job, Dataset, RunSpec]:
        return self.change(*super().open())


class Lab:
    """A folder for runs; honest runs and their audits are made once and shared."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self._honest: dict[str, Trainer] = {}
        self._control: dict[str, Finding] = {}
        self.shared: dict[str, Any] = {}  # for what several attacks of one kind build on

    def folder(self) -> Path:
        """Return the path of a new folder that does not exist yet."""
        self._count += 1
        return self._root / f"{self._count:03d}"

    def honest(self, case: Case = SMALL_DIGITS, run_id: str = "run") -> Trainer:
        """Return the honest run of ``case``; nobody may write into its folder."""
        key = _key(case, run_id)
        if key not in self._honest:
            self._honest[key] = Trainer(case, self.folder(), run_id=run_id).run()
        return self._honest[key]

    def control(self, case: Case = SMALL_DIGITS) -> Finding:
        """Return what an audit says of the honest run of ``case``."""
        key = _key(case)
        if key not in self._control:
            verdict = audit(self.honest(case).folder, location=case.location)
            self._control[key] = Finding.of_verdict(verdict)
        return self._control[key]

    def cheat(
        self,
        make: SessionMaker = Session,
        case: Case = SMALL_DIGITS,
        between: StateChange | None = None,
        last: int | None = None,
    ) -> Mounted:
        """Train ``case`` with a session that cheats, and audit what it publishes."""
        cheat = Trainer(case, self.folder(), make=make, between=between, last=last).run()
        verdict = audit(cheat.folder, location=case.location)
        return Mounted(self.honest(case).final, cheat.final, self.control(case), Finding.of_verdict(verdict))

    def disagree(self, change: Callable[[Job, Dataset, RunSpec], tuple[Job, Dataset, RunSpec]]) -> Mounted:
        """Train honestly what was not agreed: another spec, job or data, under evidence that says so."""
        agreed = SMALL_DIGITS
        case = ChangedCase(agreed.reference, agreed.args, agreed.train, agreed.location, change)
        run = Trainer(case, self.folder()).run()
        return self.compare(run.folder)

    def forge(self, change: Callable[[Path], Any]) -> Mounted:
        """Change a copy of the honest run's folder, and audit it."""
        folder = copy_run(self.honest().folder, self.folder())
        change(folder)
        return self.compare(folder)

    def compare(self, folder: Path, commitments: Commitments | None = None) -> Mounted:
        """Audit what lies in ``folder`` (or ``commitments``) against the honest run, by the bytes published."""
        verdict = audit(folder, commitments=commitments)
        attacked = tree_digest(folder) if commitments is None else commitments_digest(commitments)
        honest = self.honest().folder
        plain = tree_digest(honest) if commitments is None else commitments_digest(read_commitments(honest))
        return Mounted(plain, attacked, self.control(), Finding.of_verdict(verdict))


def tree_digest(folder: Path) -> str:
    """Return one SHA-256 over the names and bytes of all files below ``folder``."""
    hasher = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        hasher.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return hasher.hexdigest()


def commitments_digest(found: Commitments) -> str:
    """Return one SHA-256 over the commitments of a run."""
    objects = [found.spec, *found.segments, found.seal, found.agreement, found.note, found.model]
    return hashlib.sha256(b"".join(hashlib.sha256(o or b"").digest() for o in objects)).hexdigest()


def _key(case: Case, run_id: str = "run") -> str:
    return json.dumps([case.reference, dict(case.args), dict(case.train), case.location, run_id], sort_keys=True)


def load() -> list[Attack]:
    """Return all attacks, by kind and then by name."""
    files = sorted(Path(__file__).parent.glob("attack_*.py"))
    attacks = []
    for file in files:
        attack: Attack = importlib.import_module(f"attacks.{file.stem}").ATTACK
        if f"attack_{attack.name.replace('-', '_')}" != file.stem:
            raise ValueError(f"{file.name} holds an attack of another name: {attack.name}")
        attacks.append(attack)
    return sorted(attacks, key=lambda a: (KINDS.index(a.kind), a.name))
