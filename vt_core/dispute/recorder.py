"""Records one step: a dispatch mode that writes down what each operation took and gave.

Used for the one step that two parties differ in, by either of them. Recording does not change a bit of the step. The
values themselves are not kept: :meth:`StepClaim.witness` runs the step again and keeps what one record needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from vt_core.dispute import records as rec
from vt_core.dispute.tracking import Origin, Values
from vt_core.dispute.views import View
from vt_core.dispute.witness import Witness
from vt_core.engine.mode import GRADIENT_COPIES, VerifiedMode, _round_scalar, _round_scalars
from vt_core.engine.opclass import LAYOUT, Treatment
from vt_core.engine.plans import Plan, by_name, make_plan
from vt_core.engine.rounding import TrainerRounding
from vt_core.engine.step_record import StepLog, encode_step
from vt_core.errors import UnsupportedOperation
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash
from vt_core.numerics import SiteEntries
from vt_core.training.session import Session
from vt_core.training.state import State, digest, live_tensors
from vt_core.verify.strict import StrictRounding


class TrainerSource(TrainerRounding):
    """The trainer's rounding, which tells where it stands and what it has logged."""

    @property
    def position(self) -> int:
        """Number of the next site."""
        return self._site

    def entries(self, first: int, count: int) -> dict[int, SiteEntries]:
        """Return the log entries of ``count`` sites from ``first`` on."""
        return {i: self._sites[i] for i in range(first, first + count) if i in self._sites}

    def step_log(self) -> StepLog:
        """Return the log of the step."""
        return self.end_step()


class AuditorSource(StrictRounding):
    """The auditor's rounding with the trainer's log, which tells where it stands."""

    @property
    def position(self) -> int:
        """Number of the next site."""
        return self._site

    def entries(self, first: int, count: int) -> dict[int, SiteEntries]:
        """Return the trainer's log entries of ``count`` sites from ``first`` on."""
        return {i: self._log.sites[i] for i in range(first, first + count) if i in self._log.sites}

    def step_log(self) -> StepLog:
        """Return the log of the step: the trainer's."""
        return self._log


@dataclass
class StepClaim:
    """What one party says happened in one step; ``log`` is the rounding log it ran with."""

    step: int
    records: list[bytes]
    log: StepLog
    _session: Session
    _start: State | None
    _given: StepLog | None

    def hashes(self) -> list[bytes]:
        """Return the RFC 6962 leaf hash of each record."""
        return [leaf_hash(record) for record in self.records]

    def witness(self, index: int) -> Witness:
        """Run the step again and return the values that record ``index`` takes and gives."""
        return self.witnesses([index])[0]

    def witnesses(self, indexes: Sequence[int]) -> list[Witness]:
        """Run the step again, once, and return the witness of each record in ``indexes``."""
        inputs, outputs = [], []
        for index in indexes:
            record = rec.parse_record(self.records[index])
            inputs.append({(s.record, s.result) for s in rec.sources(record)})
            outputs.append({(index, k) for k in range(len(record.get("results", [])))})
        kept: dict[Origin, Tensor] = {}
        _run(self._session, self._start, self.step, self._given, set().union(*inputs, *outputs), kept)
        log = encode_step(self.log)
        return [
            Witness(index, {o: kept[o] for o in taken if o in kept}, {o[1]: kept[o] for o in given if o in kept}, log)
            for index, taken, given in zip(indexes, inputs, outputs, strict=True)
        ]


def record_step(session: Session, state: State | None, step: int, log: StepLog | None = None) -> StepClaim:
    """Run ``step`` from ``state`` (None for step 0) and return its records.

    ``log`` is the trainer's log of the step: with it the step is replayed as an auditor does, without it the session
    rounds and logs as the trainer. The session needs to be open and is left after the step. Raises what
    :meth:`Session.run_step` raises, and UnsupportedOperation for what has no record.
    """
    records, used = _run(session, state, step, log, (), {})
    return StepClaim(step, records, used, session, state, log)


def _run(
    session: Session, state: State | None, step: int, log: StepLog | None, keep: Collection[Origin],
    kept: dict[Origin, Tensor],
) -> tuple[list[bytes], StepLog]:  # fmt: skip
    if (state is None) != (step == 0):
        raise ValueError("a step starts from a state, but for step 0")
    if state is not None:
        session.restore(state)
    spec = session.spec
    rounding: TrainerSource | AuditorSource
    if log is None:
        rounding = TrainerSource(session.grid, spec.policy, spec.fingerprints)
        rounding.begin_step(step)
    else:
        rounding = AuditorSource(session.grid, spec.policy, spec.fingerprints)
        rounding.begin_replay(log)
    mode = RecordingMode(session, rounding, state, step, keep, kept)
    with mode.installed():
        outcome = session.initialise(rounding) if step == 0 else session.run_step(step, rounding)
    mode.finish(session.capture(step), outcome.trace)
    return [dumps(record) for record in mode.records], rounding.step_log()


