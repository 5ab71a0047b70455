"""The dispute game on made-up runs: the honest party wins on either side, whatever the other one does."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disputes import KEYS, PUBLIC, FakeClaim, FakeRules, Lie, play, spec_of

from vt_core.dispute import bisection
from vt_core.dispute.game import Game
from vt_core.dispute.messages import OTHER, PARTIES, Message, Role, open_message, sign
from vt_core.dispute.party import Party, Reply
from vt_core.dispute.rules import Fault
from vt_core.errors import EvidenceError
from vt_core.evidence.attest import seal_payload
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.merkle import inclusion_proof, leaf_hash, root
from vt_core.training.segment import commit_steps

KINDS = ("roots", "tree", "leaf", "records", "record", "witness")


def sides(honest, lying, liar):
    """Return (trainer's claim, auditor's claim)."""
    return (lying, honest) if liar is Role.TRAINER else (honest, lying)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 20))
def test_places_of_leaves_are_those_that_a_trainer_commits_to(steps, segment_steps, interval):
    spec = spec_of(steps, segment_steps, interval)
    expected, begin = [], 0
    for segment in range(spec.segment_count):
        first, last = spec.segment_range(segment)
        begin = first
        for commit in sorted(commit_steps(first, last, interval)):
            expected.append((segment, begin, commit))
            begin = commit + 1
    assert bisection.leaf_count(spec) == len(expected)
    assert [bisection.leaf_steps(spec, i) for i in range(len(expected))] == expected
    with pytest.raises(IndexError):
        bisection.leaf_steps(spec, len(expected))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 6))
def test_revealed_hashes_make_the_node(size, levels):
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    hashes = bisection.subtree_hashes(leaves, (0, size), levels)
    assert bisection.combine((0, size), hashes, levels) == root(leaves)
    with pytest.raises(ValueError, match="are needed"):
        bisection.combine((0, size), hashes[:-1], levels)


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(0, 4), st.data())
def test_a_padded_tree_is_the_tree_of_the_filled_list(count, more, data):
    hashes = [leaf_hash(bytes([i])) for i in range(count)]
    size = bisection.padded_size(count)
    wider = size << more
    filled = [*hashes, *[bisection.NO_RECORD] * (wider - count)]
    own = bisection.padded_root(hashes, (0, size))
    assert bisection.widen(own, size, wider) == bisection.padded_root(hashes, (0, wider)) == root(filled)
    nodes = bisection.descendants((0, wider))
    assert [bisection.padded_root(hashes, n) for n in nodes] == bisection.subtree_hashes(filled, (0, wider))
    index = data.draw(st.integers(0, count - 1))
    assert bisection.padded_proof(hashes, index, wider) == inclusion_proof(index, filled)


def test_a_wide_tree_costs_no_more_than_its_records():
    began = time.perf_counter()
    bisection.padded_root([leaf_hash(b"x")] * 5, (0, 1 << 40))
    assert time.perf_counter() - began < 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_honest_side_wins_whichever_side_it_is_on(data):
    steps = data.draw(st.integers(1, 120), "steps")
    ops = data.draw(st.integers(1, 70), "ops")
    interval = data.draw(st.integers(1, 9), "interval")
    spec = spec_of(steps, data.draw(st.integers(1, 50), "segment"), interval)
    longer = data.draw(st.integers(-min(ops, 3), 3), "longer")
    lie = Lie(data.draw(st.integers(0, steps), "step"), data.draw(st.integers(0, ops - 1), "op"), longer)
    liar = data.draw(st.sampled_from(PARTIES), "liar")
    honest, lying = FakeClaim(spec, ops), FakeClaim(spec, ops, lie)
    played = play(*sides(honest, lying, liar))
    assert played.ruling.winner is OTHER[liar], played.ruling
    place = played.ruling.place
    assert place["step"] == lie.step
    assert place["record"] == min(lie.op, ops + longer)
    assert place["leaf"] == next(i for i in range(9999) if lie.step <= bisection.leaf_steps(spec, i)[2])


@pytest.mark.parametrize("liar", PARTIES)
@pytest.mark.parametrize("step", [0, 1, 4321, 9999])
def test_ten_thousand_leaves_take_few_rounds_and_little_space(liar, step):
    spec = spec_of(9999, 500)
    honest, lying = FakeClaim(spec, 1000), FakeClaim(spec, 1000, Lie(step, 617))
    assert len(honest.leaves) == 10_000
    played = play(*sides(honest, lying, liar))
    assert played.ruling.winner is OTHER[liar] and played.ruling.place["record"] == 617
    assert played.rounds <= 12  # at most 20 are asked for
    assert played.message_bytes < 100_000  # 1 MB is asked for


def test_without_a_difference_the_trainer_wins():
    spec = spec_of(20)
    played = play(FakeClaim(spec), FakeClaim(spec))
    assert (played.ruling.winner, played.ruling.reason, played.rounds) == (Role.TRAINER, Fault.NO_DIFFERENCE, 1)


def test_an_auditor_must_take_the_trainers_log():
    spec = spec_of(20)
    played = play(FakeClaim(spec), FakeClaim(spec, log_lie=7))
    assert (played.ruling.winner, played.ruling.reason) == (Role.TRAINER, Fault.LOG_MISMATCH)


def test_leaves_that_differ_in_the_work_alone_are_left_open():
    spec = spec_of(20)
    played = play(FakeClaim(spec), FakeClaim(spec, work_lie=7))
    assert (played.ruling.winner, played.ruling.reason) == (None, Fault.WORK_DISPUTED)
    assert played.ruling.place["leaf"] == 7


def test_a_wrong_witness_loses():
    spec = spec_of(20)
    played = play(FakeClaim(spec, lie=Lie(7, 2), wrong_witness=True), FakeClaim(spec))
    assert (played.ruling.winner, played.ruling.reason) == (Role.AUDITOR, Fault.WITNESS_MISMATCH)


@pytest.mark.parametrize("liar", PARTIES)
def test_a_dispute_about_the_program_is_decided_by_what_either_party_shows(liar):
    spec = spec_of(20)
    honest, lying = FakeClaim(spec), FakeClaim(spec, program_lie=(7, 2))
    played = play(*sides(honest, lying, liar))
    assert (played.ruling.winner, played.ruling.reason) == (OTHER[liar], "program_mismatch")
    silent = dataclasses.replace(honest, shows_nothing=True, steps=[], leaves=[])
    played = play(*sides(silent, lying, liar))
    assert (played.ruling.winner, played.ruling.reason) == (None, "program_disputed")
    mute = play(*sides(honest, lying, liar), lambda role, at, r: None if (role, at) == (liar, "exhibit") else r)
    assert (mute.ruling.winner, mute.ruling.reason) == (OTHER[liar], Fault.SILENT)


def test_a_game_needs_a_seal_of_its_spec():
    spec = spec_of(20)
    seal = FakeClaim(spec).seal()
    with pytest.raises(EvidenceError, match="another run spec"):
        Game(spec_of(21), seal, None)
    with pytest.raises(EvidenceError, match="number of leaves"):
        Game(spec, dataclasses.replace(seal, leaf_count=20), None)


# What a party can do instead of answering properly; each loses in every kind of round, whoever does it.


def reworded(role: Role, reply: Reply, change) -> Reply:
    """Return a reply whose message was changed by ``change(plain payload)`` and signed by the same party again."""
    message = open_message(reply.data, {r: k.verifier for r, k in KEYS.items()}, role)
    body = json.loads(json.dumps(dict(message.body)))
    return Reply(sign(dataclasses.replace(message, body=change(body) or body), KEYS[role]), reply.parts)


def replaced(role: Role, reply: Reply, **changes) -> Reply:
    message = open_message(reply.data, {r: k.verifier for r, k in KEYS.items()}, role)
    return Reply(sign(dataclasses.replace(message, **changes), KEYS[role]), reply.parts)


def flip_hex(body):
    """Change the last hex digit of the first hash found."""
    for name in ("root", "hashes", "steps", "record", "parts"):
        if name == "parts" and name in body:
            body["parts"][0]["sha256"] = "00" * 32
            return body
        if isinstance(body.get(name), str) and name != "record":
            body[name] = body[name][:-1] + ("0" if body[name][-1] != "0" else "1")
            return body
    body["record"] = "eyJ9" if body["record"] is None else None
    return body


def unsigned(role, reply):
    plain = json.loads(reply.data)
    plain["signatures"][0]["sig"] = "AAAA" + plain["signatures"][0]["sig"][4:]
    return Reply(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode(), reply.parts)


def other_key(role, reply):
    message = open_message(reply.data, {r: k.verifier for r, k in KEYS.items()}, role)
    return Reply(sign(message, SignerKey.generate(str(role))), reply.parts)


MISCONDUCT = {
    "silence": (lambda role, reply: None, {Fault.SILENT}),
    "noise": (lambda role, reply: Reply(b"\x00\xff" * 9), {Fault.MALFORMED_MESSAGE}),
    "empty": (lambda role, reply: Reply(b""), {Fault.MALFORMED_MESSAGE}),
    "no-signature": (unsigned, {Fault.SIGNATURE_INVALID}),
    "other-key": (other_key, {Fault.SIGNATURE_INVALID}),
    "other-type": (
        lambda role, reply: Reply(seal_payload(b"{}", "text/plain", [KEYS[role]])), {Fault.MALFORMED_MESSAGE}
    ),
    "as-somebody-else": (lambda role, reply: replaced(role, reply, sender=OTHER[role]), {Fault.MALFORMED_MESSAGE}),
    "other-round": (lambda role, reply: replaced(role, reply, round=40), {Fault.MALFORMED_MESSAGE}),
    "other-request": (lambda role, reply: replaced(role, reply, previous="0" * 64), {Fault.MALFORMED_MESSAGE}),
    "other-kind": (lambda role, reply: replaced(role, reply, kind="chat"), {Fault.MALFORMED_MESSAGE}),
    "no-body": (lambda role, reply: replaced(role, reply, body={}), {Fault.MALFORMED_MESSAGE}),
    "more-fields": (
        lambda role, reply: reworded(role, reply, lambda b: {**b, "x": 1}),
        {Fault.MALFORMED_MESSAGE},
    ),
    "wrong-types": (
        lambda role, reply: reworded(role, reply, lambda b: dict.fromkeys(b)),
        {Fault.MALFORMED_MESSAGE},
    ),
    "other-hash": (
        lambda role, reply: reworded(role, reply, flip_hex),
        {Fault.CONTRADICTION, Fault.SEAL_DISOWNED, Fault.WITNESS_MISSING},
    ),
    "concession": (lambda role, reply: replaced(role, reply, body={"concede": "enough"}), {Fault.CONCEDED}),
    "no-parts": (lambda role, reply: Reply(reply.data, ()), {Fault.WITNESS_MISSING}),
}  # fmt: skip


def possible(how, liar, kind):
    if kind == "witness" and liar is Role.AUDITOR:  # only the trainer is asked for one
        return False
    if how == "no-parts" and kind != "witness":
        return False
    # An auditor may claim any root; it cannot go on from there.
    return (how, liar, kind) != ("other-hash", Role.AUDITOR, "roots")


@pytest.mark.parametrize(
    ("how", "liar", "kind"),
    [(how, liar, kind) for how in MISCONDUCT for liar in PARTIES for kind in KINDS if possible(how, liar, kind)],
)
def test_misconduct_loses_in_every_round(how, liar, kind):
    do, faults = MISCONDUCT[how]
    done = []

    def meddle(role, at, reply):
        if role is liar and at == kind and not done:
            done.append(at)
            return do(role, reply)
        return reply

    # The party that misbehaves is the one that is right about the run: that does not help it.
    spec = spec_of(60, interval=2)
    honest, lying = FakeClaim(spec, 40), FakeClaim(spec, 40, Lie(33, 20))
    played = play(*sides(honest, lying, OTHER[liar]), meddle=meddle)
    assert done
    assert played.ruling.winner is OTHER[liar], played.ruling
    assert played.ruling.reason in faults, played.ruling


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_nobody_wins_where_both_are_silent(kind):
    spec = spec_of(60)
    played = play(
        FakeClaim(spec, 40), FakeClaim(spec, 40, Lie(33, 20)), lambda role, at, reply: None if at == kind else reply
    )
    assert (played.ruling.winner, played.ruling.reason) == (None, Fault.BOTH_FAILED)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_answers_with_a_field_of_anything_are_a_loss_and_never_a_crash(data):
    kind = data.draw(st.sampled_from(KINDS[:-1]))
    liar = data.draw(st.sampled_from(PARTIES))
    leaf = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8) | st.sampled_from(["00" * 32])
    anything = st.recursive(
        leaf, lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=4), c, max_size=3), max_leaves=5
    )
    value = data.draw(anything)
    spec = spec_of(20, interval=2)

    def meddle(role, at, reply):
        if role is not liar or at != kind:
            return reply

        def change(body):
            body[data.draw(st.sampled_from(sorted(body)))] = value

        try:
            return reworded(role, reply, change)
        except ValueError:  # not even JSON: nobody can send it
            return Reply(b"")

    honest, lying = FakeClaim(spec, 6), FakeClaim(spec, 6, Lie(11, 3))
    played = play(*sides(honest, lying, liar), meddle=meddle)
    assert played.ruling.winner is OTHER[liar], played.ruling


@pytest.mark.parametrize("liar", PARTIES)
def test_a_record_list_cannot_be_cut_or_go_on_after_its_end(liar):
    """A liar whose list ends early, or holds more after the record that ends the step, has no way out."""
    spec = spec_of(20)

    class Cut(FakeClaim):
        def step(self, step):
            made = super().step(step)
            del made.records[-1]
            return made

    class Continued(FakeClaim):
        def step(self, step):
            honest = FakeClaim(self.spec, self.ops).step(step)
            return type(honest)([*honest.records, super().step(step).records[-1]])

    honest = FakeClaim(spec)
    for kind, fault in ((Cut, Fault.MALFORMED_RECORD), (Continued, Fault.MALFORMED_RECORD)):
        played = play(*sides(honest, kind(spec, lie=Lie(7, 2)), liar))
        assert played.ruling.winner is OTHER[liar] and played.ruling.reason == fault, played.ruling


@pytest.mark.parametrize("liar", PARTIES)
def test_a_claimed_step_that_its_records_do_not_lead_to_is_a_contradiction(liar):
    spec = spec_of(20)

    class Patched(FakeClaim):
        def step(self, step):
            return FakeClaim(self.spec, self.ops).step(step)

    played = play(*sides(FakeClaim(spec), Patched(spec, lie=Lie(7, 2)), liar))
    assert (played.ruling.winner, played.ruling.reason) == (OTHER[liar], Fault.CONTRADICTION)


def test_a_party_answers_its_own_referee_only():
    spec = spec_of(20)
    referee = play(FakeClaim(spec), FakeClaim(spec)).referee
    party = Party(Role.TRAINER, referee.subject, FakeClaim(spec), FakeRules(), KEYS[Role.TRAINER], PUBLIC[Role.REFEREE])

    def asked(key=KEYS[Role.REFEREE], kind="roots", subject=referee.subject, **ask):
        body = {"of": ["trainer", "auditor"], "ask": ask}
        return sign(Message(subject, 0, Role.REFEREE, None, kind, body), key)

    assert party.answer(asked(size=21)) is not None
    assert (
        party.answer(sign(Message(referee.subject, 0, Role.REFEREE, None, "x", {"of": []}), KEYS[Role.REFEREE])) is None
    )
    for data in (
        asked(SignerKey.generate("referee")),
        asked(subject=dataclasses.replace(referee.subject, dispute="other")),
        asked(kind="password"),
        asked(kind="tree", tree="records", begin=0, end=1 << 40, levels=4),
        asked(kind="tree", tree="records", begin=0, end=3, levels=4),
        asked(kind="tree", tree="leaves", begin=0, end=21, levels=20),
        asked(kind="tree", tree="leaves", begin=5, end=5, levels=4),
    ):
        with pytest.raises(EvidenceError):
            party.answer(data)


def test_a_message_round_trips():
    message = Message(
        play(FakeClaim(spec_of(3)), FakeClaim(spec_of(3))).referee.subject, 3, Role.TRAINER, "0" * 64, "tree", {"a": 1}
    )
    found = open_message(sign(message, KEYS[Role.TRAINER]), {Role.TRAINER: KEYS[Role.TRAINER].verifier}, Role.TRAINER)
    assert found == message
