"""What a party of a real run claims: published leaves, or those of its own replay of one segment.

The trainer stands by what it sealed and explains a leaf by running the segment again. An auditor stands by the
trainer's leaves up to the segment it replayed, its own in that segment, and the trainer's after it: so one replayed
segment is enough for a dispute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vt_core.dispute.bisection import leaf_count, leaf_steps
from vt_core.dispute.claims import StepDigests
from vt_core.dispute.inputs import agreed_facts
from vt_core.dispute.party import LeafContent, StepRecords
from vt_core.dispute.recorder import StepClaim, record_step
from vt_core.engine.rounding import Rounding, TrainerRounding
from vt_core.engine.rounding_log import LogReader, decode_step, step_digest
from vt_core.evidence.merkle import leaf_hash
from vt_core.evidence.records import SegmentRecord
from vt_core.evidence.work import Work, leaf_data
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.leaves import Leaf, decode_leaves
from vt_core.training.segment import LEAVES, LOG
from vt_core.training.session import Session
from vt_core.training.state import State
from vt_core.verify.replay import MAX_LOG_BYTES
from vt_core.verify.strict import StrictRounding

Folder = Callable[[int], Path]
"""Returns the folder with the checked artifacts of a segment; raises EvidenceError if there are none."""


@dataclass(frozen=True)
class _Step:
    claim: StepClaim
    session: Session

    @property
    def records(self) -> Sequence[bytes]:
        """All records of the step."""
        return self.claim.records

    def witness(self, index: int) -> bytes:
        """Run the step again and return the values that record ``index`` takes."""
        return self.claim.witness(index).to_bytes()

    def exhibit(self, index: int) -> bytes:
        """Return proofs of what was agreed on before training; runs the data pipeline of the whole run once."""
        if not self.session.spec.agreed:
            return b""
        return agreed_facts(self.session).exhibit(self.claim.step, index).to_bytes()


@dataclass
class RunClaim:
    """A party's claim about a run; ``session`` is open and runs this party's own copy of code and data.

    ``own``: the segment whose leaves come from this party's replay, None for a party that stands by all published
    ones. ``with_log``: replay with the published log, as everybody can; else round and log anew, as a trainer does.
    """

    session: Session
    records: Sequence[SegmentRecord]
    folder: Folder
    own: int | None = None
    with_log: bool = True
    progress: Callable[[int], None] | None = None
    _replayed: dict[int, list[LeafContent]] = field(default_factory=dict)
    _leaves: list[bytes] = field(default_factory=list)

    def leaf_hashes(self) -> Sequence[bytes]:
        """Return the hashes of all leaves."""
        if not self._leaves:
            spec = self.session.spec
            self._leaves = [leaf for record in self.records for leaf in record.leaf_hashes()]
            for index in range(leaf_count(spec)) if self.own is not None else ():
                segment, _, last = leaf_steps(spec, index)
                if segment == self.own:
                    self._leaves[index] = leaf_hash(_data(self.leaf(index), last))
        return self._leaves

    def differs(self) -> bool:
        """Tell whether a replayed leaf is not the published one."""
        return list(self.leaf_hashes()) != [leaf for record in self.records for leaf in record.leaf_hashes()]

    def leaf(self, index: int) -> LeafContent:
        """Return what leaf ``index`` is made of, by running its segment."""
        segment, _, _ = leaf_steps(self.session.spec, index)
        if segment not in self._replayed:
            self._replayed[segment] = self._run_segment(segment)
        return self._replayed[segment][index - sum(len(record.leaves) for record in self.records[:segment])]

    def before(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Return state root, log, trace and work of the published leaf before leaf ``index``."""
        segment, _, last = leaf_steps(self.session.spec, index - 1)
        leaf = next(leaf for leaf in self._published(segment) if leaf.step == last)
        return leaf.state, leaf.log, leaf.trace, leaf.work

    def step(self, step: int) -> StepRecords:
        """Run the segment up to ``step`` and record that step."""
        segment = next(r.index for r in self.records if r.first_step <= step <= r.last_step)
        state = self._start(segment)
        for _ in self._walk(segment, step - 1):
            pass
        if step > self.records[segment].first_step:
            state = self.session.capture(step - 1)
        with self._log(segment) as reader:
            log = reader.read_step(step) if self.with_log else None
        return _Step(record_step(self.session, state, step, log), self.session)

    def _published(self, segment: int) -> list[Leaf]:
        return decode_leaves((self.folder(segment) / LEAVES).read_bytes())

    def _start(self, segment: int) -> State | None:
        return None if segment == 0 else load_checkpoint(self.folder(segment - 1))

    def _run_segment(self, segment: int) -> list[LeafContent]:
        contents: list[LeafContent] = []
        steps: list[StepDigests] = []
        words: list[bytes] = []
        commits = {leaf.step for leaf in self._published(segment)}
        for step, log, trace, word in self._walk(segment, self.records[segment].last_step):
            steps.append(StepDigests(self.session.digest(step).root, log, trace))
            words.append(word)
            if step in commits:
                contents.append(LeafContent(steps, Work(b"".join(words)).commitment()))
                steps, words = [], []
            if self.progress is not None:
                self.progress(step)
        return contents

    def _walk(self, segment: int, last: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """Run the segment's steps up to ``last`` and yield step, log digest, trace digest and words of each."""
        session, spec = self.session, self.session.spec
        state = self._start(segment)
        if state is not None:
            session.restore(state)
        strict = StrictRounding(session.grid, spec.policy, spec.fingerprints)
        trainer = TrainerRounding(session.grid, spec.policy, spec.fingerprints)
        rounding: Rounding = strict if self.with_log else trainer
        with self._log(segment) as reader:
            for step in range(self.records[segment].first_step, last + 1):
                record = reader.record(step)
                if self.with_log:
                    strict.begin_replay(decode_step(record))
                else:
                    trainer.begin_step(step)
                outcome = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
                # The log is the published one in any case: both parties took it, or should have.
                yield step, step_digest(record), outcome.trace, rounding.words

    def _log(self, segment: int) -> LogReader:
        return LogReader(self.folder(segment) / LOG, MAX_LOG_BYTES)


def _data(content: LeafContent, last: int) -> bytes:
    log = hashlib.sha256(b"".join(s.log for s in content.steps)).digest()
    trace = hashlib.sha256(b"".join(s.trace for s in content.steps)).digest()
    return leaf_data(last, content.steps[-1].state, log, trace, content.work)
