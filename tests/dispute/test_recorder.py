"""Records of a step: the same from every honest party, and without an effect on the step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.awkward import awkward
from support.op_disputes import Bench, session_with
from support.processes import REPOSITORY, prepare
from support.runs import SMALL_DIGITS
from support.worker import cases
from torch import nn

from vt_core.dispute import records as rec
from vt_core.dispute.recorder import record_step
from vt_core.engine.profiles import environment_for
from vt_core.engine.rounding_log import encode_step
from vt_core.errors import EvidenceError, UnsupportedOperation
from vt_core.evidence.canonical import dumps
from vt_core.evidence.merkle import leaf_hash
from vt_core.training.checkpoint import save_checkpoint
from vt_core.training.session import Session
from vt_core.training.state import digest


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(SMALL_DIGITS, agreed=False)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_trainer_and_auditor_write_the_same_records(step: int, bench: Bench) -> None:
    trainer = bench.claim(step)
    assert encode_step(trainer.log) == encode_step(bench.after(step)[1])
    auditor = bench.claim(step, log=trainer.log)
    assert auditor.records == trainer.records
    assert trainer.hashes() == [leaf_hash(r) for r in trainer.records]


@pytest.mark.parametrize("step", [0, 2])
def test_recording_does_not_change_the_step(step: int, bench: Bench) -> None:
    state, log, trace = bench.after(step)
    session = bench.session()
    with session.open():
        claim = record_step(session, bench.before(step), step)
        assert digest(session.capture(step)).root == digest(state).root
        assert encode_step(claim.log) == encode_step(log)
        last = rec.parse_record(claim.records[-1])
        assert last["trace"] == trace.hex() and last["results"] == [digest(state).root.hex()]
        # The session is as it was: it goes on like any other.
        session.restore(state)
        rounding = type(bench._rounding)(session.grid, bench.spec.policy, bench.spec.fingerprints)
        rounding.begin_step(step + 1)
        session.run_step(step + 1, rounding)
        assert digest(session.capture(step + 1)).root == digest(bench.after(step + 1)[0]).root


def test_records_cover_every_operation_of_the_trace_and_every_tensor_of_the_state(bench: Bench) -> None:
    session = bench.session()
    with session.open():
        claim = record_step(session, bench.before(2), 2)
        lines = [line.split()[0] for line in session_trace(bench)]
    parsed = [rec.parse_record(r) for r in claim.records]
    assert [p["op"] for p in parsed if not p["op"].startswith("vt::")] == lines
    before, after = bench.before(2), bench.after(2)[0]
    assert before is not None
    assert [p["name"] for p in parsed if p["op"] == rec.LOAD] == sorted(before.tensors)
    assert [p["name"] for p in parsed if p["op"] == rec.BATCH] == ["images", "labels"]
    roots = {p["name"]: p["results"][0] for p in parsed if p["op"] == rec.COMMIT}
    assert roots == {n: r.hex() for n, r in digest(after).tensors.items()}
    # Each input is what an earlier record says.
    for index, p in enumerate(parsed):
        for source in rec.sources(p):
            assert source.record < index
            assert parsed[source.record]["results"][source.result] == source.digest
        assert all(j < index for j in rec.uses(p, index))
        if "place" in p:
            assert tuple(p["place"][::2]) == rec.next_place(parsed[index - 1])


def session_trace(bench: Bench) -> list[str]:
    """Return the trace of plain training's step 2, without marks of the profiler."""
    session = bench.session()
    state = bench.before(2)
    assert state is not None
    session.restore(state)
    rounding = type(bench._rounding)(session.grid, bench.spec.policy, False)
    rounding.begin_step(2)
    session.run_step(2, rounding)
    return [line for line in session.mode.trace.lines if not line.startswith("profiler.")]


def test_a_witness_has_the_digests_of_the_records(bench: Bench) -> None:
    claim = bench.claim(1)
    parsed = [rec.parse_record(r) for r in claim.records]
    index = next(i for i, p in enumerate(parsed) if p["op"] == "aten.native_batch_norm.default")
    with claim._session.open():
        witness = claim.witness(index)
    given = {(s.record, s.result): s.digest for s in rec.sources(parsed[index])}
    assert given == {origin: rec.value_digest(value) for origin, value in witness.inputs.items()}
    assert parsed[index]["results"] == [rec.value_digest(witness.outputs[k]) for k in range(5)]
    assert witness.log == encode_step(claim.log)


def test_a_digest_covers_dtype_shape_and_values_but_not_the_sign_of_zero() -> None:
    def of(tensor: torch.Tensor) -> str:
        return rec.value_digest(rec.canonical_value(tensor))

    x = torch.tensor([[1.0, 0.0], [float("nan"), 4.0]])
    negative = x.clone()
    negative[0, 1] = -0.0
    negative.view(torch.int32)[1, 0] = 0x7FC00001
    assert of(x) == of(negative) == of(x.t().contiguous().t())
    assert len({of(x), of(x.double()), of(x.reshape(4)), of(x.t()), of(x + 1), of(x.view(torch.int32))}) == 6
    assert of(torch.zeros(2, 0)) != of(torch.zeros(0, 2))


