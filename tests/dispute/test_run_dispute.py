"""Disputes about real runs, without a store: a trainer that cheated, and an auditor that lies about an honest run."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.disputants import CHEATS, Maker
from support.disputes import PUBLIC, play_parties
from support.runs import NO_LOG, SMALL_DIGITS, Case, Trainer, artifacts, read_commitments

from vt_core.dispute.inputs import agreed_facts
from vt_core.dispute.messages import OTHER, PARTIES, Role
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.referee import examine
from vt_core.dispute.rules import Fault
from vt_core.dispute.run_claim import RunClaim
from vt_core.dispute.transcript import save
from vt_core.engine.profiles import environment_for
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.verify.audit import Run, open_run


class AgreedCase(Case):
    """A case whose spec also holds what the parties agreed on about program and inputs."""

    def open(self) -> tuple[Job, Dataset, RunSpec]:
        job, dataset, spec = super().open()
        return job, dataset, dataclasses.replace(spec, agreed=agreed_facts(Session(spec, job, dataset)).digests())


AGREED = AgreedCase(SMALL_DIGITS.reference, SMALL_DIGITS.args, SMALL_DIGITS.train)
SEVERAL_STEPS_A_LEAF = dataclasses.replace(SMALL_DIGITS, train={**SMALL_DIGITS.train, "commit_interval": 2})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made: dict[tuple[str, str], Path] = {}

    def get(name: str, case: Case = SMALL_DIGITS) -> Path:
        key = (name, str(case))
        if key not in made:
            make = Session if name == "honest" else CHEATS[name][0]
            made[key] = Trainer(case, tmp_path_factory.mktemp(name), make=make).run().folder
        return made[key]

    return get


def claim(folder: Path, case: Case, run: Run, make: Maker, own: int | None, stack: ExitStack) -> RunClaim:
    job, dataset, _ = case.open()
    session = stack.enter_context(make(run.spec, job, dataset, "cpu").open())
    return RunClaim(session, run.records, lambda i: artifacts(folder, i), own, with_log=make is Session)


def dispute(folder: Path, trainer: Maker, auditor: Maker, segment: int, case: Case = SMALL_DIGITS):
    run = open_run(read_commitments(folder))
    with ExitStack() as stack:
        sides = claim(folder, case, run, trainer, None, stack), claim(folder, case, run, auditor, segment, stack)
        played = play_parties(run.spec, run.seal, OpRules(run.spec), *sides)
    found = examine(played.files, PUBLIC, OpRules(run.spec))
    assert found.ruling == played.ruling and found.referee_agrees
    return played


@pytest.mark.parametrize("case", [SMALL_DIGITS, NO_LOG], ids=["logged", "exact"])
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheating_trainer_does_not_win(runs, name, case):
    make, segment, step, reasons = CHEATS[name]
    played = dispute(runs(name, case), make, Session, segment, case)
    assert played.ruling.reason in reasons, played.ruling
    disputed = played.ruling.reason.endswith("_disputed")
    assert played.ruling.winner is (None if disputed else Role.AUDITOR), played.ruling
    assert (played.ruling.place["segment"], played.ruling.place["step"]) == (segment, step)
    assert played.rounds <= 20 and played.message_bytes < 1_000_000


@pytest.mark.parametrize("case", [SMALL_DIGITS, NO_LOG], ids=["logged", "exact"])
@pytest.mark.parametrize("name", CHEATS)
def test_a_lying_auditor_does_not_win(runs, name, case):
    """The auditor's replay is the cheat's, the run is honest."""
    make, segment, step, _ = CHEATS[name]
    played = dispute(runs("honest", case), Session, make, segment, case)
    assert played.ruling.winner in (Role.TRAINER, None), played.ruling
    assert (played.ruling.winner is None) == played.ruling.reason.endswith("_disputed"), played.ruling
    assert (played.ruling.place["segment"], played.ruling.place["step"]) == (segment, step)


@pytest.mark.parametrize("liar", PARTIES)
@pytest.mark.parametrize(("name", "reason"), [("other-program", "program_mismatch"), ("other-label", "data_mismatch")])
def test_what_was_agreed_before_decides_about_program_and_data(runs, name, reason, liar):
    make, segment, step, _ = CHEATS[name]
    folder, sides = (
        (runs(name, AGREED), (make, Session)) if liar is Role.TRAINER else (runs("honest", AGREED), (Session, make))
    )
    played = dispute(folder, *sides, segment, AGREED)
    assert (played.ruling.winner, played.ruling.reason) == (OTHER[liar], reason), played.ruling
    assert played.ruling.place["step"] == step


@pytest.mark.parametrize("liar", PARTIES)
def test_a_leaf_over_several_steps_is_opened_step_by_step(runs, liar):
    case = SEVERAL_STEPS_A_LEAF
    make, segment, step, _ = CHEATS["wrong-contraction"]
    cheat, honest = runs("wrong-contraction", case), runs("honest", case)
    folder, sides = (cheat, (make, Session)) if liar is Role.TRAINER else (honest, (Session, make))
    played = dispute(folder, *sides, segment, case)
    assert played.ruling.winner is OTHER[liar] and played.ruling.place["step"] == step, played.ruling


def test_without_a_contradiction_the_trainer_wins(runs):
    played = dispute(runs("honest"), Session, Session, 2)
    assert (played.ruling.winner, played.ruling.reason) == (Role.TRAINER, Fault.NO_DIFFERENCE)


def test_a_trainer_cannot_explain_by_honest_code_what_it_did_not_train_with_it(runs):
    played = dispute(runs("wrong-contraction"), Session, Session, 2)
    assert (played.ruling.winner, played.ruling.reason) == (Role.AUDITOR, Fault.CONTRADICTION)


EXAMINE = """
import json, sys
from pathlib import Path
from vt_core.dispute.messages import Role
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.referee import examine
from vt_core.dispute.transcript import FolderFiles
from vt_core.evidence.keys import parse_verifier_key
from vt_core.training.spec import parse_spec

folder, keys = Path(sys.argv[1]), {Role(r): parse_verifier_key(k) for r, k in json.loads(sys.argv[2]).items()}
rules = OpRules(parse_spec((folder / "spec.json").read_bytes()))
print(json.dumps(examine(FolderFiles(folder), keys, rules).to_json()))
"""


@pytest.mark.parametrize("liar", PARTIES)
def test_a_referee_on_other_arithmetic_rules_the_same(runs, tmp_path, liar):
    make, segment, _, _ = CHEATS["wrong-contraction"]
    folder, sides = (
        (runs("wrong-contraction"), (make, Session)) if liar is Role.TRAINER else (runs("honest"), (Session, make))
    )
    played = dispute(folder, *sides, segment)
    save(played.files.files, tmp_path / "t")
    keys = json.dumps({str(role): key.text for role, key in PUBLIC.items()})
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, str(tmp_path / "t"), keys], env=environment_for("portable"), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["winner"], found["reason"]) == (OTHER[liar], str(played.ruling.reason))
    assert found["place"] == dict(played.ruling.place)
