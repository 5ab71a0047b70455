"""Disputes in a store: who writes where, waiting and deadlines, going on after a stop, parties with DVC artifacts."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.disputants import CHEATS
from support.disputes import KEYS, PUBLIC, FakeClaim, FakeRules, Lie, spec_of
from support.runs import SMALL_DIGITS

from tasks import disputes
from tasks.dispute_roles import Terms, examine_folder, play_all, play_one
from tasks.disputes import DisputeBoard, lead, list_disputes, take_part
from tasks.runs import RunStore
from tasks.store import open_store
from tasks.training import Trainer
from vt_core.dispute.messages import PARTIES, Role, file_name
from vt_core.dispute.party import Party
from vt_core.dispute.referee import Referee, examine
from vt_core.dispute.rules import Fault
from vt_core.dispute.transcript import MemoryFiles
from vt_core.errors import SpecError, VtError
from vt_core.evidence.keys import write_key_pair
from vt_core.training.session import Session

SPEC = spec_of(60)
HONEST, LYING = FakeClaim(SPEC, 20), FakeClaim(SPEC, 20, Lie(33, 7))


@pytest.fixture
def run(tmp_path):
    """A sealed run of made-up steps."""
    run = RunStore(open_store(str(tmp_path / "store"), create=True), "run")
    run.publish_spec(SPEC.to_bytes())
    run.publish_seal(HONEST.seal())
    return run


def parties(board, lying=Role.AUDITOR):
    claims = {role: LYING if role is lying else HONEST for role in PARTIES}
    subject, rules = board.subject(), FakeRules()
    return {r: Party(r, subject, claims[r], rules, KEYS[r], PUBLIC[Role.REFEREE]) for r in PARTIES}


def referee(board, deadline=60_000):
    return Referee(board.subject(), SPEC, HONEST.seal(), FakeRules(), KEYS[Role.REFEREE], PUBLIC, deadline)


def test_each_party_writes_where_it_may(run):
    board = DisputeBoard(run, "d")
    ruling = lead(board, referee(board), parties(board))
    assert ruling.winner is Role.TRAINER
    commitments = {n.rpartition("-")[2] for n in run.store.commitments.list("disputes/")}
    verdicts = {n.rpartition("-")[2] for n in run.store.verdicts.list("disputes/")}
    assert commitments == {"trainer.json", "trainer.part000"}
    assert verdicts == {"auditor.json", "referee.json"}
    assert list_disputes(run) == ["d"]
    found = examine(MemoryFiles(board.files()), PUBLIC, FakeRules())
    assert found.ruling == ruling and found.referee_agrees


def test_two_parties_play_against_the_store_at_the_same_time(run):
    board = DisputeBoard(run, "d")
    said = {}

    def play(role):
        said[role] = take_part(DisputeBoard(run, "d"), parties(board)[role], 30.0, pause=0.01)

    threads = [threading.Thread(target=play, args=(role,)) for role in PARTIES]
    for thread in threads:
        thread.start()
    ruling = lead(board, referee(board), pause=0.01)
    for thread in threads:
        thread.join(30)
    assert ruling.winner is Role.TRAINER
    assert {role: answer["winner"] for role, answer in said.items()} == dict.fromkeys(PARTIES, "trainer")


@pytest.mark.parametrize("absent", PARTIES)
def test_who_is_silent_loses_at_the_deadline_and_the_transcript_says_so(run, absent):
    board = DisputeBoard(run, "d")
    present = {role: party for role, party in parties(board).items() if role is not absent}
    ruling = lead(board, referee(board, 300), present, pause=0.01)
    assert (ruling.winner, ruling.reason) == (next(iter(present)), Fault.SILENT)
    found = examine(MemoryFiles(board.files()), PUBLIC, FakeRules())
    assert found.ruling == ruling and found.deadline == 300


def test_a_party_does_not_wait_for_ever_for_a_referee(run):
    board = DisputeBoard(run, "d")
    with pytest.raises(VtError, match="has said nothing"):
        take_part(board, parties(board)[Role.TRAINER], 0.05, pause=0.01)


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_referee_that_was_stopped_goes_on_where_it_was(run, monkeypatch, stop):
    board = DisputeBoard(run, "d")
    put, written = board.put, 0

    def stopped(sender, name, data):
        nonlocal written
        if sender is Role.REFEREE:
            written += 1
            if written > stop:
                raise KeyboardInterrupt
        put(sender, name, data)

    monkeypatch.setattr(board, "put", stopped)
    with pytest.raises(KeyboardInterrupt):
        lead(board, referee(board), parties(board))
    again = DisputeBoard(run, "d")
    assert lead(again, referee(again), parties(again)).winner is Role.TRAINER
    found = examine(MemoryFiles(again.files()), PUBLIC, FakeRules())
    assert found.ruling.winner is Role.TRAINER and found.referee_agrees


def test_a_dispute_is_not_begun_again_with_other_terms(run):
    board = DisputeBoard(run, "d")
    lead(board, referee(board), parties(board))
    with pytest.raises(SpecError, match="begin another dispute"):
        lead(board, referee(board, 1), parties(board))


def test_a_message_cannot_be_replaced(run):
    board = DisputeBoard(run, "d")
    board.put(Role.TRAINER, file_name(0, Role.TRAINER), b"one")
    board.put(Role.TRAINER, file_name(0, Role.TRAINER), b"one")
    with pytest.raises(SpecError, match="differs"):
        board.put(Role.TRAINER, file_name(0, Role.TRAINER), b"two")
    for name in ("..", "a/b", ""):
        with pytest.raises(SpecError):
            DisputeBoard(run, name)


def test_a_run_without_a_seal_is_not_disputed(tmp_path):
    run = RunStore(open_store(str(tmp_path / "store"), create=True), "run")
    run.publish_spec(SPEC.to_bytes())
    with pytest.raises(SpecError, match="not sealed"):
        DisputeBoard(run, "d").subject()


def test_a_message_that_is_too_large_counts_as_none(run, monkeypatch):
    monkeypatch.setattr(disputes, "MAX_MESSAGE_BYTES", 10)
    board = DisputeBoard(run, "d")
    board.put(Role.TRAINER, file_name(0, Role.TRAINER), b"x" * 21)
    assert board.message(0, Role.TRAINER) is None


# Real runs, whose artifacts come from DVC


def train(folder: Path, make=Session) -> RunStore:
    job, dataset, spec = SMALL_DIGITS.open()
    run = RunStore(open_store(str(folder / "store"), create=True), "run")
    trainer = Trainer(run, folder / "trainer", spec, job, dataset)
    trainer.session = make(spec, job, dataset, "cpu")
    with trainer.open():
        for index in range(trainer.begin(), spec.segment_count):
            trainer.publish(trainer.train(index))
        trainer.seal()
    return run


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for role in Role:
        write_key_pair(folder, str(role))
    return {str(role): str(folder / role) for role in Role}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return train(tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def cheated(tmp_path_factory):
    return train(tmp_path_factory.mktemp("cheated"), CHEATS["wrong-contraction"][0])


@pytest.mark.slow
@pytest.mark.parametrize("liar", PARTIES)
def test_the_liar_loses_a_dispute_about_a_run_in_a_store(honest, cheated, keys, tmp_path, liar):
    make, segment, step, _ = CHEATS["wrong-contraction"]
    run = cheated if liar is Role.TRAINER else honest
    terms = Terms(run, keys, f"by-{liar}", segment=segment, workspace=tmp_path / "vt", makers={liar: make})
    with ExitStack() as stack:
        played = play_all(terms, stack)
    size = played.save(tmp_path / "transcript")
    assert played.ruling["winner"] != liar and played.ruling["winner"] is not None
    assert played.ruling["place"]["step"] == step and played.ruling["place"]["segment"] == segment
    assert size["rounds"] <= 20 and size["message_bytes"] < 1_000_000 and size["witness_bytes"] > 0
    found = examine_folder(tmp_path / "transcript", {r: f"{path}.pub" for r, path in keys.items()})
    assert found.ruling.to_json() == dict(played.ruling) and found.referee_agrees
    assert not any((tmp_path / "vt").iterdir())  # nothing is left behind


@pytest.mark.slow
def test_the_auditor_finds_the_segment_and_concedes_where_there_is_none(honest, cheated, keys, tmp_path):
    for run, reason in ((honest, "conceded"), (cheated, "contradiction")):
        with ExitStack() as stack:
            played = play_all(Terms(run, keys, f"by-{reason}", workspace=tmp_path / "vt"), stack)
        assert played.ruling["reason"] == reason


@pytest.mark.slow
def test_roles_and_disputes_that_are_not_there_are_named(honest, keys, tmp_path):
    terms = Terms(honest, keys, workspace=tmp_path)
    with ExitStack() as stack, pytest.raises(SpecError, match="use all, trainer"):
        play_one(terms, "client", stack)
    with ExitStack() as stack, pytest.raises(SpecError, match="does not exist"):
        play_all(Terms(honest, keys, segment=9, workspace=tmp_path), stack)