# What models do with memory


@pytest.fixture(scope="module")
def odd() -> Bench:
    bench = Bench(SMALL_DIGITS, agreed=False)
    awkward(bench._trainer)
    return bench


@pytest.mark.parametrize("step", [0, 1, 2])
def test_writes_through_views_are_followed(step: int, odd: Bench) -> None:
    make = session_with(awkward)
    claim = odd.claim(step, make)
    assert claim.records == odd.claim(step, make, log=claim.log).records
    last = rec.parse_record(claim.records[-1])
    assert last["results"] == [digest(odd.after(step)[0]).root.hex()]
    if step:
        ops = {rec.parse_record(r)["op"] for r in claim.records}
        assert "vt::const" in ops
        written = [s for r in claim.records for s in rec.sources(rec.parse_record(r)) if s.at]
        assert written, "nothing was written through a view"


def test_what_has_no_form_in_a_record_is_refused_with_its_name() -> None:
    """Memory handed around under the tensors: nobody can say where its values come from."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(64, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            y = images.flatten(1) * 1.0
            part = torch.empty(0, dtype=y.dtype).set_(y.untyped_storage(), 1, (3, 5), (7, 1))
            return self.inner(y) + part.sum()

    def change(session: Session) -> None:
        session.job = SMALL_DIGITS.open()[0]
        session.job.build_model = Hidden  # type: ignore[method-assign, assignment]

    hidden = Bench(SMALL_DIGITS, agreed=False)
    change(hidden._trainer)
    with pytest.raises(UnsupportedOperation, match="set_"):
        hidden.claim(1, session_with(change))


# Other machines

OTHERS = [("digits", "portable"), ("gpt", "portable"), ("resnet", "portable"), ("resnet-low", "nhwc"),
          ("gpt-low", "portable"), ("digits-low", "nhwc")]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("records"))


@pytest.mark.slow
@pytest.mark.parametrize(("job", "profile"), OTHERS)
def test_another_machine_writes_the_same_records_with_the_trainers_log(job: str, profile: str, folder: Path) -> None:
    bench = Bench(cases(folder)[job], agreed=False)
    expected = {}
    for step in (0, 1, 2):
        claim = bench.claim(step)
        place = folder / job / str(step)
        place.mkdir(parents=True)
        (place / "log").write_bytes(encode_step(claim.log))
        state = bench.before(step)
        if state is not None:
            save_checkpoint(state, place)
        expected[str(step)] = [h.hex() for h in claim.hashes()]
    environment = environment_for(profile) | {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", "OMP_WAIT_POLICY": "PASSIVE"
    }  # fmt: skip
    command = [sys.executable, "-m", "support.record_worker", str(folder), job]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for step, hashes in expected.items():
        assert [a == b for a, b in zip(found["hashes"][step], hashes, strict=True)].count(False) == 0, (step, job)
    assert found["refused"] == []  # and a judge there finds the trainer's results to stand


# Parsing


def test_a_record_is_parsed_strictly(bench: Bench) -> None:
    plain = next(p for p in map(json.loads, bench.claim(1).records) if p["op"] == "vt.sgd_.default")
    rec.parse_record(dumps(plain))
    source = plain["args"]["param"]
    false: list[Any] = [
        {**plain, "more": 1},
        {k: v for k, v in plain.items() if k != "place"},
        {**plain, "results": [*plain["results"], "0" * 64]},
        {**plain, "results": "no list"},
        {**plain, "place": [0, 1, 2]},
        {**plain, "place": [0, -1, 0, 0]},
        {**plain, "decisions": "ff"},
        {**plain, "args": {**plain["args"], "lr": {"float": "0.5"}}},
        {**plain, "args": {**plain["args"], "lr": {"number": 1}}},
        {**plain, "args": {**plain["args"], "param": {**source, "from": [1]}}},
        {**plain, "args": {**plain["args"], "param": {**source, "from": [-1, 0]}}},
        {**plain, "args": {**plain["args"], "param": {**source, "digest": "ff"}}},
        {**plain, "args": {**plain["args"], "param": {**source, "view": [[[2], [1], -4]]}}},
        {**plain, "args": {**plain["args"], "param": {"const": "00" * 2000, "dtype": "float64", "shape": [250]}}},
        {**plain, "args": {**plain["args"], "param": {"const": "00", "dtype": "load", "shape": [1]}}},
        {**plain, "op": "vt::more"},
        {**plain, "op": 5},
        {"op": "vt::load", "name": 4, "results": ["0" * 64]},
        {"op": "vt::load", "name": "x", "results": ["0" * 64, "0" * 64]},
        {"op": "vt::start", "step": -1, "scalars": {}, "tensors": {}},
        {"op": "vt::start", "step": 1, "scalars": {}, "tensors": {"x": "ff"}},
        [],
    ]
    for wrong in false:
        with pytest.raises(EvidenceError) as caught:
            rec.parse_record(dumps(wrong))
        assert caught.value.reason == "evidence_malformed"
    for data in (b"", b"{}", dumps(plain)[:-1], dumps(plain).replace(b'"op"', b'"op" ')):
        with pytest.raises(EvidenceError):
            rec.parse_record(data)
