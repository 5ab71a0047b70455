"""A finished dispute from its files alone: the same ruling, and none at all from files that were tampered with."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disputes import KEYS, PUBLIC, FakeClaim, FakeRules, Lie, play, spec_of

from vt_core.dispute.messages import OTHER, PARTIES, Role, digest, file_name, open_message, sign
from vt_core.dispute.referee import examine
from vt_core.dispute.rules import Fault
from vt_core.dispute.transcript import FolderFiles, MemoryFiles, save
from vt_core.errors import EvidenceError, StoreError
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.note import sign_note
from vt_core.evidence.records import parse_seal
from vt_core.evidence.signatures import checkpoint_of

SPEC = spec_of(60, interval=2)


def cheated(liar: Role, meddle=None, patient=True):
    honest, lying = FakeClaim(SPEC, 40), FakeClaim(SPEC, 40, Lie(33, 20))
    return play(*((lying, honest) if liar is Role.TRAINER else (honest, lying)), meddle, patient)


@pytest.fixture(scope="module", params=PARTIES)
def liar(request):
    return request.param


@pytest.fixture(scope="module")
def files(liar):
    return cheated(liar).files.files


def ruling(files):
    return examine(MemoryFiles(files), PUBLIC, FakeRules()).ruling


def refused(files):
    """Return the reason for which a transcript is refused; it must not lead to a ruling."""
    with pytest.raises(EvidenceError) as error:
        examine(MemoryFiles(files), PUBLIC, FakeRules())
    return error.value.reason


def test_a_transcript_gives_the_same_ruling_again(liar, tmp_path):
    played = cheated(liar)
    save(played.files.files, tmp_path / "t")
    found = examine(FolderFiles(tmp_path / "t"), PUBLIC, FakeRules())
    assert found.ruling == played.ruling and found.ruling.winner is OTHER[liar] and found.referee_agrees
    assert (found.rounds, found.message_bytes) == (played.rounds, played.message_bytes)
    assert (found.witness_bytes > 0 and found.root == FakeClaim(SPEC).seal().root) or liar is Role.TRAINER
    json.dumps(found.to_json())


@pytest.mark.parametrize("kind", ["roots", "tree", "leaf", "records", "record"])
def test_silence_is_in_the_transcript(kind):
    played = cheated(Role.TRAINER, lambda role, at, reply: None if (role, at) == (Role.TRAINER, kind) else reply)
    found = ruling(played.files.files)
    assert (found.winner, found.reason) == (Role.AUDITOR, Fault.SILENT)


def test_every_dropped_file_is_missed(files):
    for name in files:
        assert refused({n: d for n, d in files.items() if n != name}) == "artifact_missing", name


def test_every_changed_file_is_refused(files):
    for name, data in files.items():
        for place in {0, len(data) // 2, len(data) - 1}:
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            refused({**files, name: changed})
        refused({**files, name: b""})
        refused({**files, name: data + b" "})


def test_every_pair_of_swapped_messages_is_refused(files):
    names = sorted(files)
    for a in names:
        for b in names:
            if a < b and files[a] != files[b]:
                refused({**files, a: files[b], b: files[a]})


def test_every_message_signed_by_another_key_is_refused(files):
    for name, data in files.items():
        if not name[0].isdigit() or not name.endswith(".json"):
            continue
        role = Role(name.removesuffix(".json").split("-")[1])
        message = open_message(data, PUBLIC, role)
        for key in (SignerKey.generate(str(role)), KEYS[Role.TRAINER], KEYS[Role.AUDITOR]):
            if key is not KEYS[role]:
                refused({**files, name: sign(message, key)})


def test_a_party_cannot_change_its_own_answer_afterwards(files):
    """Signed by the right key, but not what the referee acknowledged."""
    for name, data in files.items():
        for role in PARTIES:
            if name.endswith(f"-{role}.json"):
                message = open_message(data, PUBLIC, role)
                other = dataclasses.replace(message, body={"concede": "never mind"})
                assert refused({**files, name: sign(other, KEYS[role])}) == "chain_broken"


def test_a_cut_transcript_gives_no_ruling(files):
    last = max(int(name[:4]) for name in files if name[0].isdigit())
    for cut in range(last + 1):
        kept = {n: d for n, d in files.items() if not n[0].isdigit() or int(n[:4]) < cut}
        assert refused(kept) == "artifact_missing"


def test_other_keys_are_refused(files):
    for role in Role:
        with pytest.raises(EvidenceError) as error:
            examine(MemoryFiles(files), {**PUBLIC, role: SignerKey.generate(str(role)).verifier}, FakeRules())
        assert error.value.reason == "signature_invalid"


def test_another_seal_or_spec_is_refused(files):
    other = FakeClaim(spec_of(60, interval=2), 40, Lie(3, 3)).seal()
    assert refused({**files, "seal.json": other.to_bytes()}) == "chain_broken"
    assert refused({**files, "spec.json": spec_of(61, interval=2).to_bytes()}) == "spec_mismatch"


def test_the_signature_over_the_seal_counts_if_it_is_there(files):
    seal = parse_seal(files["seal.json"])
    note = sign_note(checkpoint_of(seal).text(), [KEYS[Role.TRAINER]])
    examined = examine(MemoryFiles({**files, "seal.note": note}), PUBLIC, FakeRules())
    assert examined.seal_signed and not examine(MemoryFiles(files), PUBLIC, FakeRules()).seal_signed
    by_another = sign_note(checkpoint_of(seal).text(), [KEYS[Role.AUDITOR]])
    assert refused({**files, "seal.note": by_another}) == "signature_invalid"
    of_another = sign_note(checkpoint_of(dataclasses.replace(seal, leaf_count=7)).text(), [KEYS[Role.TRAINER]])
    assert refused({**files, "seal.note": of_another}) == "chain_broken"
    assert refused({**files, "seal.note": note[:-1]}) == "evidence_malformed"


# What a referee may not do, although all is signed with its key.


def recorded(files, number, change, **fields):
    """Change the referee's message ``number`` and sign the rest of its chain anew."""
    made = dict(files)
    name = file_name(number, Role.REFEREE)
    message = open_message(made[name], PUBLIC, Role.REFEREE)
    body = json.loads(json.dumps(dict(message.body)))
    made[name] = sign(dataclasses.replace(message, body=change(body) or body, **fields), KEYS[Role.REFEREE])
    while (name := file_name(number + 1, Role.REFEREE)) in made:
        message = open_message(made[name], PUBLIC, Role.REFEREE)
        before = digest(made[file_name(number, Role.REFEREE)])
        made[name] = sign(dataclasses.replace(message, previous=before), KEYS[Role.REFEREE])
        number += 1
    return made


