"""The judge of one record: rules between two parties whose steps have equal records up to this one.

No model code, no data and no GPU is needed. In this order:

1. a record that does not parse, or that says something else of agreed records than they say, loses;
2. the state at the start must be the agreed one, and the root at the end that of the agreed tensors;
3. another operation, argument, scalar or origin is a dispute about the *program*: the agreed program decides
   (``inputs``), shown by an exhibit of either party; without it the ruling is ``program_disputed``;
4. another batch is a dispute about the *data*: the agreed inputs decide, else ``data_disputed``;
5. other results of the same operation on the same inputs: it is recomputed here from the witness. The trainer's result
   stands if it is what comes out with its decisions, each inside the interval rule and in its committed log. The log is
   the trainer's to choose, so a result that stands wins. One that misses by a few roundings within
   ``LIMITS.exceeded_within`` tolerances is ``tolerance_exceeded``: nobody is accused. Else the auditor wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from vt_core.dispute import records as rec
from vt_core.dispute.inputs import Exhibit, agreed_batch, agreed_program, matches
from vt_core.dispute.messages import OTHER, PARTIES, Role
from vt_core.dispute.recompute import MOST, Recomputed, misfit, recompute
from vt_core.dispute.rules import Fault, Ruling, StepEnd
from vt_core.dispute.tracking import Origin
from vt_core.dispute.views import apply
from vt_core.dispute.witness import Witness
from vt_core.engine.step_record import decode_step
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash, root
from vt_core.numerics import Grid, SiteEntries, round_plain_
from vt_core.training.spec import RunSpec
from vt_core.training.state import State, digest
from vt_core.verify.limits import AuditorLimits

LIMITS = AuditorLimits.default()
Lookup = Callable[[int], bytes]  # an agreed record by index; KeyError if it was not shown
Parsed = Mapping[Role, dict[str, Any]]


class Finding(StrEnum):
    """Reasons of the judge, besides the faults of ``rules``."""

    STATE_MISMATCH = "state_mismatch"
    PROGRAM_MISMATCH = "program_mismatch"
    PROGRAM_DISPUTED = "program_disputed"
    DATA_MISMATCH = "data_mismatch"
    DATA_DISPUTED = "data_disputed"
    RESULT_MISMATCH = "result_mismatch"
    RESULT_STANDS = "result_stands"
    TOLERANCE_EXCEEDED = "tolerance_exceeded"


@dataclass(frozen=True)
class Case:
    """One record in dispute, with what is agreed around it.

    ``before`` is the agreed state root at the step's start (None for step 0); ``log`` the SHA-256 of the step's record
    in the trainer's committed rounding log, None if it is not known; ``exhibits`` proofs about the agreed program and
    inputs, by the party that shows them.
    """

    spec: RunSpec
    step: int
    index: int
    trainer: bytes
    auditor: bytes
    lookup: Lookup
    before: bytes | None
    log: bytes | None = None
    exhibits: Mapping[Role, Exhibit] | None = None


class _Loses(Exception):
    def __init__(self, party: Role, reason: str, why: str) -> None:
        self.ruling = Ruling(OTHER[party], reason, why)
        super().__init__(why)


def step_end(record: bytes) -> StepEnd:
    """Read the last record of a step. Raises EvidenceError("evidence_malformed")."""
    plain = rec.parse_record(record)
    try:
        if plain["op"] != rec.STATE:
            raise ValueError("it is not the record that ends a step")
        return StepEnd(plain["step"], bytes.fromhex(plain["results"][0]), bytes.fromhex(plain["trace"]))
    except ValueError as error:
        raise EvidenceError("evidence_malformed", f"record: {error}") from error


def record_uses(record: bytes, index: int) -> list[int]:
    """Return which records the judge looks up for this one. Raises EvidenceError("evidence_malformed")."""
    found = rec.uses(rec.parse_record(record), index)
    if found and not 0 <= found[0] <= found[-1] < index:
        raise EvidenceError("evidence_malformed", f"record {index} comes from records {found[0]} to {found[-1]}")
    return found


def judge_record(case: Case, witness: Witness | None = None, giver: Role = Role.TRAINER) -> Ruling | None:
    """Rule on one record; None means that a witness is needed (``giver`` says who gave the one given).

    Raises UnsupportedOperation if the operation cannot be run here at all.
    """
    if case.trainer == case.auditor:
        return Ruling(Role.TRAINER, Fault.NO_DIFFERENCE, "the records are equal")
    try:
        parsed = _parse(case)
        if isinstance(parsed, Ruling):
            return parsed
        return _decide(case, parsed, witness, giver)
    except _Loses as lost:
        return lost.ruling


def _parse(case: Case) -> Parsed | Ruling:
    parsed: dict[Role, dict[str, Any]] = {}
    faults: dict[Role, str] = {}
    for role, data in zip(PARTIES, (case.trainer, case.auditor), strict=True):
        try:
            record = rec.parse_record(data)
            record_uses(data, case.index)
            _check_origins(record, case.lookup)
            _check_place(case, record)
            parsed[role] = record
        except KeyError as error:
            faults[role] = f"record {error} is not shown"
        except EvidenceError as error:
            faults[role] = str(error)
    if len(faults) == len(PARTIES):
        return Ruling(None, Fault.BOTH_FAILED, "; ".join(f"{role}: {why}" for role, why in faults.items()))
    for role, why in faults.items():
        return Ruling(OTHER[role], Fault.MALFORMED_RECORD, f"{role}: {why}")
    return parsed


def _check_origins(record: dict[str, Any], lookup: Lookup) -> None:
    for source in rec.sources(record):
        results = rec.parse_record(lookup(source.record)).get("results", [])
        if source.result >= len(results) or results[source.result] != source.digest:
            raise EvidenceError(
                "evidence_malformed",
                f"an argument is said to be result {source.result} of record {source.record}, which has another digest",
            )


def _check_place(case: Case, record: dict[str, Any]) -> None:
    """What a record must say because of the step and place it stands at."""
    op, wrong = record["op"], ""
    if (op == rec.START) != (case.index == 0 and case.before is not None):
        wrong = "a step begins with the state that it starts from, and only there"
    elif "step" in record and record["step"] != case.step - (op == rec.START):
        wrong = "it belongs to another step"
    elif op == rec.LOAD:
        names = sorted(_object(case.lookup(0)).get("tensors", {}))
        if not 1 <= case.index <= len(names) or record["name"] != names[case.index - 1]:
            wrong = "the state's tensors come first, each once, by name"
    elif op not in (rec.START, rec.STATE):
        wrong = _check_order(record, _object(case.lookup(case.index - 1)) if case.index else None)
    if wrong:
        raise EvidenceError("evidence_malformed", wrong)


def _check_order(record: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Return what is wrong with a record after the record ``before``, an empty string if nothing is."""
    op, last = record["op"], None if before is None else before["op"]
    if op == rec.COMMIT:
        return "" if last != rec.COMMIT or (before and before["name"] < record["name"]) else "names are not in order"
    if last == rec.COMMIT:
        return "nothing but the state's tensors and the state follow one of them"
    if op == rec.BATCH and last not in (rec.START, rec.LOAD, rec.BATCH):
        return "the batch comes before all operations"
    return "" if tuple(record["place"][::2]) == rec.next_place(before) else "sites or draws are counted wrongly"


