"""Signed notes and checkpoints: published examples, and everything outside the grammar."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.signed import CLIENT, STRANGER, TRAINER

from vt_core.errors import EvidenceError
from vt_core.evidence.keys import SignerKey, VerifierKey, parse_signer_key, parse_verifier_key
from vt_core.evidence.note import MAX_SIGNATURES, Checkpoint, parse_checkpoint, parse_note, sign_note

# The example of golang.org/x/mod/sumdb/note: text, keys and both signature lines.
TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
PETER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
PETER_LINE = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
ENOCH_LINE = (
    "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"
)
NOTE = TEXT + "\n" + PETER_LINE


def reason(found: pytest.ExceptionInfo[EvidenceError]) -> str:
    return found.value.reason


def test_the_published_note_byte_for_byte():
    key = parse_signer_key(PETER)
    assert sign_note(TEXT, [key]) == NOTE.encode()
    note = parse_note(NOTE.encode())
    assert note.text == TEXT and [s.keyid for s in note.signatures] == ["PeterNeumann+c74f20a3"]
    note.verify(key.verifier)


def test_the_published_note_with_two_signatures():
    note = parse_note((NOTE + ENOCH_LINE).encode())
    note.verify(parse_verifier_key(ENOCH))
    note.verify(parse_signer_key(PETER).verifier)


def test_signatures_by_unknown_keys_are_ignored():
    note = parse_note(sign_note(TEXT, [STRANGER, TRAINER]))
    note.verify(TRAINER.verifier)
    with pytest.raises(EvidenceError, match="not signed by client") as found:
        note.verify(CLIENT.verifier)
    assert reason(found) == "signature_invalid"


def test_a_bad_signature_by_a_known_key_rejects_even_beside_a_good_one():
    good = sign_note(TEXT, [TRAINER]).decode()
    bad = sign_note("another text\n", [TRAINER]).decode().split("\n\n")[1]
    with pytest.raises(EvidenceError) as found:
        parse_note((good + bad).encode()).verify(TRAINER.verifier)
    assert reason(found) == "signature_invalid"


def test_name_and_key_id_together_name_a_key():
    """Another key of the same name is unknown; a key that was made to have the same id does not verify."""
    again = SignerKey.generate("trainer")
    with pytest.raises(EvidenceError, match="is not signed by"):
        parse_note(sign_note(TEXT, [again])).verify(TRAINER.verifier)

    class Colliding(VerifierKey):
        key_hash = TRAINER.verifier.key_hash  # type: ignore[assignment]

    with pytest.raises(EvidenceError, match="is not valid"):
        parse_note(sign_note(TEXT, [TRAINER])).verify(Colliding("trainer", again.verifier.public))


def test_the_text_may_hold_empty_lines():
    text = "Ognuno sta solo\n\ned è subito sera.\n\n"
    note = parse_note(sign_note(text, [TRAINER]))
    assert note.text == text
    note.verify(TRAINER.verifier)


MALFORMED = {
    "empty": "",
    "no signature": TEXT,
    "no signature after the empty line": TEXT + "\n",
    "no empty line": TEXT + PETER_LINE,
    "no text": "\n" + PETER_LINE,
    "no last newline": NOTE[:-1],
    "a carriage return": NOTE.replace("\n", "\r\n"),
    "a tab": NOTE.replace("If you", "If\tyou"),
    "a NUL": NOTE.replace("If you", "If\0you"),
    "a hyphen for the dash": NOTE.replace("— ", "- "),
    "two spaces": NOTE.replace("— PeterNeumann ", "— PeterNeumann  "),
    "no name": NOTE.replace("PeterNeumann ", " "),
    "a plus in the name": NOTE.replace("— PeterNeumann", "— Peter+Neumann"),
    "a no-break space in the name": NOTE.replace("— PeterNeumann", "— Peter\u00a0Neumann"),
    "no base64": NOTE.replace("x08go/", "x08go!"),
    "url base64": NOTE.replace("x08go/", "x08go_"),
    "base64 of another spelling": NOTE.replace("JnAM=", "JnAN="),
    "padding left out": NOTE.replace("JnAM=", "JnAM"),
    "no more than a key id": TEXT + "\n— PeterNeumann " + base64.b64encode(b"1234").decode() + "\n",
    "text after the signatures": NOTE + "more\n",
    "an empty line after the signatures": NOTE + "\n",
    "too many signatures": NOTE + PETER_LINE * MAX_SIGNATURES,
    "too large": "x" * 70000 + "\n\n" + PETER_LINE,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_note(name: str):
    with pytest.raises(EvidenceError) as found:
        parse_note(MALFORMED[name].encode())
    assert reason(found) == "evidence_malformed"


def test_bytes_that_are_no_utf8():
    with pytest.raises(EvidenceError, match="UTF-8"):
        parse_note(NOTE.encode().replace(b"If", b"\xff\xfe"))


def test_sixteen_signatures_are_accepted():
    """The specification asks for at least so many."""
    parse_note(sign_note(TEXT, [SignerKey.generate(f"k{i}") for i in range(16)]))


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_input_breaks_the_parser(data: bytes):
    try:
        note = parse_note(data)
    except EvidenceError as error:
        assert error.reason == "evidence_malformed"
    else:
        assert note.signatures


@given(st.integers(0, len(NOTE.encode()) - 1), st.integers(1, 255))
def test_no_changed_byte_keeps_the_signature(place: int, flip: int):
    data = bytearray(NOTE.encode())
    data[place] ^= flip
    with pytest.raises(EvidenceError) as found:
        parse_note(bytes(data)).verify(parse_signer_key(PETER).verifier)
    assert reason(found) in ("evidence_malformed", "signature_invalid")


CHECKPOINT = Checkpoint("run-1", 9, "ab" * 32, "cd" * 32, "ef" * 32)


def checkpoint_of(text: str) -> Checkpoint:
    return parse_checkpoint(parse_note(sign_note(text, [TRAINER])))


def test_a_checkpoint_survives_its_text():
    assert checkpoint_of(CHECKPOINT.text()) == CHECKPOINT
    assert CHECKPOINT.text().splitlines()[:2] == ["verifiable-training/run-1", "9"]


BAD_CHECKPOINTS = {
    "another origin": CHECKPOINT.text().replace("verifiable-training/", "example.com/"),
    "leading zero": CHECKPOINT.text().replace("\n9\n", "\n09\n"),
    "negative size": CHECKPOINT.text().replace("\n9\n", "\n-9\n"),
    "a size in other digits": CHECKPOINT.text().replace("\n9\n", "\n٩\n"),
    "short root": CHECKPOINT.text().replace("q6urq6ur", "", 1),
    "root in another spelling": CHECKPOINT.text().replace("q6s=\n", "q6t=\n"),
    "no seal": CHECKPOINT.text().replace("seal sha256:", "seal sha512:"),
    "capital digest": CHECKPOINT.text().replace("cd" * 32, "CD" * 32),
    "swapped lines": "\n".join([*CHECKPOINT.text().split("\n")[:3], *CHECKPOINT.text().split("\n")[4:2:-1], ""]),
    "one more line": CHECKPOINT.text() + "extension\n",
    "one line less": "\n".join(CHECKPOINT.text().split("\n")[:4]) + "\n",
}


@pytest.mark.parametrize("name", BAD_CHECKPOINTS)
def test_what_is_no_checkpoint(name: str):
    assert BAD_CHECKPOINTS[name] != CHECKPOINT.text()
    with pytest.raises(EvidenceError) as found:
        checkpoint_of(BAD_CHECKPOINTS[name])
    assert reason(found) == "evidence_malformed"


@pytest.mark.parametrize("text", ["no newline", "a\ttab\n", ""])
def test_texts_that_cannot_be_signed(text: str):
    with pytest.raises(ValueError, match="a note needs"):
        sign_note(text, [TRAINER])
