"""Every kind of operation of the shipped jobs can be judged: the honest record stands, one changed bit does not."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.awkward import awkward
from support.op_disputes import Bench, session_with
from support.processes import prepare
from support.runs import NO_LOG, SMALL_DIGITS
from support.worker import cases
from torch import Tensor

from vt_core.dispute import records as rec
from vt_core.dispute.judge import Case, judge_record
from vt_core.dispute.messages import Role
from vt_core.dispute.recorder import StepClaim
from vt_core.dispute.witness import Witness, parse_witness
from vt_core.evidence.canonical import dumps
from vt_core.training.state import digest

EACH = 2  # records of each operation that are judged, the first and the last


def changed(value: Tensor) -> Tensor:
    """Return ``value`` with the lowest bit of one element changed (in float32 where it is floating).

    That element is the largest: near zero the last place is within a few tolerances of its neighbours, which is no
    proof against anybody.
    """
    wrong = value.clone()
    flat = wrong.reshape(-1)
    if wrong.dtype == torch.bool:
        flat[-1] = ~flat[-1]
    elif wrong.is_floating_point():
        place = int(flat.abs().argmax())
        narrow = flat[place].to(torch.float32).view(torch.int32) ^ 1
        flat[place] = narrow.view(torch.float32)
    else:
        flat[-1] += 1
    assert not torch.equal(wrong, value)
    return wrong


def judge_all(bench: Bench, claim: StepClaim, each: int | None) -> tuple[Counter[str], list[str]]:
    """Judge records of a claim against lies about each result; return what was judged and what went wrong."""
    parsed = [rec.parse_record(r) for r in claim.records]
    by_op: dict[str, list[int]] = {}
    for index, p in enumerate(parsed):
        by_op.setdefault(p["op"], []).append(index)
    for op in (rec.START, rec.BATCH, rec.CONST):  # facts of their own: the state before, the data, the program
        by_op.pop(op, None)
    chosen = sorted(i for found in by_op.values() for i in (found if each is None else {found[0], found[-1]}))
    with claim._session.open():
        witnesses = claim.witnesses(chosen)
    before = bench.before(claim.step)
    root = None if before is None else digest(before).root
    judged: Counter[str] = Counter()
    wrong: list[str] = []
    for index, witness in zip(chosen, witnesses, strict=True):
        p, honest = parsed[index], claim.records[index]
        log = hashlib.sha256(witness.log).digest()
        for number, result in enumerate(p["results"]):
            lie, shown = a_lie(p, number, result, witness)
            if lie is None:
                continue
            case = Case(bench.spec, claim.step, index, lie, honest, lambda j: claim.records[j], root, log)
            rulings = (
                judge_record(case, shown),
                judge_record(dataclasses.replace(case, trainer=honest, auditor=lie), witness),
            )
            judged[p["op"]] += 1
            if [r and r.winner for r in rulings] != [Role.AUDITOR, Role.TRAINER]:
                wrong.append(f"{index} {p['op']} result {number}: {rulings}")
    return judged, wrong


def a_lie(p: dict[str, Any], number: int, result: Any, witness: Witness) -> tuple[bytes | None, Witness]:
    """Return the record with another result ``number``, and the witness of somebody who says so."""
    shown, other = witness, result
    value = witness.outputs.get(number)
    if (value is not None and value.numel() == 0) or result is None:
        return None, witness
    if value is not None:
        false = changed(value)
        other = rec.value_digest(rec.canonical_value(false))
        if p["op"] != rec.LOAD:
            shown = dataclasses.replace(witness, outputs={**witness.outputs, number: false})
    elif isinstance(result, str):
        other = "0" * 64
    else:
        other = {"float": "0x1.8000000000000p+3"}
    results = [*p["results"][:number], other, *p["results"][number + 1 :]]
    return dumps({**p, "results": results}), parse_witness(shown.to_bytes())


@pytest.mark.parametrize("step", [0, 1, 2])
def test_every_record_of_the_smallest_job(step: int) -> None:
    bench = Bench(SMALL_DIGITS, agreed=False)
    judged, wrong = judge_all(bench, bench.claim(step), None)
    assert not wrong
    assert judged[rec.COMMIT] and judged[rec.STATE] and sum(judged.values()) > 50


@pytest.mark.parametrize("functions", ["logged", "exact"])
@pytest.mark.parametrize("step", [0, 1])
def test_operations_without_a_log_are_judged_as_such(step: int, functions: str) -> None:
    case = dataclasses.replace(NO_LOG, train={**NO_LOG.train, "functions": functions})
    bench = Bench(case, agreed=False)
    claim = bench.claim(step)
    judged, wrong = judge_all(bench, claim, EACH)
    assert not wrong
    if step:
        assert judged["aten.convolution.default"] and judged["aten.convolution_backward.default"]
    decided = any("decisions" in rec.parse_record(r) for r in claim.records)
    assert decided == (functions == "logged" and step > 0), "weights are drawn without a decision"


def test_writes_through_views_are_judged() -> None:
    bench = Bench(SMALL_DIGITS, agreed=False)
    awkward(bench._trainer)
    judged, wrong = judge_all(bench, bench.claim(1, session_with(awkward)), None)
    assert not wrong
    assert {"aten.copy_.default", "aten.fill_.Tensor", "aten.scatter_add.default"} <= set(judged), sorted(judged)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["resnet", "gpt", "digits-low", "gpt-low"])
def test_every_kind_of_operation_of_the_jobs(job: str, tmp_path: Path) -> None:
    bench = Bench(cases(prepare(tmp_path))[job], agreed=False)
    total: Counter[str] = Counter()
    for step in (0, 1, 2):
        judged, wrong = judge_all(bench, bench.claim(step), EACH)
        assert not wrong
        total += judged
    assert len(total) > 25, sorted(total)