def _object(data: bytes) -> dict[str, Any]:
    return rec.parse_record(data)


def _decide(case: Case, parsed: Parsed, witness: Witness | None, giver: Role) -> Ruling | None:
    trainer, auditor = parsed[Role.TRAINER], parsed[Role.AUDITOR]
    if trainer["op"] == auditor["op"] == rec.START:
        return _start(case, parsed)
    if rec.skeleton(trainer) != rec.skeleton(auditor):
        return _program(case, parsed)
    op = trainer["op"]
    if op == rec.BATCH:
        return _data(case, parsed)
    if op == rec.STATE:
        return _state(case, parsed)
    if witness is None:
        return None
    _check_witness(case, trainer, witness, giver)
    if op == rec.LOAD:
        return _load(case, parsed, witness, giver)
    if op == rec.COMMIT:
        return _commit(case, parsed, witness)
    return _result(case, parsed, witness, giver)


# Facts about states


def _start(case: Case, parsed: Parsed) -> Ruling:
    fits = {}
    for role, record in parsed.items():
        roots = {name: bytes.fromhex(root) for name, root in record["tensors"].items()}
        fits[role] = _state_root(record["step"], record["scalars"], roots) == case.before
    return _one_of(fits, Finding.STATE_MISMATCH, "the step starts from another state than the agreed one")


