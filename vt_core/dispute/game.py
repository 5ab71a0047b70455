"""The dispute game: from two different roots to the one operation that the parties disagree on, and a ruling.

Refereed delegation after Teutsch and Reitwiessner, "A scalable verification solution for blockchains" (2017), and
Canetti, Riva and Rothblum (2011). The trainer stands by its sealed leaves, the auditor by its own. Each round the
referee asks and both parties answer:

1. ``roots``: size and root over all leaves;
2. ``tree``: the hashes 4 levels below the first node they differ in, until a single leaf is left;
3. ``leaf``: what the leaf is made of, step by step, and the agreed leaf before it;
4. ``records``: number and root of the op records of the first step they differ in, with the last record, which must
   lead to the state that was claimed;
5. ``tree`` again, over the records;
6. ``record``: the first record they differ in and the agreed records that its inputs come from;
7. ``exhibit``, if they differ in the program or the batch: proofs of what was agreed on before training;
8. ``witness``, else: the values of those inputs, from the trainer. They are fixed by agreed digests, so nobody can
   choose.

Everything a party says must hash to what it said before, so a liar is driven to one false record or into a
contradiction. The class is a pure state machine: the same answers give the same requests and the same ruling, online
and from a transcript.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from vt_core.dispute import bisection
from vt_core.dispute.claims import ExhibitClaim, LeafClaim, RecordClaim, RecordsClaim, RootClaim, TreeClaim
from vt_core.dispute.messages import OTHER, PARTIES, Role
from vt_core.dispute.moves import Answer, Answers, Failure, Lost, Over, Request
from vt_core.dispute.rules import Fault, Need, Question, Rules, Ruling
from vt_core.errors import EvidenceError, VtError
from vt_core.evidence.merkle import RootMismatch, leaf_hash, verify_inclusion
from vt_core.evidence.records import Seal
from vt_core.evidence.work import leaf_data
from vt_core.training.spec import RunSpec

T = TypeVar("T")


@dataclass
class _Side:
    """What one party has committed itself to so far."""

    root: bytes = b""
    node: bytes = b""  # hash of the node that the parties differ in
    leaf: LeafClaim | None = None
    records: RecordsClaim | None = None
    children: list[bytes] = field(default_factory=list)


class Game:
    """One dispute. ``request`` is what is asked now, None once there is a ``ruling``."""

    def __init__(self, spec: RunSpec, seal: Seal, rules: Rules) -> None:
        """Begin a dispute about a sealed run. Raises EvidenceError if seal and spec do not fit together."""
        if seal.spec != spec.digest():
            raise EvidenceError("spec_mismatch", "the seal belongs to another run spec", file="seal.json")
        if seal.leaf_count != bisection.leaf_count(spec):
            raise EvidenceError("chain_broken", "the seal covers another number of leaves than the spec has")
        self.spec, self.seal, self.rules = spec, seal, rules
        self.request: Request | None = None
        self.ruling: Ruling | None = None
        self.rounds = 0
        self._sides = {role: _Side() for role in PARTIES}
        self._place: dict[str, Any] = {}
        self._play = self._rounds()
        self._advance(None)

    def answer(self, answers: Answers) -> None:
        """Take the answers of all parties that were asked, and go on to the next request or to the ruling."""
        if self.request is None:
            raise ValueError("the game is over")
        self._advance(answers)

    def _advance(self, answers: Answers | None) -> None:
        try:
            self.request = next(self._play) if answers is None else self._play.send(answers)
            self.rounds += 1
        except Over as over:
            self.request, self.ruling = None, replace(over.ruling, place=dict(self._place))

    # The rounds, in order

    def _rounds(self) -> Generator[Request, Answers, None]:
        index = yield from self._find_leaf()
        segment, first, last = bisection.leaf_steps(self.spec, index)
        self._place |= {"leaf": index, "segment": segment}
        step, before, log = yield from self._find_step(index, first, last)
        self._place["step"] = step
        record = yield from self._find_record(step)
        self._place["record"] = record
        yield from self._decide(step, record, before, log)

    def _find_leaf(self) -> Generator[Request, Answers, int]:
        size = self.seal.leaf_count

        def check(role: Role, answer: Answer) -> RootClaim:
            claim = RootClaim.parse(answer.body)
            if role is Role.TRAINER and (claim.size, claim.root.hex()) != (size, self.seal.root):
                raise Lost(Fault.SEAL_DISOWNED, "the trainer does not stand by its own seal")
            if claim.size != size:
                raise Lost(Fault.MALFORMED_MESSAGE, f"the run has {size} leaves, not {claim.size}")
            return claim

        claims = yield from self._ask(Request("roots", {"size": size}), check)
        for role, claim in claims.items():
            self._sides[role].root = self._sides[role].node = claim.root
        if claims[Role.TRAINER].root == claims[Role.AUDITOR].root:
            raise Over(Ruling(Role.TRAINER, Fault.NO_DIFFERENCE, "the auditor has the same leaves as the trainer"))
        return (yield from self._descend("leaves", (0, size)))

    def _find_step(
        self, index: int, first: int, last: int
    ) -> Generator[Request, Answers, tuple[int, bytes | None, bytes]]:
        before_step = None if index == 0 else bisection.leaf_steps(self.spec, index - 1)[2]

        def check(role: Role, answer: Answer) -> LeafClaim:
            side = self._sides[role]
            claim = LeafClaim.parse(answer.body, last - first + 1, index > 0)
            if leaf_hash(claim.data(last)) != side.node:
                raise Lost(Fault.CONTRADICTION, f"what the {role} shows does not make leaf {index}")
            if claim.before is not None and before_step is not None:
                leaf = leaf_hash(leaf_data(before_step, *claim.before.digests))
                self._included(role, leaf, index - 1, self.seal.leaf_count, claim.before.proof, side.root)
            return claim

        claims = yield from self._ask(Request("leaf", {"index": index, "first": first, "last": last}), check)
        trainer, auditor = claims[Role.TRAINER], claims[Role.AUDITOR]
        if [s.log for s in trainer.steps] != [s.log for s in auditor.steps]:
            # The log is what the trainer declares: whoever replays the run takes it as it is.
            raise Over(Ruling(Role.TRAINER, Fault.LOG_MISMATCH, "the auditor did not replay with the trainer's log"))
        for offset, (theirs, own) in enumerate(zip(trainer.steps, auditor.steps, strict=True)):
            if (theirs.state, theirs.trace) != (own.state, own.trace):
                for role, claim in claims.items():
                    self._sides[role].leaf = claim
                start = trainer.before.digests[0] if trainer.before is not None else None
                return first + offset, trainer.steps[offset - 1].state if offset else start, theirs.log
        raise Over(
            Ruling(None, Fault.WORK_DISPUTED, "the parties agree on states, log and trace and differ in the work alone")
        )

    def _find_record(self, step: int) -> Generator[Request, Answers, int]:
        def check(role: Role, answer: Answer) -> RecordsClaim:
            claim = RecordsClaim.parse(answer.body)
            size = bisection.padded_size(claim.count)
            self._included(role, leaf_hash(claim.last), claim.count - 1, size, claim.proof, claim.root)
            end, claimed = self._read(lambda: self.rules.end(claim.last)), self._claimed(role, step)
            if (end.step, end.state, end.trace) != (step, *claimed):
                raise Lost(Fault.CONTRADICTION, f"the {role}'s records do not lead to the state it claims")
            return claim

        claims = yield from self._ask(Request("records", {"step": step}), check)
        wide = max(bisection.padded_size(claim.count) for claim in claims.values())
        for role, claim in claims.items():
            side = self._sides[role]
            side.records, side.root = claim, claim.root
            side.node = bisection.widen(claim.root, bisection.padded_size(claim.count), wide)
        nodes = {side.node for side in self._sides.values()}
        if len(nodes) == 1:  # equal lists have one last record, and it cannot lead to two states
            raise Over(Ruling(None, Fault.BOTH_FAILED, "both parties show the same records"))
        return (yield from self._descend("records", (0, wide)))

    def _decide(self, step: int, index: int, before: bytes | None, log: bytes) -> Generator[Request, Answers, None]:
        def check(role: Role, answer: Answer) -> RecordClaim:
            claim = RecordClaim.parse(answer.body)
            records = self._sides[role].records
            assert records is not None
            if (leaf_hash(claim.record) if claim.record else bisection.NO_RECORD) != self._sides[role].node:
                raise Lost(Fault.CONTRADICTION, f"the {role} shows another record {index} than it committed to")
            if bool(claim.record) != (index < records.count):
                raise Lost(Fault.CONTRADICTION, f"the {role} claimed {records.count} records")
            for j, data in claim.uses.items():
                if j >= index:
                    raise Lost(Fault.MALFORMED_MESSAGE, f"record {j} does not come before record {index}")
                size = bisection.padded_size(records.count)
                self._included(role, leaf_hash(data), j, size, claim.proofs[j], records.root)
            if claim.record:
                missing = set(self._read(lambda: self.rules.uses(claim.record, index))) - claim.uses.keys()
                if missing:
                    raise Lost(Fault.MALFORMED_MESSAGE, f"record {min(missing)}, which record {index} uses, is missing")
            return claim

        claims = yield from self._ask(Request("record", {"index": index}), check)
        for role, claim in claims.items():
            if not claim.record:
                # This party's last record is agreed, and it ends the step: nothing may follow it.
                raise Over(Ruling(role, Fault.MALFORMED_RECORD, "a record follows the one that ends the step"))
        trainer, auditor = claims[Role.TRAINER], claims[Role.AUDITOR]
        agreed = {**auditor.uses, **trainer.uses}
        question = Question(step, index, trainer.record, auditor.record, agreed, before, log)
        verdict = self._judge(question)
        if verdict is Need.EXHIBIT:
            question = replace(question, exhibits=(yield from self._exhibits(index)))
            verdict = self._judge(question)
        if verdict is Need.WITNESS:
            question = replace(question, witness=(yield from self._witness(index)))
            verdict = self._judge(question)
        if isinstance(verdict, Need):
            verdict = Ruling(None, Fault.JUDGE_FAILED, f"the judge asks for the {verdict.value} a second time")
        raise Over(verdict)

    def _exhibits(self, index: int) -> Generator[Request, Answers, dict[Role, bytes]]:
        def check(role: Role, answer: Answer) -> bytes:
            return ExhibitClaim.parse(answer.body).exhibit

        shown = yield from self._ask(Request("exhibit", {"index": index}), check)
        return {role: data for role, data in shown.items() if data}

    def _witness(self, index: int) -> Generator[Request, Answers, bytes]:
        def check(role: Role, answer: Answer) -> bytes:
            if answer.witness is None:
                raise Lost(Fault.WITNESS_MISSING, f"the {role} does not show the values of the inputs")
            return answer.witness

        answers = yield from self._ask(Request("witness", {"index": index}, (Role.TRAINER,)), check)
        return answers[Role.TRAINER]

    # Parts

    def _ask(self, request: Request, check: Callable[[Role, Answer], T]) -> Generator[Request, Answers, dict[Role, T]]:
        """Ask, and check each answer; whoever has no valid one loses."""
        answers = yield request
        valid: dict[Role, T] = {}
        failures: dict[Role, Failure] = {}
        for role in request.of:
            answer = answers[role]
            try:
                if isinstance(answer, Failure):
                    failures[role] = answer
                elif set(answer.body) == {"concede"}:
                    failures[role] = Failure(Fault.CONCEDED, str(answer.body["concede"])[:1000])
                else:
                    valid[role] = check(role, answer)
            except Lost as lost:
                failures[role] = lost.failure
            except (ValueError, KeyError, TypeError, IndexError) as error:
                failures[role] = Failure(Fault.MALFORMED_MESSAGE, f"in the round {request.kind!r}: {error}")
        if len(failures) == len(PARTIES):
            both = "; ".join(f"{role}: {f.fault} ({f.why})" for role, f in failures.items())
            raise Over(Ruling(None, Fault.BOTH_FAILED, both))
        for role, failure in failures.items():
            raise Over(Ruling(OTHER[role], failure.fault, f"{role}: {failure.why}"))
        return valid

    def _descend(self, tree: str, node: bisection.Node) -> Generator[Request, Answers, int]:
        """Bisect to the first leaf of ``tree`` in which the parties differ, and return its index."""
        while node[1] - node[0] > 1:
            at = node

            def check(role: Role, answer: Answer, at: bisection.Node = at) -> list[bytes]:
                hashes = TreeClaim.parse(answer.body).hashes
                if bisection.combine(at, hashes) != self._sides[role].node:
                    raise Lost(Fault.CONTRADICTION, f"the {role}'s hashes of {tree} {at} do not make the one it gave")
                return hashes

            ask = {"tree": tree, "begin": at[0], "end": at[1], "levels": bisection.LEVELS}
            revealed = yield from self._ask(Request("tree", ask), check)
            pairs = zip(bisection.descendants(at), revealed[Role.TRAINER], revealed[Role.AUDITOR], strict=True)
            node, theirs, own = next((n, a, b) for n, a, b in pairs if a != b)
            self._sides[Role.TRAINER].node, self._sides[Role.AUDITOR].node = theirs, own
        return node[0]

    def _included(self, role: Role, leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
        try:
            verify_inclusion(leaf, index, size, proof, root)
        except RootMismatch as error:
            raise Lost(Fault.CONTRADICTION, f"the {role} shows what is not in its own tree: {error}") from error
        except EvidenceError as error:
            raise Lost(Fault.MALFORMED_MESSAGE, str(error)) from error

    def _claimed(self, role: Role, step: int) -> tuple[bytes, bytes]:
        leaf, (_, first, _) = self._sides[role].leaf, bisection.leaf_steps(self.spec, self._place["leaf"])
        assert leaf is not None
        return leaf.steps[step - first].state, leaf.steps[step - first].trace

    def _read(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (EvidenceError, ValueError, KeyError, TypeError) as error:
            raise Lost(Fault.MALFORMED_RECORD, str(error)) from error

    def _judge(self, question: Question) -> Ruling | Need:
        try:
            return self.rules.judge(question)
        except (VtError, RuntimeError, ValueError, MemoryError) as error:
            return Ruling(None, Fault.JUDGE_FAILED, f"the judge could not decide: {type(error).__name__}: {error}")
