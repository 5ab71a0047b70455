"""Disputes about made-up runs: steps of small op records whose truth everybody can compute, for testing the game alone.

A record holds the value of one op, which is a hash of the step, the index and the values it uses. The last record of
a step leads to the state root, a hash over all values and the state before. The judge knows the truth.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from support.runs import SMALL_DIGITS

from vt_core.dispute.answers import Received
from vt_core.dispute.bisection import leaf_count, leaf_steps
from vt_core.dispute.claims import StepDigests
from vt_core.dispute.messages import OTHER, PARTIES, Role, Subject, file_name
from vt_core.dispute.party import Claim, LeafContent, Party, Reply
from vt_core.dispute.referee import Referee
from vt_core.dispute.rules import Fault, Need, Question, Rules, Ruling, StepEnd
from vt_core.dispute.transcript import SEAL, SPEC, MemoryFiles, part_name
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.evidence.records import Seal
from vt_core.evidence.work import leaf_data
from vt_core.training.spec import RunSpec

KEYS = {role: SignerKey.generate(str(role)) for role in Role}
PUBLIC = {role: key.verifier for role, key in KEYS.items()}
DEADLINE = 1000


def sha(*pieces: object) -> bytes:
    return hashlib.sha256("|".join(map(str, pieces)).encode()).digest()


@cache
def _base_spec() -> RunSpec:
    return SMALL_DIGITS.open()[2]


def spec_of(steps: int, segment_steps: int = 100, interval: int = 1) -> RunSpec:
    """A spec with any number of steps; nothing of it is ever trained."""
    return dataclasses.replace(_base_spec(), steps=steps, segment_steps=segment_steps, commit_interval=interval)


@dataclass(frozen=True)
class Lie:
    """From op ``op`` of step ``step`` on, somebody claims other values. ``longer``: claims so many records more."""

    step: int
    op: int
    longer: int = 0


@dataclass
class FakeStep:
    records: list[bytes]
    wrong_witness: bool = False
    shows_nothing: bool = False

    def witness(self, index: int) -> bytes:
        return b"no such inputs" if self.wrong_witness else inputs_of(json.loads(self.records[index]))

    def exhibit(self, index: int) -> bytes:
        record = json.loads(self.records[index])
        if self.shows_nothing:
            return b""
        return json.dumps([record.get("program")]).encode() if "program" in record else b""


def inputs_of(record: Mapping[str, Any]) -> bytes:
    return json.dumps([record["step"], record["index"], record["uses"]]).encode()


@dataclass
class FakeClaim:
    """A party's claim: the true run, or one with a lie in it. ``ops``: records a step, beside the last."""

    spec: RunSpec
    ops: int = 5
    lie: Lie | None = None
    wrong_witness: bool = False
    work_lie: int | None = None
    log_lie: int | None = None
    program_lie: tuple[int, int] | None = None
    shows_nothing: bool = False
    steps: list[StepDigests] = field(default_factory=list)
    leaves: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        state = b""
        for step in range(self.spec.steps + 1):
            state = sha(step, state.hex(), self._lie_at(step))
            self.steps.append(StepDigests(state, sha("log", step, self.log_lie == step), self._trace(step)))
        for index in range(leaf_count(self.spec)):
            self.leaves.append(self._leaf_hash(index))

    def _lie_at(self, step: int) -> str:
        lies = self.lie and self.lie.step == step, self.program_lie and self.program_lie[0] == step
        return f"{self.lie} {self.program_lie}" if any(lies) else ""

    def _trace(self, step: int) -> bytes:
        return sha("trace", step, self.lie.longer if self.lie and self.lie.step == step else 0)

    def _leaf_hash(self, index: int) -> bytes:
        return leaf_hash(leaf_data(leaf_steps(self.spec, index)[2], *self._digests(index)))

    def _digests(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        content = self.leaf(index)
        log = hashlib.sha256(b"".join(s.log for s in content.steps)).digest()
        trace = hashlib.sha256(b"".join(s.trace for s in content.steps)).digest()
        return content.steps[-1].state, log, trace, content.work

    def leaf_hashes(self) -> Sequence[bytes]:
        return self.leaves

    def leaf(self, index: int) -> LeafContent:
        _, first, last = leaf_steps(self.spec, index)
        return LeafContent(self.steps[first : last + 1], sha("work", index, self.work_lie == index))

    def before(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        return self._digests(index - 1)

    def step(self, step: int) -> FakeStep:
        lie = self.lie if self.lie and self.lie.step == step else None
        count = self.ops + (lie.longer if lie else 0)
        records = []
        for i in range(count):
            value = truth(step, i) + (1 if lie and i >= lie.op else 0)
            uses = sorted({j for j in (i - 1, i // 2) if 0 <= j < i})
            program = "other" if self.program_lie == (step, i) else "agreed"
            record = {"step": step, "index": i, "uses": uses, "value": value, "program": program}
            records.append(json.dumps(record).encode())
        end = self.steps[step]
        records.append(json.dumps({"end": step, "state": end.state.hex(), "trace": end.trace.hex()}).encode())
        return FakeStep(records, self.wrong_witness, self.shows_nothing)

    def seal(self) -> Seal:
        return Seal("run", self.spec.digest(), ["0" * 64], len(self.leaves), root(self.leaves).hex(), "0" * 64)


def truth(step: int, index: int) -> int:
    return int.from_bytes(sha("truth", step, index)[:4], "big")


class FakeRules:
    """The judge of made-up records."""

    def end(self, record: bytes) -> StepEnd:
        plain = json.loads(record)
        return StepEnd(plain["end"], bytes.fromhex(plain["state"]), bytes.fromhex(plain["trace"]))

    def uses(self, record: bytes, index: int) -> Sequence[int]:
        plain = json.loads(record)
        return [] if "end" in plain else [int(j) for j in plain["uses"]]

    def judge(self, question: Question) -> Ruling | Need:
        records = {Role.TRAINER: json.loads(question.trainer), Role.AUDITOR: json.loads(question.auditor)}
        for role, record in records.items():
            if "end" in record:
                return Ruling(OTHER[role], "program_mismatch", "the step ends too early")
        programs = {role: record["program"] for role, record in records.items()}
        if len(set(programs.values())) == 2:
            if question.exhibits is None:
                return Need.EXHIBIT
            if b'["agreed"]' not in question.exhibits.values():
                return Ruling(None, "program_disputed", "nobody shows what was agreed")
            winner = next(role for role, program in programs.items() if program == "agreed")
            return Ruling(winner, "program_mismatch", "another program")
        if question.witness is None:
            return Need.WITNESS
        if question.witness != inputs_of(records[Role.TRAINER]):
            return Ruling(Role.AUDITOR, Fault.WITNESS_MISMATCH, "other inputs")
        true = [r for r, record in records.items() if record["value"] == truth(question.step, question.index)]
        return Ruling(true[0], "recomputed", "the op was recomputed") if len(true) == 1 else Ruling(None, "neither", "")


Meddle = Callable[[Role, str, Reply], Reply | None]
"""Changes what a party sends in a round of a kind; None is silence."""


@dataclass
class Played:
    referee: Referee
    files: MemoryFiles
    rounds: int
    message_bytes: int

    @property
    def ruling(self) -> Ruling:
        assert self.referee.game.ruling is not None
        return self.referee.game.ruling


def play(trainer: FakeClaim, auditor: FakeClaim, meddle: Meddle | None = None, patient: bool = True) -> Played:
    """Play a dispute between two made-up claims; a referee that is not ``patient`` waits for nobody."""
    return play_parties(trainer.spec, trainer.seal(), FakeRules(), trainer, auditor, meddle, patient)


def play_parties(
    spec: RunSpec,
    seal: Seal,
    rules: Rules,
    trainer: Claim,
    auditor: Claim,
    meddle: Meddle | None = None,
    patient: bool = True,
) -> Played:
    """Play a dispute between two claims and return its transcript."""
    subject = Subject(seal.run_id, sha256_bytes(seal.to_bytes()), "d1")
    referee = Referee(subject, spec, seal, rules, KEYS[Role.REFEREE], PUBLIC, DEADLINE)
    parties = {
        role: Party(role, subject, claim, rules, KEYS[role], PUBLIC[Role.REFEREE])
        for role, claim in zip(PARTIES, (trainer, auditor), strict=True)
    }
    files = {SPEC: spec.to_bytes(), SEAL: seal.to_bytes()}
    now = 1_000_000
    request = referee.begin(now)
    size = 0
    while True:
        number = referee.round
        files[file_name(number, Role.REFEREE)] = request
        size += len(request)
        if not referee.waits_for:
            return Played(referee, MemoryFiles(files), number, size)
        kind = referee.game.request.kind if referee.game.request else ""
        received: dict[Role, Received | None] = {}
        for role in referee.waits_for:
            reply = parties[role].answer(request)
            if reply is not None and meddle is not None:
                reply = meddle(role, kind, reply)
            received[role] = None if reply is None else Received(reply.data, reply.parts)
            if reply is not None:
                files[file_name(number, role)] = reply.data
                size += len(reply.data)
                files |= {part_name(number, role, k): part for k, part in enumerate(reply.parts)}
        late = any(r is None or not referee.complete(role, r) for role, r in received.items())
        now = referee.answer_by if late and patient else now + 5
        request = referee.take(received, now)