def _state(case: Case, parsed: Parsed) -> Ruling:
    commits = [_object(case.lookup(j)) for j in rec.uses(parsed[Role.TRAINER], case.index)]
    if any(c["op"] != rec.COMMIT for c in commits):
        raise EvidenceError("evidence_malformed", "the state does not follow the records of its tensors")
    roots = {c["name"]: bytes.fromhex(c["results"][0]) for c in commits}
    found = _state_root(case.step, parsed[Role.TRAINER]["scalars"], roots).hex()
    fits = {role: record["results"] == [found] for role, record in parsed.items()}
    return _one_of(fits, Finding.STATE_MISMATCH, "the state's root is not that of its tensors")


def _state_root(step: int, scalars: Any, roots: Mapping[str, bytes]) -> bytes:
    tail = dumps({"step": step, "scalars": scalars, "tensors": len(roots)})
    return root([*(leaf_hash(roots[name]) for name in sorted(roots)), leaf_hash(tail)])


def _load(case: Case, parsed: Parsed, witness: Witness, giver: Role) -> Ruling:
    name = parsed[Role.TRAINER]["name"]
    value = witness.outputs.get(0)
    if value is None or _tensor_root(case.spec, name, value) != _object(case.lookup(0))["tensors"][name]:
        raise _Loses(giver, Fault.WITNESS_MISMATCH, f"what the {giver} shows is not {name} of the agreed state")
    found = [rec.value_digest(rec.canonical_value(value))]
    fits = {role: record["results"] == found for role, record in parsed.items()}
    return _one_of(fits, Finding.STATE_MISMATCH, f"{name} is not the tensor of the agreed state")


def _commit(case: Case, parsed: Parsed, witness: Witness) -> Ruling:
    record = parsed[Role.TRAINER]
    source = rec.decode_argument(record["value"])
    value = apply(witness.inputs[source.record, source.result], source.view)
    found = [_tensor_root(case.spec, record["name"], value)]
    fits = {role: r["results"] == found for role, r in parsed.items()}
    return _one_of(fits, Finding.STATE_MISMATCH, f"{record['name']} is not what the operations of the step made")


def _tensor_root(spec: RunSpec, name: str, value: Tensor) -> str:
    """Return the root (hex) that a tensor of the state has in a leaf, from its value in the compute precision."""
    grid = Grid.parse(spec.grid)
    if value.dtype == spec.compute and value.dim() > 0:
        value = value.clone()
        round_plain_(value, grid, False)
        value = value.to(grid.storage)
    return digest(State(0, {name: value}, {})).tensors[name].hex()


# Facts about the program and the data


