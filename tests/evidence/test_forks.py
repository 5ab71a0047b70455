"""Two signed histories of one run convict the signer; anything less convicts nobody."""

from __future__ import annotations

import dataclasses

import pytest

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.forks import check_fork, check_same_history, fork_proof
from vt_core.evidence.keys import SignerKey
from vt_core.evidence.note import Checkpoint, sign_note

KEY, OTHER = SignerKey.generate("trainer"), SignerKey.generate("trainer")
SHOWN = Checkpoint("run", 7, "ab" * 32, "cd" * 32, "ef" * 32)


def note(checkpoint: Checkpoint, *keys: SignerKey) -> bytes:
    return sign_note(checkpoint.text(), list(keys) or [KEY])


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"root": "12" * 32}, ("root",)),
        ({"size": 8}, ("size",)),
        ({"size": 8, "root": "12" * 32}, ("size", "root")),
        ({"seal": "12" * 32}, ("seal",)),
        ({"spec": "12" * 32, "seal": "34" * 32}, ("spec", "seal")),
    ],
    ids=str,
)
def test_two_histories_are_a_fork(change: dict[str, object], fields: tuple[str, ...]) -> None:
    first, second = note(SHOWN), note(dataclasses.replace(SHOWN, **change))
    fork = fork_proof(first, second, KEY.verifier)
    assert fork is not None and fork.fields == fields and fork.run_id == "run" and fork.keyid == KEY.keyid
    assert all(name in fork.message for name in fields)
    assert check_fork(fork.to_bytes(), KEY.verifier) == fork
    with pytest.raises(EvidenceError) as caught:
        check_same_history(first, second, KEY.verifier)
    assert (caught.value.reason, caught.value.place) == ("chain_broken", {"file": "seal.note"})


def test_one_history_is_none() -> None:
    assert fork_proof(note(SHOWN), note(SHOWN), KEY.verifier) is None
    # A witness's signature beside the trainer's changes the note's bytes, not what it says.
    assert fork_proof(note(SHOWN), note(SHOWN, KEY, SignerKey.generate("witness")), KEY.verifier) is None
    check_same_history(note(SHOWN), note(SHOWN), KEY.verifier)


def test_nobody_is_convicted_by_a_note_of_another_key() -> None:
    """Whoever wants to blame the trainer cannot sign the second history in its name."""
    forged = dataclasses.replace(SHOWN, root="12" * 32)
    for first, second in ((note(SHOWN), note(forged, OTHER)), (note(forged, OTHER), note(SHOWN))):
        with pytest.raises(EvidenceError) as caught:
            fork_proof(first, second, KEY.verifier)
        assert caught.value.reason == "signature_invalid"
    stolen = note(SHOWN).decode().replace(SHOWN.text(), forged.text()).encode()
    with pytest.raises(EvidenceError) as caught:
        fork_proof(note(SHOWN), stolen, KEY.verifier)
    assert caught.value.reason == "signature_invalid"


def test_notes_of_two_runs_are_no_fork() -> None:
    with pytest.raises(SpecError, match="two runs"):
        fork_proof(note(SHOWN), note(dataclasses.replace(SHOWN, run_id="other")), KEY.verifier)


def test_notes_that_are_none() -> None:
    for bad in (b"", b"\xff", note(SHOWN)[:-1], sign_note("hello\n", [KEY])):
        with pytest.raises(EvidenceError) as caught:
            fork_proof(note(SHOWN), bad, KEY.verifier)
        assert caught.value.reason == "evidence_malformed"


def test_file_that_convicts_nobody() -> None:
    same = note(SHOWN).decode()
    apart = note(dataclasses.replace(SHOWN, run_id="other")).decode()
    files = [
        b"{}",
        b"[]",
        dumps({"format": "vt-fork/2", "notes": [same, same]}),
        dumps({"format": "vt-fork/1", "notes": [same]}),
        dumps({"format": "vt-fork/1", "notes": [same, 5]}),
        dumps({"format": "vt-fork/1", "notes": [same, same]}),
        dumps({"format": "vt-fork/1", "notes": [same, apart]}),
    ]
    for data in files:
        with pytest.raises(EvidenceError) as caught:
            check_fork(data, KEY.verifier)
        assert caught.value.reason == "evidence_malformed"