class _Tap:
    """A job that shows the recorder its model and its batches, and is the given job in all else."""

    def __init__(self, job: Any, mode: RecordingMode) -> None:
        self._job, self._mode = job, mode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def build_model(self) -> torch.nn.Module:
        model: torch.nn.Module = self._job.build_model()
        self._mode.built(model)
        return model

    def loss(self, model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
        self._mode.batch(batch)
        loss: Tensor = self._job.loss(model, batch)
        return loss


class RecordingMode(VerifiedMode):
    """The engine's mode, writing a record for each operation of step ``step``; others pass unrecorded."""

    def __init__(
        self, session: Session, source: TrainerSource | AuditorSource, start: State | None, step: int,
        keep: Collection[Origin], kept: dict[Origin, Tensor],
    ) -> None:  # fmt: skip
        honest = session.mode
        super().__init__(honest.compute, honest.rounding, honest.streams, honest.tracker, honest.promote)
        self.functions, self.treatments, self.forms = honest.functions, dict(honest.treatments), dict(honest.forms)
        self._session, self._source, self._start, self._step = session, source, start, step
        self._keep, self._kept = frozenset(keep), kept
        self._recording = False
        self.records: list[dict[str, Any]] = []
        self._values = Values()
        self._digests: dict[Origin, str] = {}
        self._built: dict[str, tuple[Origin, View]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the place of the session's mode, and stand between it and its job."""
        session = self._session
        mode, job = session.mode, session.job
        session.mode, session.job = self, cast(Any, _Tap(job, self))
        try:
            yield
        finally:
            session.mode, session.job = mode, job
            self._recording = False

    def begin_step(self, epoch: int, step: int) -> None:
        """Start anew if it is the step to record, with the state as it is."""
        super().begin_step(epoch, step)
        self._recording = step == self._step
        if not self._recording:
            return
        self.records.clear()
        self._kept.clear()
        self._values, self._digests = Values(), {}
        if self._start is None:
            return
        start = digest(self._start)
        roots = {name: root.hex() for name, root in start.tensors.items()}
        self.records.append(
            {"op": rec.START, "step": self._start.step, "scalars": self._start.scalars, "tensors": roots}
        )
        for name, tensor in sorted(live_tensors(self._session.model, self._session._optimizer).items()):
            self._source_record({"op": rec.LOAD, "name": name}, tensor)

    def batch(self, batch: dict[str, Tensor]) -> None:
        """Record the batch, as the job gets it."""
        if not self._recording:
            return
        with _disable_current_modes():  # type: ignore[no-untyped-call]  # the job runs inside this mode
            for site, name in enumerate(sorted(batch)):  # the session has rounded them in this order
                self._source_record({"op": rec.BATCH, "name": name, "place": [site, 1, 0, 0]}, batch[name])

    def built(self, model: torch.nn.Module) -> None:
        """Remember where a new model's tensors come from: moving it to a device gives them other memory."""
        if not self._recording:
            return
        tensors: dict[str, Tensor] = {f"param.{n}": p for n, p in model.named_parameters()}
        tensors |= {f"buffer.{n}": b for n, b in model.named_buffers()}
        for name, tensor in tensors.items():
            found = self._values.find(tensor)
            if found is not None:
                self._built[name] = found[0].origin, found[2]

    def finish(self, after: State, trace: bytes) -> None:
        """Write the records of the state at the end."""
        self._recording = False
        roots = digest(after)
        names = sorted(after.tensors)
        live = live_tensors(self._session.model, self._session._optimizer)
        values = {name: self._commit_source(name, live[name]) for name in names}
        for name in names:
            self.records.append(
                {"op": rec.COMMIT, "name": name, "value": values[name], "results": [roots.tensors[name].hex()]}
            )
        self.records.append(
            {"op": rec.STATE, "step": after.step, "scalars": after.scalars, "count": len(names), "trace": trace.hex(),
             "results": [roots.root.hex()]}
        )  # fmt: skip

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one ATen operation under its treatment and record it."""
        kwargs = kwargs or {}
        if not self._recording or func.namespace == "profiler":  # marks for people, no operations
            return super().__torch_dispatch__(func, types, args, kwargs)
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = make_plan(func)
        if plan.treatment is Treatment.VIEW:
            self._know(t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._values.viewed(func, args, kwargs, result)
            return result
        if plan.full_name in GRADIENT_COPIES:
            copied = self.copy_gradient(plan, func, args, kwargs)
            if copied is not None:
                if plan.in_place:
                    self._know([args[1]])
                    self._values.copied(args[1], copied)
                return copied
        if plan.name in LAYOUT:
            self._know([args[0]])
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._values.copied(args[0], result)
            return result
        if plan.rounds_scalars:  # done once more by the mode, which changes nothing
            args, kwargs = _round_scalars(args), {k: _round_scalar(v) for k, v in kwargs.items()}
        record = self._describe(plan, args, kwargs)
        first, draw = self._source.position, self.moment.draws
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if plan.name in rec.UNDEFINED:
            result.zero_()
        count = self._source.position - first
        record["place"] = [first, count, draw, self.moment.draws - draw]
        entries = self._source.entries(first, count)
        if entries:
            record["decisions"] = rec.decisions_digest(entries, first)
        self._take_results(plan, record, args, kwargs, result)
        return result

    # Arguments

    def _describe(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        written = {name for _, name in plan.mutated}
        plain = {}
        for name, value in by_name(plan, args, kwargs).items():
            if not rec.about_machine(plan.name, name):
                try:
                    plain[name] = rec.encode_argument(value, partial(self._tensor, written=name in written))
                except TypeError as error:
                    raise UnsupportedOperation(
                        plan.full_name, self.tracker.current(), str(error), "Use an operation on tensors and numbers."
                    ) from error
        return {"op": plan.full_name, "args": plain}

    def _tensor(self, tensor: Tensor, written: bool) -> dict[str, Any]:
        found = self._values.find(tensor)
        if found is None:
            if not written and tensor.numel() <= rec.INLINE and not self._values.known(tensor):
                return rec.encode_constant(tensor)
            self._know([tensor])
            found = self._values.find(tensor)
            assert found is not None
        memory, of_base, of_value = found
        view, at = (memory.before, of_base) if written else (of_value, None)
        return rec.encode_source(rec.Source(*memory.origin, self._digests[memory.origin], view, at))

    def _know(self, tensors: Iterable[Tensor]) -> None:
        """Make a constant of each tensor that comes from nowhere."""
        for tensor in tensors:
            if self._values.find(tensor) is None:
                if self._values.known(tensor):
                    raise UnsupportedOperation(
                        rec.CONST, self.tracker.current(), "a part of memory that was never seen whole is used",
                        "Make it by operations of the step.",
                    )  # fmt: skip
                self._source_record({"op": rec.CONST}, tensor)

    def _source_record(self, record: dict[str, Any], tensor: Tensor) -> None:
        tensor = tensor.detach()
        origin = (len(self.records), 0)
        record["results"] = [self._digest(tensor, origin)]
        if record["op"] == rec.CONST:
            site, draw = rec.next_place(self.records[-1] if self.records else None)
            record["place"] = [site, 0, draw, 0]
        self._values.made(tensor, origin, constant=record["op"] == rec.CONST)
        self.records.append(record)

    def _commit_source(self, name: str, tensor: Tensor) -> dict[str, Any]:
        live = tensor.detach()
        found = self._values.find(live)
        if found is None and name in self._built:
            origin, view = self._built[name]
            return rec.encode_source(rec.Source(*origin, self._digests[origin], view))
        if found is None:
            self._source_record({"op": rec.CONST}, live)
            found = self._values.find(live)
            assert found is not None
        memory, _, view = found
        return rec.encode_source(rec.Source(*memory.origin, self._digests[memory.origin], view))

    # Results

    def _take_results(
        self, plan: Plan, record: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        arguments = by_name(plan, args, kwargs)
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        written = [t for _, n in plan.mutated for t in tree_leaves(arguments.get(n)) if isinstance(t, Tensor)]
        targets = {t.untyped_storage()._cdata for t in written}
        number = len(self.records)
        out: list[str | None] = []
        results: list[Any] = []
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()._cdata
                if storage in targets:
                    continue
                if storage in given and self._values.find(value) is not None:
                    raise UnsupportedOperation(
                        plan.full_name, self.tracker.current(), "it returns a part of its argument without saying so",
                        "Use an operation that copies.",
                    )  # fmt: skip
                origin = (number, len(results))
                results.append(self._digest(value, origin))
                self._values.made(value, origin)
            else:
                results.append(rec.encode_argument(value, _no_tensor))
            out.append(rec.describe(value))
        for tensor in written:
            base = self._values.base(tensor)
            found = self._values.find(tensor)
            assert found is not None
            origin = (number, len(results))
            results.append(self._digest(base, origin))
            out.append(rec.describe(base))
            found[0].written(origin)
        self.records.append({**record, "out": out, "results": results})

    def _digest(self, tensor: Tensor, origin: Origin) -> str:
        value = rec.canonical_value(tensor)
        if origin in self._keep:
            self._kept[origin] = value.clone()
        found = self._digests[origin] = rec.value_digest(value)
        return found


def _no_tensor(tensor: Tensor) -> Any:
    raise TypeError(f"a tensor of shape {tuple(tensor.shape)} inside a result")