def _program(case: Case, parsed: Parsed) -> Ruling:
    exhibits = case.exhibits or {}
    leaf = agreed_program(case.spec, case.step, case.index, exhibits.values())
    if leaf is None:
        return Ruling(None, Finding.PROGRAM_DISPUTED, _difference(parsed))
    inputs = agreed_batch(case.spec, case.step, exhibits.values())
    fits = {role: matches(leaf, rec.skeleton(record), inputs) for role, record in parsed.items()}
    if fits[Role.TRAINER] is fits[Role.AUDITOR]:
        known = "the agreed program leaves this open" if fits[Role.TRAINER] is not False else "both left the program"
        return Ruling(None, Finding.PROGRAM_DISPUTED, f"{_difference(parsed)}; {known}")
    if None in fits.values() and False not in fits.values():
        return Ruling(None, Finding.PROGRAM_DISPUTED, f"{_difference(parsed)}; the agreed inputs were not shown")
    loser = next(role for role, fit in fits.items() if fit is False)
    return Ruling(OTHER[loser], Finding.PROGRAM_MISMATCH, f"{loser} left the agreed program: {_difference(parsed)}")


def _difference(parsed: Parsed) -> str:
    trainer, auditor = (rec.skeleton(parsed[role]) for role in PARTIES)
    if trainer["op"] != auditor["op"]:
        return f"the trainer runs {trainer['op']}, the auditor {auditor['op']}"
    names = sorted(k for k in trainer.keys() | auditor.keys() if trainer.get(k) != auditor.get(k))
    if names and isinstance(trainer.get(names[0]), dict) and isinstance(auditor.get(names[0]), dict):
        a, b = trainer[names[0]], auditor[names[0]]
        names[0] += "." + min(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    return f"{trainer['op']}: the parties differ in {', '.join(names)}"


def _data(case: Case, parsed: Parsed) -> Ruling:
    name = parsed[Role.TRAINER]["name"]
    inputs = agreed_batch(case.spec, case.step, (case.exhibits or {}).values())
    if inputs is None:
        return Ruling(None, Finding.DATA_DISPUTED, f"the parties have other {name!r} in the batch of step {case.step}")
    fits = {role: record["results"] == [inputs["batch"].get(name)] for role, record in parsed.items()}
    return _one_of(fits, Finding.DATA_MISMATCH, f"{name!r} is not that of the agreed batch of step {case.step}")


# One operation


def _check_witness(case: Case, record: dict[str, Any], witness: Witness, giver: Role) -> None:
    if witness.index != case.index:
        raise _Loses(giver, Fault.WITNESS_MISMATCH, f"the {giver} shows values for record {witness.index}")
    for source in rec.sources(record):
        origin = source.record, source.result
        value = witness.inputs.get(origin)
        if value is None or rec.value_digest(rec.canonical_value(value)) != source.digest:
            why = f"the {giver} does not show result {origin[1]} of record {origin[0]}"
            raise _Loses(giver, Fault.WITNESS_MISMATCH, why)


def _result(case: Case, parsed: Parsed, witness: Witness, giver: Role) -> Ruling:
    trainer, auditor = parsed[Role.TRAINER], parsed[Role.AUDITOR]
    entries = _decisions(case, trainer, witness, giver)
    inputs: dict[Origin, Tensor] = {o: rec.canonical_value(t) for o, t in witness.inputs.items()}
    found = recompute(case.spec, case.step, trainer, inputs, entries)
    op = trainer["op"]
    if not _fits_shape(found, trainer):
        if not _fits_shape(found, auditor):
            return Ruling(
                None, Fault.BOTH_FAILED, f"{op}: both parties claim other shapes or counts than come out here"
            )
        return Ruling(Role.AUDITOR, Finding.RESULT_MISMATCH, f"{op}: other shapes or counts come out here")
    if found.results == trainer["results"]:
        return Ruling(Role.TRAINER, Finding.RESULT_STANDS, f"{op} gives the trainer's result here too")
    shown = _claimed(trainer, witness, giver)
    if shown is None and giver is not Role.TRAINER and found.results != auditor["results"]:
        return Ruling(None, Fault.JUDGE_FAILED, f"{op} gives neither result here, and the trainer's was not shown")
    count, distance = (0, float("inf")) if shown is None else _misfit(case, found, trainer, shown)
    if count <= MOST and distance <= LIMITS.exceeded_within:
        return Ruling(
            None, Finding.TOLERANCE_EXCEEDED,
            f"{op}: the trainer's result is explained by {count} roundings that miss by {distance:.3g} tolerances",
        )  # fmt: skip
    if found.findings:
        why = "its log claims roundings that no honest machine makes"
    else:
        why = (
            f"{count} elements differ, by up to {distance:.3g} tolerances" if shown else "another result comes out here"
        )
    return Ruling(Role.AUDITOR, Finding.RESULT_MISMATCH, f"{op}: the trainer's result does not stand: {why}")


def _fits_shape(found: Recomputed, record: dict[str, Any]) -> bool:
    place = record["place"]
    return found.out == record["out"] and found.counts == (place[1], place[3])


def _decisions(case: Case, trainer: dict[str, Any], witness: Witness, giver: Role) -> dict[int, SiteEntries]:
    """Return the committed log's entries for the record's sites, counted from the first.

    The trainer loses if its record was made with others.
    """
    first, count, _, _ = trainer["place"]
    if not count:
        return {}
    if case.log is not None and hashlib.sha256(witness.log).digest() != case.log:
        raise _Loses(giver, Fault.WITNESS_MISMATCH, f"the {giver} does not show the committed log of step {case.step}")
    try:
        sites = decode_step(witness.log).sites
    except EvidenceError as error:
        loser, reason = (giver, Fault.WITNESS_MISMATCH) if case.log is None else (Role.TRAINER, Fault.LOG_MISMATCH)
        raise _Loses(loser, reason, str(error)) from error
    entries = {i: sites[i] for i in range(first, first + count) if i in sites}
    if trainer.get("decisions") != (rec.decisions_digest(entries, first) if entries else None):
        raise _Loses(Role.TRAINER, Fault.LOG_MISMATCH, "the trainer's decisions are not those of its log")
    return {i - first: e for i, e in entries.items()}


def _claimed(trainer: dict[str, Any], witness: Witness, giver: Role) -> dict[int, Tensor] | None:
    """Return the values behind the trainer's results, None if they were not shown."""
    shown = {}
    for number, result in enumerate(trainer["results"]):
        if not isinstance(result, str):
            continue
        value = witness.outputs.get(number)
        if value is None or rec.value_digest(rec.canonical_value(value)) != result:
            if giver is Role.TRAINER and value is not None:
                raise _Loses(
                    giver, Fault.WITNESS_MISMATCH, f"the trainer shows another result {number} than it claimed"
                )
            return None
        shown[number] = value
    return shown


def _misfit(case: Case, found: Recomputed, trainer: dict[str, Any], shown: Mapping[int, Tensor]) -> tuple[int, float]:
    """Return how many elements of the trainer's results do not fit, and by how many tolerances at most."""
    total, worst, grid = 0, 0.0, Grid.parse(case.spec.grid)
    for number, result in enumerate(found.results):
        if result == trainer["results"][number]:
            continue
        site, own, claimed = found.sites.get(number), found.values.get(number), shown.get(number)
        if site is None or own is None or claimed is None or rec.describe(claimed) != found.out[number]:
            return total, float("inf")  # the same on every machine, or nothing of this shape
        where = found.patches.get(number)
        if where is not None:
            rest = torch.ones(own.numel(), dtype=torch.bool)
            rest[where] = False
            if not torch.equal(own.reshape(-1)[rest], claimed.reshape(-1)[rest]):
                return total, float("inf")
            own, claimed = own.reshape(-1)[where], claimed.reshape(-1)[where]
        count, distance = misfit(site, own, claimed, grid)
        total, worst = total + count, max(worst, distance)
    return total, worst


def _one_of(fits: Mapping[Role, bool], reason: str, why: str) -> Ruling:
    """Rule for the only party that is right; if neither is, for none."""
    right = [role for role, fit in fits.items() if fit]
    if len(right) != 1:
        return Ruling(None, Fault.BOTH_FAILED, f"both parties: {why}" if not right else "both parties are right")
    return Ruling(right[0], reason, f"{OTHER[right[0]]}: {why}")
