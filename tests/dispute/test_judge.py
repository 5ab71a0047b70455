"""The judge of one record: whoever is honest wins, on either side, for a cheat of every kind."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from support.cheats import (
    ChangesRate,
    ClaimsFloat32,
    DatasetWith,
    DriftsOneUlp,
    DropsStep,
    LooksAhead,
    ReplacesWeights,
    ResetsMomentum,
    TampersStatistics,
    TrainsInFloat32,
    steering,
)
from support.op_disputes import Bench, Difference, at_step, dispute, session_with
from support.processes import REPOSITORY
from support.runs import SMALL_DIGITS, SessionMaker

from vt_core.dispute import records as rec
from vt_core.dispute.inputs import Exhibit
from vt_core.dispute.judge import Finding, judge_record, record_uses, step_end
from vt_core.dispute.messages import Role
from vt_core.dispute.recorder import record_step
from vt_core.dispute.rules import Fault
from vt_core.dispute.witness import Witness, parse_witness
from vt_core.engine.mode import VerifiedMode, _inexact
from vt_core.engine.plans import Plan
from vt_core.engine.rounding_log import encode_step
from vt_core.engine.step_record import StepLog
from vt_core.engine.streams import Streams
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.numerics import OpClass, SiteEntries
from vt_core.training.session import Session
from vt_core.training.state import State, digest


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(SMALL_DIGITS)


@pytest.fixture(scope="module")
def unagreed() -> Bench:
    return Bench(SMALL_DIGITS, agreed=False)


def wrong_products(session: Session) -> None:
    """Move one element of every product by one unit in its last place, without an entry in the log."""

    def run(mode: VerifiedMode, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = _inexact(mode, plan, func, args, kwargs)
        first = result if isinstance(result, torch.Tensor) else next(t for t in result if t is not None)
        flat = first.reshape(-1)
        value = flat[0].to(torch.float32)
        flat[0] = torch.nextafter(value, torch.tensor(torch.inf, dtype=torch.float32)).to(flat.dtype)
        return result

    session.mode.treatments[OpClass.CONTRACTION] = run


def other_masks(session: Session) -> None:
    session.mode.streams = Streams(session.spec.seed + 1)


def changed_label(session: Session) -> None:
    def change(_: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch["labels"][0] = (batch["labels"][0] + 1) % 10
        return batch

    session.dataset = DatasetWith(session.dataset, change)


def changed_pixel(session: Session) -> None:
    def change(_: Any, batch: dict[str, Any]) -> dict[str, Any]:
        batch["images"][0, 0, 0, 0] += np.float32(0.5)
        return batch

    session.dataset = DatasetWith(session.dataset, change)


def scaled_loss(session: Session) -> None:
    honest = session.job.loss
    session.job = SMALL_DIGITS.open()[0]
    session.job.loss = lambda model, batch: honest(model, batch) * 1.001  # type: ignore[method-assign]


CHEATS: dict[str, tuple[SessionMaker, str, Finding | Fault]] = {
    "wrong product": (session_with(wrong_products), "aten.convolution.default", Finding.RESULT_MISMATCH),
    "other dropout mask": (session_with(other_masks), "aten.native_dropout.default", Finding.RESULT_MISMATCH),
    "changed label": (session_with(changed_label), "vt::batch", Finding.DATA_MISMATCH),
    "changed pixel": (session_with(changed_pixel), "vt::batch", Finding.DATA_MISMATCH),
    "scaled loss": (session_with(scaled_loss), "aten.mul.Tensor", Finding.PROGRAM_MISMATCH),
    "other learning rate": (at_step(ChangesRate, 3), "vt.sgd_.default", Finding.PROGRAM_MISMATCH),
    "other optimizer": (at_step(LooksAhead, 3), "", Finding.PROGRAM_MISMATCH),
    "tampered statistics": (at_step(TampersStatistics, 3), "vt::commit", Finding.STATE_MISMATCH),
    "drifting weight": (at_step(DriftsOneUlp, 3), "vt::commit", Finding.STATE_MISMATCH),
    "forgotten momentum": (at_step(ResetsMomentum, 3), "vt::load", Fault.WITNESS_MISMATCH),
    "dropped step": (at_step(DropsStep, 3), "", Finding.PROGRAM_MISMATCH),
    "plain float32": (at_step(TrainsInFloat32, 3), "", Finding.PROGRAM_MISMATCH),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_trainer_loses(name: str, bench: Bench) -> None:
    cheat, op, reason = CHEATS[name]
    found = dispute(bench, 3, trainer=cheat)
    assert not op or found.op == op
    ruling = found.rule()
    assert (ruling.winner, ruling.reason) == (Role.AUDITOR, reason), ruling


@pytest.mark.parametrize("name", CHEATS)
def test_a_lying_auditor_loses(name: str, bench: Bench) -> None:
    """The same acts on the other side: the auditor replays something else and accuses an honest trainer."""
    cheat, _, reason = CHEATS[name]
    ruling = dispute(bench, 3, auditor=cheat).rule()
    assert ruling.winner is Role.TRAINER, ruling
    expected = {Finding.RESULT_MISMATCH: Finding.RESULT_STANDS, Fault.WITNESS_MISMATCH: Finding.STATE_MISMATCH}
    assert ruling.reason == expected.get(reason, reason)  # type: ignore[call-overload]


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("side", [Role.TRAINER, Role.AUDITOR])
def test_the_first_steps_are_judged_too(step: int, side: Role, bench: Bench) -> None:
    def cheat(session: Session) -> None:
        session.mode.streams = Streams(5)

    given = {str(side): session_with(cheat)}
    ruling = dispute(bench, step, **given).rule()
    assert ruling.winner is (Role.AUDITOR if side is Role.TRAINER else Role.TRAINER), ruling


def test_replaced_weights_are_no_result_of_the_step(bench: Bench) -> None:
    for side, winner in (("trainer", Role.AUDITOR), ("auditor", Role.TRAINER)):
        found = dispute(bench, 4, **{side: ReplacesWeights})
        assert found.op == "vt::commit"
        assert found.rule().winner is winner


def test_a_log_full_of_float32_errors_does_not_stand(bench: Bench) -> None:
    classes = frozenset({OpClass.CONTRACTION})
    found = dispute(bench, 3, trainer=steering(ClaimsFloat32, classes, 1.0, first=3))
    ruling = found.rule()
    assert (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)
    assert "no honest machine" in ruling.detail


def test_without_agreed_facts_program_and_data_stay_open(unagreed: Bench) -> None:
    for name, reason in (
        ("changed label", Finding.DATA_DISPUTED),
        ("other learning rate", Finding.PROGRAM_DISPUTED),
        ("dropped step", Finding.PROGRAM_DISPUTED),
    ):
        for side in ("trainer", "auditor"):
            ruling = dispute(unagreed, 3, **{side: CHEATS[name][0]}).rule()
            assert (ruling.winner, ruling.reason) == (None, reason), ruling
    # What needs no agreement is decided all the same.
    assert dispute(unagreed, 3, trainer=CHEATS["wrong product"][0]).rule().winner is Role.AUDITOR
    assert dispute(unagreed, 3, trainer=CHEATS["drifting weight"][0]).rule().winner is Role.AUDITOR


def test_proofs_of_something_else_prove_nothing(bench: Bench) -> None:
    found = dispute(bench, 3, trainer=CHEATS["other learning rate"][0])
    assert bench.facts is not None
    honest = bench.facts.exhibit(3, found.index)
    assert honest.program is not None and honest.inputs is not None
    lying = dataclasses.replace(
        honest.program, leaf=dumps(rec.skeleton(json.loads(found.trainer.records[found.index])))
    )
    shifted = bench.facts.exhibit(3, found.index + 1)
    for false in (Exhibit(), Exhibit(lying, honest.inputs), shifted):
        ruling = judge_record(found.case(exhibits={Role.TRAINER: false}))
        assert ruling is not None and (ruling.winner, ruling.reason) == (None, Finding.PROGRAM_DISPUTED)
        # A false proof of one party does not keep the other's from counting.
        ruling = judge_record(found.case(exhibits={Role.TRAINER: false, Role.AUDITOR: honest}))
        assert ruling is not None and ruling.winner is Role.AUDITOR


# Single records


@pytest.fixture(scope="module")
def product(bench: Bench) -> Difference:
    """A dispute about the first convolution, in which the trainer is honest."""
    return dispute(bench, 3, auditor=session_with(wrong_products))


def change(record: bytes, **fields: Any) -> bytes:
    return dumps({**json.loads(record), **fields})


@pytest.mark.parametrize("giver", [Role.TRAINER, Role.AUDITOR])
def test_a_wrong_witness_loses_for_who_gave_it(giver: Role, product: Difference) -> None:
    witness, case = product.witness(), product.case()
    origin, value = next(iter(witness.inputs.items()))
    wrong = value.clone()
    wrong.reshape(-1)[0] += 1
    other = Role.AUDITOR if giver is Role.TRAINER else Role.TRAINER
    for false in (
        dataclasses.replace(witness, inputs={**witness.inputs, origin: wrong}),
        dataclasses.replace(witness, inputs={}),
        dataclasses.replace(witness, index=product.index + 1),
        dataclasses.replace(witness, log=witness.log[:-1]),
    ):
        ruling = judge_record(case, false, giver)
        assert ruling is not None and (ruling.winner, ruling.reason) == (other, Fault.WITNESS_MISMATCH)
    ruling = judge_record(case, witness, giver)
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.TRAINER, Finding.RESULT_STANDS)


def test_a_trainer_cannot_show_another_result_than_it_claimed(bench: Bench) -> None:
    found = dispute(bench, 3, trainer=session_with(wrong_products))
    witness = found.witness()
    honest = dataclasses.replace(witness, outputs={0: found_honest(found)})
    ruling = judge_record(found.case(), honest)
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Fault.WITNESS_MISMATCH)
    ruling = judge_record(found.case(), dataclasses.replace(witness, outputs={}))
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)


def test_values_of_another_shape_are_no_result(bench: Bench) -> None:
    """Their digest may be what the record claims, but then the record claims nothing that the operation can give."""
    found = dispute(bench, 3, trainer=session_with(wrong_products))
    witness = found.witness()
    for strange in (torch.zeros(3, dtype=torch.float64), witness.outputs[0].to(torch.float32)):
        record = change(found.trainer.records[found.index], results=[rec.value_digest(strange)])
        ruling = judge_record(found.case(trainer=record), dataclasses.replace(witness, outputs={0: strange}))
        assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)


def found_honest(found: Difference) -> torch.Tensor:
    with found.auditor._session.open():
        return found.auditor.witness(found.index).outputs[0]


def test_a_false_origin_or_digest_loses(product: Difference, bench: Bench) -> None:
    honest = product.trainer.records[product.index]
    args = json.loads(honest)["args"]
    false_digest = change(honest, args={**args, "input": {**args["input"], "digest": "0" * 64}})
    other = [args["weight"]["from"][0] + 1, 0]
    theirs = json.loads(product.trainer.records[other[0]])["results"][0]
    false_origin = change(honest, args={**args, "weight": {**args["weight"], "from": other, "digest": theirs}})
    beyond = change(honest, args={**args, "input": {**args["input"], "from": [product.index + 1, 0]}})
    no_result = change(honest, args={**args, "input": {**args["input"], "from": [args["input"]["from"][0], 7]}})
    for false, reason in (
        (false_digest, Fault.MALFORMED_RECORD),
        (beyond, Fault.MALFORMED_RECORD),
        (no_result, Fault.MALFORMED_RECORD),
        (false_origin, Finding.PROGRAM_MISMATCH),
        (honest[:-1], Fault.MALFORMED_RECORD),
        (b"", Fault.MALFORMED_RECORD),
        (change(honest, place=[99, 1, 0, 0]), Fault.MALFORMED_RECORD),
        (change(honest, place=[*json.loads(honest)["place"][:3], 1]), Finding.RESULT_MISMATCH),
        (change(honest, out=["float64[1]"]), Finding.RESULT_MISMATCH),
        (change(honest, op="aten.mm.default"), Finding.PROGRAM_MISMATCH),
    ):
        ruling = judge_record(product.case(trainer=false, auditor=honest), product.witness())
        assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, reason), (false, ruling)
        ruling = judge_record(product.case(trainer=honest, auditor=false), product.witness())
        assert ruling is not None and ruling.winner is Role.TRAINER, (false, ruling)
    both = judge_record(product.case(trainer=b"", auditor=honest[:-1]))
    assert both is not None and (both.winner, both.reason) == (None, Fault.BOTH_FAILED)


def test_decisions_must_be_those_of_the_committed_log(product: Difference) -> None:
    """A trainer with a result that only an entry could explain must have committed to that entry."""
    record = json.loads(product.trainer.records[product.index])
    site = record["place"][0]
    witness = product.witness()
    value = float(witness.outputs[0].reshape(-1)[0])
    moved = witness.outputs[0].clone()
    moved.reshape(-1)[0] = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    entry = SiteEntries(
        3, np.array([0]), np.zeros(1, np.uint8), np.array([0]), moved.reshape(-1)[:1].numpy().astype(np.float32)
    )
    forged = StepLog(3, {**product.trainer.log.sites, site: entry}, product.trainer.log.fingerprints)
    claim = {
        **record,
        "results": [rec.value_digest(moved)],
        "decisions": rec.decisions_digest({site: entry}, site),
    }
    shown = dataclasses.replace(witness, outputs={0: moved})
    # Not in the log it committed to.
    ruling = judge_record(product.case(trainer=dumps(claim), auditor=dumps(record)), shown)
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Fault.LOG_MISMATCH)
    # Committed to, but no honest machine makes it.
    committed = dataclasses.replace(shown, log=encode_step(forged))
    case = product.case(trainer=dumps(claim), auditor=dumps(record), log=hashlib.sha256(encode_step(forged)).digest())
    ruling = judge_record(case, committed)
    assert ruling is not None and (ruling.winner, ruling.reason) == (Role.AUDITOR, Finding.RESULT_MISMATCH)


def test_the_end_of_a_step_is_read_and_nothing_else(product: Difference, bench: Bench) -> None:
    end = step_end(product.trainer.records[-1])
    state, _, trace = bench.after(3)
    assert (end.step, end.state, end.trace) == (3, digest(state).root, trace)
    with pytest.raises(EvidenceError) as caught:
        step_end(product.trainer.records[0])
    assert caught.value.reason == "evidence_malformed"
    for index, record in enumerate(product.trainer.records):
        assert all(j < index for j in record_uses(record, index))


def test_a_witness_is_parsed_strictly(product: Difference) -> None:
    data = product.witness().to_bytes()
    again = parse_witness(data)
    assert again.index == product.index and again.inputs.keys() == product.witness().inputs.keys()
    named = Witness(1, {}, {}, b"").to_bytes().replace(b'"log"', b'"lig"')
    eighth = Witness(1, {(0, 0): torch.zeros(2).to(torch.float8_e5m2)}, {}, b"").to_bytes()
    for false in (
        b"",
        eighth,
        data[:3],
        data[:-1],
        b"\xff" * 4 + data[4:],
        data.replace(b"witness/1", b"witness/2"),
        named,
    ):
        with pytest.raises(EvidenceError) as caught:
            parse_witness(false)
        assert caught.value.reason == "evidence_malformed"


def test_a_step_must_start_from_the_agreed_state(bench: Bench) -> None:
    honest = bench.claim(3)
    state = bench.before(3)
    assert state is not None
    weight = state.tensors["param.linear.weight"].clone()
    weight[0, 0] += 1
    session = bench.session()
    with session.open():
        forged = record_step(session, State(2, {**state.tensors, "param.linear.weight": weight}, state.scalars), 3)
    for trainer, auditor, winner in ((forged, honest, Role.AUDITOR), (honest, forged, Role.TRAINER)):
        found = Difference(bench, 3, trainer, auditor, 0)
        assert found.op == rec.START and trainer.records[0] != auditor.records[0]
        ruling = found.rule()
        assert (ruling.winner, ruling.reason) == (winner, Finding.STATE_MISMATCH)
    # A start that is true, but of tensors that are loaded as something else.
    index = 1 + sorted(state.tensors).index("param.linear.weight")
    for trainer, auditor, winner in ((forged, honest, Role.AUDITOR), (honest, forged, Role.TRAINER)):
        found = Difference(bench, 3, trainer, auditor, index)
        case = found.case(lookup=lambda j: honest.records[j])
        assert judge_record(case) is None
        ruling = judge_record(case, found.witness())
        assert ruling is not None and ruling.winner is winner


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        (rec.START, {"step": 1}),
        (rec.START, {"op": rec.STATE}),
        (rec.LOAD, {"name": "param.linear.bias"}),
        (rec.BATCH, {"place": [5, 1, 0, 0]}),
        (rec.COMMIT, {"name": "a"}),
        (rec.COMMIT, {"op": rec.CONST}),
        (rec.STATE, {"step": 4}),
        (rec.STATE, {"count": 1 << 50}),
    ],
)
def test_a_record_that_cannot_stand_there_loses(op: str, changes: dict[str, Any], bench: Bench) -> None:
    claim = bench.claim(3)
    index = max(i for i, r in enumerate(claim.records) if json.loads(r)["op"] == op)
    false = change(claim.records[index], **changes)
    for trainer, auditor, winner in (
        (false, claim.records[index], Role.AUDITOR),
        (claim.records[index], false, Role.TRAINER),
    ):
        ruling = judge_record(Difference(bench, 3, claim, claim, index).case(trainer=trainer, auditor=auditor))
        assert ruling is not None and (ruling.winner, ruling.reason) == (winner, Fault.MALFORMED_RECORD), ruling


def test_the_judge_needs_no_model_code() -> None:
    """What is imported to rule: none of the shipped jobs, and nothing that reads data."""
    program = (
        "import sys, vt_core.dispute.judge; "
        "print([m for m in sys.modules if m.startswith(('vt_core.jobs', 'sklearn', 'tasks', 'flows', 'dvc', 'boto'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
