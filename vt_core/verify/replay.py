"""Replay of one segment: check its artifacts, run its steps with its log, compare leaf by leaf.

The rules, in this order; the first that fails is the segment's result:

1. every file is there with the committed size and SHA-256 (checked before anything is parsed);
2. ``leaves.json`` holds the committed leaves, one after each commit step;
3. the log holds one record for each step, and its digests are those in the leaves;
4. the checkpoint's digest is the state root of the last leaf;
5. the replay, from the checkpoint of the segment before, has at each leaf the same trace, finds every used log
   entry plausible, ends in the same state root, and yields the words that the leaf's work commitment hides.

The state of a leaf is hashed while the next step runs, as the trainer does it, and is compared before anything of that
step is looked at: its findings, its exceptions, its progress. So the result is that of comparing leaf after leaf.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vt_core.engine.rounding import SiteFinding
from vt_core.engine.rounding_log import LogReader, StepLog, step_digest
from vt_core.errors import EvidenceError, OffGridError, PrecisionError, UnsupportedOperation
from vt_core.evidence.digests import check_file, read_bounded
from vt_core.evidence.records import SegmentRecord
from vt_core.evidence.work import Challenge, Work
from vt_core.training.checkpoint import MAX_SCALARS_BYTES, MAX_TENSORS_BYTES, SCALARS, TENSORS, load_checkpoint
from vt_core.training.leaves import MAX_LEAVES_BYTES, Leaf, decode_leaves
from vt_core.training.live_digest import LiveDigest
from vt_core.training.segment import ENVIRONMENT, FILES, LEAVES, LOG, METRICS, commit_steps
from vt_core.training.session import Session
from vt_core.training.state import State, StateDigest, digest
from vt_core.verify.bias import USES
from vt_core.verify.limits import AuditorLimits
from vt_core.verify.reconsider import Found, recalibrate, reconsider
from vt_core.verify.strict import StrictRounding
from vt_core.verify.verdict import Divergence, Reason, SegmentResult

Progress = Callable[[int], None]
Counts = dict[str, dict[str, Any]]
MAX_LOG_BYTES = 4 << 30
MAX_SIZES = {
    TENSORS: MAX_TENSORS_BYTES, SCALARS: MAX_SCALARS_BYTES, LOG: MAX_LOG_BYTES, LEAVES: MAX_LEAVES_BYTES,
    METRICS: 1 << 28, ENVIRONMENT: 1 << 20,
}  # fmt: skip
_JOB_ERRORS = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """The parsed, self-consistent evidence of one segment."""

    leaves: list[Leaf]
    state: State


@dataclass(frozen=True)
class _OpenLeaf:
    """What the steps up to ``leaf`` yielded; the state's digest is still in the making.

    ``first`` is the first step with findings and what they are. ``counts`` and ``work`` hold nothing of later steps.
    """

    leaf: Leaf
    state: LiveDigest
    trace: bytes
    work: Work
    first: tuple[int, list[SiteFinding]] | None
    counts: Counts


@dataclass(frozen=True)
class _Outcome:
    """The finding at a leaf, None if there is none, with counts and work as they were there."""

    found: Found | None
    counts: Counts
    work: Work


def check_files(record: SegmentRecord, directory: Path) -> None:
    """Rule 1. Raises EvidenceError: artifact_missing, artifact_corrupt or evidence_malformed."""
    if set(record.files) != set(FILES):
        raise EvidenceError(
            "evidence_malformed", f"segment {record.index} must list exactly the files {', '.join(FILES)}",
            segment=record.index,
        )  # fmt: skip
    for name in FILES:
        entry = record.files[name]
        if entry["size"] > MAX_SIZES[name]:
            raise EvidenceError(
                "evidence_malformed",
                f"segment {record.index}: {name} has {entry['size']} bytes, the limit is {MAX_SIZES[name]}",
                segment=record.index,
                file=name,
            )
        check_file(directory / name, entry["sha256"], entry["size"], f"segment {record.index}: {name}")


def open_segment(session: Session, record: SegmentRecord, directory: Path) -> Opened:
    """Rules 1 to 4. Raises EvidenceError with the reason code and place."""
    check_files(record, directory)
    leaves = decode_leaves(read_bounded(directory / LEAVES, MAX_LEAVES_BYTES, LEAVES))
    if [leaf.hash().hex() for leaf in leaves] != list(record.leaves):
        raise EvidenceError("evidence_malformed", "leaves.json holds other leaves than were committed", file=LEAVES)
    spec = session.spec
    expected = sorted(commit_steps(record.first_step, record.last_step, spec.commit_interval))
    if [leaf.step for leaf in leaves] != expected:
        raise EvidenceError("evidence_malformed", "the leaves are not those of the commit steps", file=LEAVES)
    _check_log(session, record, directory, leaves)
    state = load_checkpoint(directory)
    found = digest(state)
    if state.step != record.last_step or found.root != leaves[-1].state:
        raise EvidenceError(
            "state_mismatch",
            "the published checkpoint is not the state that the last leaf commits to",
            step=record.last_step,
            tensors=_differing(found, leaves[-1]),
        )
    return Opened(leaves, state)


def _check_log(session: Session, record: SegmentRecord, directory: Path, leaves: list[Leaf]) -> None:
    with LogReader(directory / LOG, MAX_LOG_BYTES) as reader:
        header = {"spec": session.spec.digest(), "segment": record.index}
        if reader.header != header:
            raise EvidenceError("evidence_malformed", "the log belongs to another segment or run spec", file=LOG)
        if reader.steps != list(range(record.first_step, record.last_step + 1)):
            raise EvidenceError("evidence_malformed", "the log does not hold one record for each step", file=LOG)
        step = record.first_step
        for leaf in leaves:
            hasher = hashlib.sha256()
            while step <= leaf.step:
                hasher.update(step_digest(reader.record(step)))
                step += 1
            if hasher.digest() != leaf.log:
                raise EvidenceError(
                    "evidence_malformed",
                    "the log is not the one that the leaf commits to",
                    file=LOG,
                    step=leaf.step,
                )


def replay_segment(
    session: Session,
    record: SegmentRecord,
    directory: Path,
    start: tuple[SegmentRecord, Path] | None,
    limits: AuditorLimits,
    progress: Progress | None = None,
    challenge: Challenge | None = None,
) -> SegmentResult:
    """Audit one segment; ``start`` is the segment before it (record and artifacts), None for segment 0.

    With ``challenge`` the result of a segment that agrees holds a proof that it was replayed.
    Never raises for bad evidence: the result says what was found. Raises SpecError and OSError for problems on
    the auditor's side.
    """
    started = time.perf_counter()
    rounding = StrictRounding(session.grid, session.spec.policy, session.spec.fingerprints)
    final_state: str | None = None
    leaves: list[Leaf] = []
    outcome: _Outcome | None = None

    def result(reason: Reason | None, message: str, divergence: Divergence | None) -> SegmentResult:
        return SegmentResult(
            record.index, record.first_step, record.last_step, reason, message, divergence,
            audited_counts(rounding) if outcome is None else outcome.counts,
            time.perf_counter() - started, final_state, proof(reason),
        )  # fmt: skip

    def proof(reason: Reason | None) -> dict[str, Any] | None:
        if reason is not None or outcome is None or challenge is None:
            return None
        last = leaves[-1]
        named = {"step": last.step, "state": last.state.hex(), "log": last.log.hex(), "trace": last.trace.hex()}
        return named | outcome.work.open(challenge.anchor, challenge.nonce, record.index)

    try:
        leaves = open_segment(session, record, directory).leaves
        final_state = leaves[-1].state.hex()
        state = None
        if start is not None:
            before, before_directory = start
            check_files(before, before_directory)
            state = load_checkpoint(before_directory)
            last = decode_leaves(read_bounded(before_directory / LEAVES, MAX_LEAVES_BYTES, LEAVES))[-1]
            if digest(state).root != last.state or state.step != before.last_step:
                raise EvidenceError("state_mismatch", "the checkpoint to start from is not the committed state")
        outcome = _replay(session, record, directory, state, leaves, rounding, limits, progress)
        found = outcome.found
        if found is not None:
            spec = session.spec
            found = reconsider(
                found,
                lambda again: _replay(session, record, directory, state, leaves, again, limits, None).found,
                lambda step: _log_of(directory, step),
                spec.policy, session.grid, spec.fingerprints, limits,
            )  # fmt: skip
    except EvidenceError as error:
        return result(Reason(error.reason), str(error), _place(record.index, error))
    except (UnsupportedOperation, PrecisionError, OffGridError) as error:
        return result(Reason.ENVIRONMENT_UNSUPPORTED, f"the replay could not run: {error}", None)
    except _JOB_ERRORS as error:
        if start is None:
            raise  # nothing of the trainer's was in it: a fault of this side
        # A forged state (an optimizer tensor of another shape) can stop the job's own code, and so can a full memory
        # here: this segment tells nothing. The segment that published such a state does not replay to it.
        return result(
            Reason.ENVIRONMENT_UNSUPPORTED,
            f"the replay from the published state stopped with {type(error).__name__}: {error}",
            None,
        )
    if found is None:
        return result(None, "replayed bit for bit", None)
    return result(*found)


def _log_of(directory: Path, step: int) -> StepLog:
    with LogReader(directory / LOG, MAX_LOG_BYTES) as reader:
        return reader.read_step(step)


def _replay(
    session: Session,
    record: SegmentRecord,
    directory: Path,
    state: State | None,
    leaves: list[Leaf],
    rounding: StrictRounding,
    limits: AuditorLimits,
    progress: Progress | None,
) -> _Outcome:
    """Rule 5; stops at the first leaf that differs or the first step with a finding that decides."""
    if state is not None:
        session.restore(state)
    before: _OpenLeaf | None = None

    def close(at: _OpenLeaf) -> _Outcome:
        same_trace, same_work = at.trace == at.leaf.trace, at.work.commitment() == at.leaf.work
        found = _compare(
            record.index, at.leaf, at.state.result(), same_trace, same_work, rounding.fingerprints, at.first, limits
        )
        return _Outcome(found, at.counts, at.work)

    with LogReader(directory / LOG, MAX_LOG_BYTES) as reader:
        step = record.first_step
        for leaf in leaves:
            traces, words, first = [], [], None
            while step <= leaf.step:
                try:
                    rounding.begin_replay(reader.read_step(step))
                    done = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
                    rounding.end_replay()
                except Exception:
                    # Whatever stopped this step: a difference at the leaf before it comes first.
                    if before is not None and (outcome := close(before)).found is not None:
                        return outcome
                    raise
                if before is not None and (outcome := close(before)).found is not None:
                    return outcome
                before = None
                traces.append(done.trace)
                words.append(rounding.words)
                if first is None and rounding.findings:
                    first = (step, list(rounding.findings))
                if progress is not None:
                    progress(step)
                step += 1
            trace, work = hashlib.sha256(b"".join(traces)).digest(), Work(b"".join(words))
            before = _OpenLeaf(leaf, session.start_digest(leaf.step), trace, work, first, audited_counts(rounding))
    assert before is not None, "the leaves of a segment end with one after its last step"
    return close(before)


def _compare(
    segment: int,
    leaf: Leaf,
    replayed: StateDigest,
    same_trace: bool,
    same_work: bool,
    fingerprints: bool,
    first: tuple[int, list[SiteFinding]] | None,
    limits: AuditorLimits,
) -> Found | None:
    differing = _differing(replayed, leaf)
    step, findings = first if first is not None else (leaf.step, [])
    located = findings[0] if findings else None  # findings come in the order of execution
    place = _at(segment, step, located, differing)
    message = "the replay ends in another state than the trainer committed to"
    if not differing:
        message += ": all tensors are equal, so the optimizer's settings or counters differ"
    if not same_trace:
        return Reason.TRACE_MISMATCH, "the trainer ran another sequence of operations than the agreed code", place
    if replayed.root != leaf.state and (located is None or located.rounding is None):
        # Fingerprints part first: log entries that do not fit later on only follow from it.
        return Reason.STATE_MISMATCH, message, place
    entry = next((f for f in findings if f.rounding is not None), None)
    if entry is not None and entry.rounding is not None:
        place = _at(segment, step, entry, differing)
        distance = entry.rounding.distance
        if entry.rounding.kind == "implausible" and distance <= limits.exceeded_within:
            return Reason.TOLERANCE_EXCEEDED, recalibrate("a log entry", distance), place
        return Reason.LOG_IMPLAUSIBLE, "the log claims a rounding that no honest machine can have made", place
    if replayed.root != leaf.state:
        return Reason.STATE_MISMATCH, message, place
    if not same_work:
        return _other_work(located is not None or not fingerprints, place)
    return None


def _other_work(may_be_honest: bool, place: Divergence) -> Found:
    """The state agrees and the work does not: nothing was moved, but what does it say of the trainer?

    Where a fingerprint differs (or there are none to tell), two honest machines may have differed by more than the
    tolerance in a value that does not reach the state. Where none does, the commitment contradicts the trainer's log.
    """
    message = "the replay ends in the committed state, but not by the values that the trainer committed to"
    if may_be_honest:
        return Reason.TOLERANCE_EXCEEDED, f"{message}; they do not reach the state: recalibrate", place
    return Reason.WORK_MISMATCH, f"{message}, although they have the fingerprints in its log", place


def audited_counts(rounding: StrictRounding) -> Counts:
    """Return what the auditor saw per op class; ``max_distance`` in tolerances, as decimal text."""
    return {
        str(c): {
            "elements": n.elements,
            "entries": n.entries,
            "disagreements": n.disagreements,
            "max_distance": f"{n.max_distance:.6f}",
            **{key: int(rounding.uses[c][key]) for key in USES},
            "pushed": f"{rounding.uses[c]['pushed']:.6f}",
        }
        for c, n in rounding.counters.by_class.items()
    }


def _differing(found: StateDigest, leaf: Leaf) -> tuple[str, ...]:
    names = found.tensors.keys() | leaf.tensors.keys()
    return tuple(sorted(n for n in names if found.tensors.get(n) != leaf.tensors.get(n)))


def _at(segment: int, step: int, finding: SiteFinding | None, tensors: tuple[str, ...]) -> Divergence:
    if finding is None:
        return Divergence(segment, step, tensors=tensors)
    rounding = finding.rounding
    if rounding is None:
        return Divergence(segment, step, finding.site, finding.op, finding.module, tensors=tensors)
    return Divergence(
        segment, step, finding.site, finding.op, finding.module, rounding.position, rounding.trainer_value,
        rounding.auditor_value, rounding.distance, tensors,
    )  # fmt: skip


def _place(segment: int, error: EvidenceError) -> Divergence:
    place: Mapping[str, Any] = error.place
    step = place.get("step")
    tensors = place.get("tensors") or ((place["tensor"],) if "tensor" in place else ())
    return Divergence(segment, step if isinstance(step, int) else None, tensors=tuple(map(str, tensors)))
