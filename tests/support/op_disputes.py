"""Two parties record one step and a judge rules on the first record in which they differ; nothing else of the game."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from support.runs import Case as JobCase
from support.runs import SessionMaker

from vt_core.dispute.inputs import AgreedFacts, agreed_facts
from vt_core.dispute.judge import Case, judge_record
from vt_core.dispute.messages import Role
from vt_core.dispute.recorder import StepClaim, record_step
from vt_core.dispute.rules import Ruling
from vt_core.dispute.witness import Witness, parse_witness
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.step_record import StepLog, encode_step
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.training.state import State, digest


@dataclass
class Bench:
    """A job with its spec, the facts agreed on (none if ``agreed`` is False), and honest states, logs and claims."""

    case: JobCase
    agreed: bool = True
    facts: AgreedFacts | None = None
    _states: list[State] = field(default_factory=list)
    _logs: list[StepLog] = field(default_factory=list)
    _traces: list[bytes] = field(default_factory=list)
    _claims: dict[int, StepClaim] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job, self.dataset, self.spec = self.case.open()
        if self.agreed:
            self.facts = agreed_facts(self.session())
            self.spec = dataclasses.replace(self.spec, agreed=self.facts.digests())
        self._trainer = self.session()
        self._rounding = TrainerRounding(self._trainer.grid, self.spec.policy, self.spec.fingerprints)

    def session(self, make: SessionMaker = Session) -> Session:
        return make(self.spec, self.job, self.dataset)

    def before(self, step: int) -> State | None:
        """Return the honest state before ``step``, None for step 0."""
        return None if step == 0 else self.after(step - 1)[0]

    def after(self, step: int) -> tuple[State, StepLog, bytes]:
        """Return state, log and trace of honest and plain training up to ``step``."""
        session, rounding = self._trainer, self._rounding
        with session.open():
            while len(self._states) <= step:
                number = len(self._states)
                rounding.begin_step(number)
                outcome = session.initialise(rounding) if number == 0 else session.run_step(number, rounding)
                self._logs.append(rounding.end_step())
                self._states.append(session.capture(number))
                self._traces.append(outcome.trace)
        return self._states[step], self._logs[step], self._traces[step]

    def claim(self, step: int, make: SessionMaker = Session, log: StepLog | None = None) -> StepClaim:
        """Return what a party says about ``step``: a trainer, or with ``log`` an auditor."""
        honest = make is Session and log is None
        if honest and step in self._claims:
            return self._claims[step]
        session = self.session(make)
        with session.open():
            claim = record_step(session, self.before(step), step, log)
        if honest:
            self._claims[step] = claim
        return claim


@dataclass
class Difference:
    """The first record in which two claims differ."""

    bench: Bench
    step: int
    trainer: StepClaim
    auditor: StepClaim
    index: int

    @property
    def op(self) -> str:
        return str(json.loads(self.trainer.records[self.index])["op"])

    def case(self, **changes: Any) -> Case:
        """Return what the judge is asked, with ``changes``."""
        bench, step, index = self.bench, self.step, self.index
        before = bench.before(step)
        facts = bench.facts
        case = Case(
            spec=bench.spec,
            step=step,
            index=index,
            trainer=self.trainer.records[index],
            auditor=self.auditor.records[index],
            lookup=lambda j: self.trainer.records[:index][j],
            before=None if before is None else digest(before).root,
            log=hashlib.sha256(encode_step(self.trainer.log)).digest(),
            exhibits={} if facts is None else {Role.AUDITOR: facts.exhibit(step, index)},
        )
        return dataclasses.replace(case, **changes)

    def witness(self) -> Witness:
        with self.trainer._session.open():
            return parse_witness(self.trainer.witness(self.index).to_bytes())

    def rule(self) -> Ruling:
        """Ask the judge; hand over the trainer's witness if it wants one."""
        case = self.case()
        return judge_record(case) or judge_record(case, self.witness()) or _undecided()


def _undecided() -> Ruling:
    raise AssertionError("the judge asks for more than the witness")


def dispute(bench: Bench, step: int, trainer: SessionMaker = Session, auditor: SessionMaker = Session) -> Difference:
    """Let both parties record ``step`` from the honest state, the auditor with the trainer's log."""
    theirs = bench.claim(step, trainer)
    own = bench.claim(step, auditor, theirs.log)
    pairs = enumerate(zip(theirs.hashes(), own.hashes(), strict=False))
    index = next((i for i, (a, b) in pairs if a != b), None)
    assert index is not None, "the parties do not differ"
    return Difference(bench, step, theirs, own, index)


def at_step(cheat: type[Session], step: int) -> type[Session]:
    """Return a cheating session (``support.cheats.AtStep``) that cheats at ``step``."""
    return type(cheat.__name__, (cheat,), {"step": step})


def session_with(change: Any) -> SessionMaker:
    """Return a maker of sessions that are honest but for what ``change(session)`` does to them."""

    def make(spec: RunSpec, job: Any, dataset: Any) -> Session:
        session = Session(spec, job, dataset)
        change(session)
        return session

    return make
