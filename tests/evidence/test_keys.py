"""Keys: the text forms of C2SP signed notes, the files, and everything that must not be taken for a key."""

from __future__ import annotations

import base64
import pickle
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.keys import (
    SignerKey,
    parse_signer_key,
    parse_verifier_key,
    read_signer_key,
    read_verifier_key,
    write_key_pair,
)

# The example of the Go package golang.org/x/mod/sumdb/note, which the C2SP specification describes.
SIGNER = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"

# RFC 8032, section 7.1, TEST 2: seed, public key, message, signature.
RFC_SEED = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
RFC_PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
RFC_SIGNATURE = (
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def signer_text(name: str, seed: bytes, kind: bytes = b"\x01") -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = SignerKey(name, Ed25519PrivateKey.from_private_bytes(seed))
    return f"PRIVATE+KEY+{key.keyid}+{base64.b64encode(kind + seed).decode()}"


def test_the_published_example_key():
    key = parse_signer_key(SIGNER)
    assert key.verifier.text == VERIFIER and key.text() == SIGNER
    assert parse_verifier_key(VERIFIER) == key.verifier
    assert key.verifier.key_hash.hex() == "c74f20a3" and key.keyid == "PeterNeumann+c74f20a3"


def test_the_published_signature():
    key = parse_signer_key(signer_text("rfc8032", bytes.fromhex(RFC_SEED)))
    assert key.verifier.public.hex() == RFC_PUBLIC
    assert key.sign(b"\x72").hex() == RFC_SIGNATURE
    key.verifier.verify(bytes.fromhex(RFC_SIGNATURE), b"\x72", "the vector")


@pytest.mark.parametrize("spoil", ["message", "signature", "length", "key", "s plus the group order"])
def test_a_false_signature_is_a_finding(spoil: str):
    key = parse_signer_key(signer_text("rfc8032", bytes.fromhex(RFC_SEED))).verifier
    signature, message = bytes.fromhex(RFC_SIGNATURE), b"\x72"
    if spoil == "message":
        message = b"\x73"
    elif spoil == "signature":
        signature = signature[:-1] + bytes([signature[-1] ^ 1])
    elif spoil == "length":
        signature = signature[:63]
    elif spoil == "key":
        key = SignerKey.generate("rfc8032").verifier
    else:  # malleability: RFC 8032 demands S < L
        order = (1 << 252) + 27742317777372353535851937790883648493
        s = int.from_bytes(signature[32:], "little") + order
        signature = signature[:32] + s.to_bytes(32, "little")
    with pytest.raises(EvidenceError) as found:
        key.verify(signature, message, "the vector")
    assert found.value.reason == "signature_invalid"


BAD_VERIFIERS = {
    "empty": "",
    "no hash": "PeterNeumann+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
    "other hash": VERIFIER.replace("c74f20a3", "c74f20a4"),
    "hash in capitals": VERIFIER.replace("c74f20a3", "C74F20A3"),
    "other name": VERIFIER.replace("PeterNeumann", "PeterNeumann2"),
    "name with a space": VERIFIER.replace("PeterNeumann", "Peter Neumann"),
    "name with a no-break space": VERIFIER.replace("PeterNeumann", "Peter\u00a0Neumann"),
    "name with a plus": VERIFIER.replace("PeterNeumann", "Peter+Neumann"),
    "a bit of the key": VERIFIER.replace("ARpc2Q", "ARpc2A"),
    "cut": VERIFIER[:-4],
    "longer": VERIFIER + "AAAA",
    "url base64": VERIFIER.replace("/", "_"),
    "signature type 2": "PeterNeumann+c74f20a3+" + base64.b64encode(b"\x02" + bytes(32)).decode(),
    "a newline": VERIFIER + "\n",
    "the private key": SIGNER,
}


@pytest.mark.parametrize("name", BAD_VERIFIERS)
def test_what_is_no_verifier_key(name: str):
    with pytest.raises(SpecError):
        parse_verifier_key(BAD_VERIFIERS[name])


BAD_SIGNERS = {
    "other hash": SIGNER.replace("c74f20a3", "c74f20a4"),
    "other name": SIGNER.replace("PeterNeumann", "EnochRoot"),
    "no prefix": SIGNER.removeprefix("PRIVATE+KEY+"),
    "cut": SIGNER[:-4],
    "padding that is not canonical": SIGNER[:-1] + "=",
    "signature type 2": signer_text("x", bytes(32), b"\x02"),
    "the public key": VERIFIER,
}


@pytest.mark.parametrize("name", BAD_SIGNERS)
def test_what_is_no_signer_key_and_no_message_repeats_it(name: str):
    with pytest.raises(SpecError) as found:
        parse_signer_key(BAD_SIGNERS[name])
    assert "AYEKFALVFGyNhPJEMzD1QIDr" not in str(found.value)


@given(st.binary(min_size=32, max_size=32))
def test_keys_survive_their_text(seed: bytes):
    key = parse_signer_key(signer_text("k", seed))
    assert parse_verifier_key(key.verifier.text) == key.verifier
    assert parse_signer_key(key.text()).sign(b"m") == key.sign(b"m")


def test_key_files_are_private_and_never_overwritten(tmp_path: Path):
    key = write_key_pair(tmp_path / "keys", "trainer")
    private, public = tmp_path / "keys" / "trainer", tmp_path / "keys" / "trainer.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600 and stat.S_IMODE(private.parent.stat().st_mode) == 0o700
    assert read_signer_key(private).keyid == key.keyid
    assert read_verifier_key(str(public)) == key.verifier == read_verifier_key(key.verifier.text)
    before = private.read_bytes()
    with pytest.raises(SpecError, match="not overwritten"):
        write_key_pair(tmp_path / "keys", "trainer")
    private.rename(tmp_path / "saved")
    with pytest.raises(SpecError, match="not overwritten"):  # a new private key beside an old public one
        write_key_pair(tmp_path / "keys", "trainer")
    assert not private.exists() and (tmp_path / "saved").read_bytes() == before


@pytest.mark.parametrize("name", ["", "../x", "a b", "a+b", ".hidden", "x/y", "trainer.pub", "ä"])
def test_names_that_cannot_name_a_key(tmp_path: Path, name: str):
    with pytest.raises(SpecError):
        write_key_pair(tmp_path / "keys", name)
    assert not list(tmp_path.rglob("*[!s]"))


def test_the_wrong_file_is_told_as_such(tmp_path: Path):
    write_key_pair(tmp_path, "trainer")
    with pytest.raises(SpecError, match="is a public key"):
        read_signer_key(tmp_path / "trainer.pub")
    with pytest.raises(SpecError, match="is a private key"):
        read_verifier_key(str(tmp_path / "trainer"))
    with pytest.raises(SpecError, match="vt keygen"):
        read_verifier_key(str(tmp_path / "nobody.pub"))
    (tmp_path / "large").write_bytes(b"x" * 5000)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("large", "binary"):
        with pytest.raises(SpecError, match="holds no key"):
            read_verifier_key(str(tmp_path / name))


def test_a_private_key_that_everybody_may_read_is_refused(tmp_path: Path):
    write_key_pair(tmp_path, "trainer")
    (tmp_path / "trainer").chmod(0o604)
    with pytest.raises(SpecError, match="chmod 600"):
        read_signer_key(tmp_path / "trainer")


def test_a_key_neither_shows_its_secret_nor_is_pickled():
    key = parse_signer_key(SIGNER)
    assert "AYEKFALVFGyNhPJEMzD1QIDr" not in f"{key!r} {key} {vars(key)}"
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