def last_of(files):
    return max(int(n[:4]) for n in files if n[0].isdigit())


def test_a_referee_cannot_give_up_early_or_ask_something_else(files):
    def not_received(body):
        body["received"] = dict.fromkeys(body["received"])

    def other_question(body):
        body["ask"]["begin"] = 1

    def early(body):
        body["time"] = 0

    assert refused(recorded(files, 2, not_received)) == "chain_broken"
    assert refused(recorded(files, 1, other_question)) == "chain_broken"
    assert refused(recorded(files, 2, early)) == "evidence_malformed"
    assert refused(recorded(files, 0, lambda body: body.pop("terms") and body)) == "evidence_malformed"


@pytest.mark.parametrize("kind", ["roots", "leaf", "witness"])
def test_a_referee_that_does_not_wait_cannot_call_anybody_silent(kind):
    """All of it is well signed and consistent, and the other party would win: only the clock tells."""

    def meddle(role, at, reply):
        if (role, at) != (Role.TRAINER, kind):
            return reply
        return dataclasses.replace(reply, parts=()) if kind == "witness" else None

    fair, hasty = (cheated(Role.AUDITOR, meddle, patient=patient).files.files for patient in (True, False))
    assert ruling(fair).winner is Role.AUDITOR
    with pytest.raises(EvidenceError, match="before its time was over"):
        ruling(hasty)


def test_the_referees_messages_are_one_chain(files):
    last = last_of(files)
    for number in (1, last):
        message = open_message(files[file_name(number, Role.REFEREE)], PUBLIC, Role.REFEREE)
        for fields in (
            {"previous": "0" * 64},
            {"previous": None},
            {"round": number - 1},
            {"subject": dataclasses.replace(message.subject, dispute="another")},
            {"subject": dataclasses.replace(message.subject, run="another")},
        ):
            assert refused(recorded(files, number, lambda body: body, **fields)) == "chain_broken"


def test_a_referee_that_signs_another_ruling_is_overruled(files, liar):
    last = last_of(files)
    forged = recorded(files, last, lambda body: body["ruling"].update(winner=str(liar)))
    found = examine(MemoryFiles(forged), PUBLIC, FakeRules())
    assert found.ruling.winner is OTHER[liar] and not found.referee_agrees


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_random_damage_leads_to_a_ruling_for_the_liar(files, liar, data):
    damaged = dict(files)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(damaged)))
        kind = data.draw(st.sampled_from(["drop", "cut", "insert", "copy"]))
        at = data.draw(st.integers(0, max(0, len(damaged[name]) - 1)))
        if kind == "drop" and len(damaged) > 1:
            del damaged[name]
        elif kind == "cut":
            damaged[name] = damaged[name][:at]
        elif kind == "insert":
            damaged[name] = damaged[name][:at] + data.draw(st.binary(min_size=1, max_size=4)) + damaged[name][at:]
        else:
            damaged[name] = damaged[data.draw(st.sampled_from(sorted(damaged)))]
    try:
        found = ruling(damaged)
    except EvidenceError:
        return
    assert found.winner is OTHER[liar]


# Files that are no files


def test_links_and_huge_files_are_not_read(files, tmp_path):
    folder = tmp_path / "t"
    save(files, folder)
    secret = tmp_path / "secret"
    secret.write_bytes(files["seal.json"])
    (folder / "seal.json").unlink()
    (folder / "seal.json").symlink_to(secret)
    with pytest.raises(EvidenceError, match="symbolic link"):
        examine(FolderFiles(folder), PUBLIC, FakeRules())
    (folder / "seal.json").unlink()
    os.mkfifo(folder / "seal.json")
    with pytest.raises(EvidenceError, match="no regular file"):
        examine(FolderFiles(folder), PUBLIC, FakeRules())
    (folder / "seal.json").unlink()
    with open(folder / "seal.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EvidenceError, match="more than"):
        examine(FolderFiles(folder), PUBLIC, FakeRules())


def test_a_transcript_is_not_written_over_another(files, tmp_path):
    save(files, tmp_path / "t")
    with pytest.raises(StoreError, match="not empty"):
        save(files, tmp_path / "t")
