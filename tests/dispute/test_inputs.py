"""Facts agreed on before training: the same for everybody, in the spec, and never against an honest party."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.op_disputes import Bench
from support.processes import prepare
from support.runs import DIGITS, SMALL_DIGITS
from support.runs import Case as JobCase
from support.worker import cases

from vt_core.dispute import records as rec
from vt_core.dispute.inputs import (
    LATER,
    AgreedFacts,
    Exhibit,
    agreed_batch,
    agreed_facts,
    agreed_program,
    matches,
    parse_exhibit,
    program_name,
)
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.training.spec import parse_spec


def test_facts_do_not_depend_on_who_works_them_out() -> None:
    bench = Bench(SMALL_DIGITS)
    assert bench.facts is not None
    again = agreed_facts(bench.session())
    assert again.digests() == bench.facts.digests() == dict(bench.spec.agreed)
    assert set(again.digests()) == {"inputs", "program_0", "program_1", "program_later"}
    other = Bench(JobCase(DIGITS, {**SMALL_DIGITS.args}, {**SMALL_DIGITS.train, "seed": 8}))
    assert other.facts is not None
    assert other.facts.digests()["inputs"] != again.digests()["inputs"]
    assert other.facts.digests()["program_later"] == again.digests()["program_later"]


def test_the_spec_holds_them_and_is_unchanged_without() -> None:
    bench = Bench(SMALL_DIGITS)
    assert parse_spec(bench.spec.to_bytes()) == bench.spec
    plain = dataclasses.replace(bench.spec, agreed={})
    assert b"agreed" not in plain.to_bytes()
    assert parse_spec(plain.to_bytes()) == plain
    for wrong in ({"inputs": "5"}, {"inputs": "05:" + "0" * 64}, {"inputs": "5:" + "F" * 64}, {"inputs": 5}, {}, []):
        data = dumps({**bench.spec.to_json(), "agreed": wrong})
        with pytest.raises(EvidenceError) as caught:
            parse_spec(data)
        assert caught.value.reason == "evidence_malformed"


@pytest.mark.slow
@pytest.mark.parametrize("job", ["digits", "resnet", "gpt"])
def test_no_honest_record_of_any_step_contradicts_them(job: str, tmp_path: Path) -> None:
    """Also of steps that were not sampled, with a learning rate that rises and falls."""
    case = cases(prepare(tmp_path))[job]
    steps = {"digits": 5, "resnet": 4, "gpt": 6}[job]
    bench = Bench(JobCase(case.reference, case.args, {**case.train, "steps": steps}, case.location))
    facts = bench.facts
    assert facts is not None and LATER in facts.leaves
    check_every_step(bench, facts, range(steps + 1))
    if job != "digits":
        assert any(b'{"lr":' in leaf for leaf in facts.leaves[LATER]), "no scalar follows the learning rate"


def check_every_step(bench: Bench, facts: AgreedFacts, steps: range) -> None:
    for step in steps:
        claim = bench.claim(step)
        assert len(claim.records) == len(facts.leaves[program_name(step)])
        for index in (0, *range(step + 1, len(claim.records), 11), len(claim.records) - 1):
            record = rec.parse_record(claim.records[index])
            shown = [parse_exhibit(facts.exhibit(step, index).to_bytes())]
            leaf = agreed_program(bench.spec, step, index, shown)
            inputs = agreed_batch(bench.spec, step, shown)
            assert leaf is not None and (inputs is not None) == (step > 0)
            assert matches(leaf, rec.skeleton(record), inputs) is True, (step, index, leaf, record)
            if record["op"] == rec.BATCH:
                assert record["results"] == [inputs["batch"][record["name"]]]


def test_a_program_that_may_depend_on_values_is_not_agreed_on() -> None:
    bench = Bench(SMALL_DIGITS, agreed=False)
    session = bench.session()
    honest = session.job.loss

    def loss(model: Any, batch: Any) -> Any:
        found = honest(model, batch)
        return found * 2.0 if found.item() > 1e9 else found

    session.job.loss = loss  # type: ignore[method-assign]
    try:
        assert set(agreed_facts(session).digests()) == {"inputs"}
    finally:
        del session.job.loss


def test_scalars_that_follow_the_rate_need_it_and_open_ones_do_not() -> None:
    leaf = {"args": {"alpha": {"lr": -1}, "beta": {"any": True}, "self": {"from": [3, 0]}}}
    rate = {"batch": {}, "lr": (0.5).hex()}
    alpha = {"float": (-0.5).hex()}
    found: dict[str, Any] = {"args": {"alpha": alpha, "beta": {"float": "x"}, "self": {"from": [3, 0]}}}
    assert matches(leaf, found, rate) is True
    assert matches(leaf, found, None) is None
    assert matches(leaf, found, {"batch": {}, "lr": None}) is False
    assert matches(leaf, found, {"batch": {}, "lr": (0.25).hex()}) is False
    moved = json.loads(json.dumps(found))
    moved["args"]["self"]["from"] = [2, 0]
    assert matches(leaf, moved, rate) is matches(leaf, moved, None) is False
    assert matches([1], [True], rate) is False


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", dumps({"program": 5, "inputs": None}),
                                  dumps({"program": {"leaf": "zz", "path": []}, "inputs": None})])  # fmt: skip
def test_an_exhibit_is_parsed_strictly(data: bytes) -> None:
    with pytest.raises(EvidenceError) as caught:
        parse_exhibit(data)
    assert caught.value.reason == "evidence_malformed"
    assert parse_exhibit(Exhibit().to_bytes()) == Exhibit()
