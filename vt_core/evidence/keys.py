"""Ed25519 keys in the text forms of C2SP signed notes (https://c2sp.org/signed-note), and the files they lie in.

A *verifier key* is ``NAME+HASH+BASE64(0x01 || public key)``, a *signer key* ``PRIVATE+KEY+NAME+HASH+BASE64(0x01 ||
seed)``; HASH is the key id, the first 4 bytes of SHA-256(NAME || 0x0A || 0x01 || public key), in hex. The same
NAME+HASH names a key in DSSE envelopes. A key that cannot be used is a mistake of the user's (SpecError); a signature
that does not verify is a finding (EvidenceError ``signature_invalid``).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from vt_core.errors import EvidenceError, SpecError

if TYPE_CHECKING:  # securesystemslib loads the client of every cloud that is installed: only who signs pays for it
    from securesystemslib.signer import CryptoSigner, SSlibKey  # type: ignore[attr-defined]  # re-exported without saying so

DEFAULT_NAMES = ("client", "trainer", "auditor", "referee")
_ED25519 = b"\x01"  # C2SP signature type
_KEY_BYTES = 32
_MAX_FILE_BYTES = 4096
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_VERIFIER = re.compile(r"([^+\s]{1,200})\+([0-9a-f]{8})\+([A-Za-z0-9+/]+={0,2})")
_SIGNER = re.compile(r"PRIVATE\+KEY\+([^+\s]{1,200})\+([0-9a-f]{8})\+([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True)
class VerifierKey:
    """A public key: ``name`` and the 32 bytes of RFC 8032."""

    name: str
    public: bytes

    @property
    def key_hash(self) -> bytes:
        """The key id of signed notes, 4 bytes."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    @property
    def keyid(self) -> str:
        """NAME+HASH: how envelopes, messages and people name this key."""
        return f"{self.name}+{self.key_hash.hex()}"

    @property
    def text(self) -> str:
        """The verifier key as text, one line without a newline."""
        return f"{self.keyid}+{base64.b64encode(_ED25519 + self.public).decode()}"

    def verify(self, signature: bytes, message: bytes, what: str) -> None:
        """Check a signature (64 bytes, RFC 8032). Raises EvidenceError("signature_invalid")."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError) as error:
            raise EvidenceError("signature_invalid", f"{what}: the signature by {self.keyid} is not valid") from error

    def dsse_key(self) -> SSlibKey:
        """Return this key as securesystemslib's envelopes want it."""
        from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]  # re-exported without saying so

        return SSlibKey(self.keyid, "ed25519", "ed25519", {"public": self.public.hex()})


class SignerKey:
    """A private key. It shows its secret in no message, and cannot be pickled or copied into a log by accident."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        """Wrap a private key under a valid ``name``."""
        self._private = private
        self.verifier = VerifierKey(name, private.public_key().public_bytes_raw())

    @staticmethod
    def generate(name: str) -> SignerKey:
        """Return a new key from the system's randomness. Raises SpecError for a name that cannot name a key."""
        if not _FILE_NAME.fullmatch(name):
            raise SpecError(
                f"key name {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
            )
        return SignerKey(name, Ed25519PrivateKey.generate())

    @property
    def keyid(self) -> str:
        """NAME+HASH of the public key."""
        return self.verifier.keyid

    def text(self) -> str:
        """Return the signer key as text: the secret itself."""
        return f"PRIVATE+KEY+{self.keyid}+{base64.b64encode(_ED25519 + self._private.private_bytes_raw()).decode()}"

    def sign(self, message: bytes) -> bytes:
        """Return the Ed25519 signature (64 bytes; RFC 8032, so the same each time) of ``message``."""
        return self._private.sign(message)

    def dsse_signer(self) -> CryptoSigner:
        """Return a signer for securesystemslib's envelopes."""
        from securesystemslib.signer import CryptoSigner  # type: ignore[attr-defined]  # re-exported without saying so

        return CryptoSigner(self._private, self.verifier.dsse_key())

    def __repr__(self) -> str:
        """Name the key; the secret is never shown."""
        return f"SignerKey({self.keyid})"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a result store or a worker's queue must not get hold of a key."""
        raise TypeError("a private key is not pickled; pass the path of its file")


def parse_verifier_key(text: str) -> VerifierKey:
    """Read ``NAME+HASH+BASE64``. Raises SpecError if it is not exactly that, or if the hash is not this key's."""
    found = _VERIFIER.fullmatch(text)
    if found is None:
        raise SpecError("not a verifier key: expected NAME+HASH+BASE64, the text of a .pub file of 'vt keygen'")
    key = VerifierKey(found[1], _key_bytes(found[3]))
    if key.key_hash.hex() != found[2]:
        raise SpecError(f"the verifier key of {found[1]!r} does not have the hash {found[2]} it names: it was damaged")
    return key


def parse_signer_key(text: str) -> SignerKey:
    """Read ``PRIVATE+KEY+NAME+HASH+BASE64``. Raises SpecError; no message repeats the secret."""
    found = _SIGNER.fullmatch(text)
    if found is None:
        raise SpecError("not a signer key: expected PRIVATE+KEY+NAME+HASH+BASE64, the text that 'vt keygen' writes")
    key = SignerKey(found[1], Ed25519PrivateKey.from_private_bytes(_key_bytes(found[3])))
    if key.verifier.key_hash.hex() != found[2]:
        raise SpecError(f"the signer key of {found[1]!r} does not have the hash {found[2]} it names: it was damaged")
    return key


def write_key_pair(folder: Path, name: str) -> SignerKey:
    """Make a key and write ``folder/NAME`` (mode 0600) and ``folder/NAME.pub``; neither is ever overwritten.

    Raises SpecError if one of them is there already or the name cannot be used, OSError if they cannot be written.
    """
    key = SignerKey.generate(name)
    private, public = folder / name, folder / f"{name}.pub"
    if name.endswith(".pub"):
        raise SpecError(f"key name {name!r}: '.pub' is the ending of public keys")
    for path in (private, public):
        if path.exists() or path.is_symlink():
            raise SpecError(f"{path} is there already and is not overwritten; give another --out or --name")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(private, key.text(), 0o600)
    _create(public, key.verifier.text, 0o644)
    return key


def read_signer_key(path: Path) -> SignerKey:
    """Read a private key's file. Raises SpecError if it is none, or if everybody on the machine may read it."""
    text = _read(path)
    if _VERIFIER.fullmatch(text):
        raise SpecError(f"{path} is a public key; signing needs the private one, the file without '.pub'")
    try:
        key = parse_signer_key(text)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
    if stat.S_IMODE(path.stat().st_mode) & 0o007:
        raise SpecError(f"everybody on this machine may read the private key {path}: run chmod 600 {path}")
    return key


def read_verifier_key(text_or_path: str) -> VerifierKey:
    """Return the public key that is given as text or as the path of a file with it. Raises SpecError."""
    if _VERIFIER.fullmatch(text_or_path.strip()):
        return parse_verifier_key(text_or_path.strip())
    text = _read(Path(text_or_path))
    if text.startswith("PRIVATE+KEY+"):
        raise SpecError(f"{text_or_path} is a private key; checking needs the public one: {text_or_path}.pub")
    try:
        return parse_verifier_key(text)
    except SpecError as error:
        raise SpecError(f"{text_or_path}: {error}") from None


def decode_base64(text: str) -> bytes | None:
    """Return the bytes that ``text`` is the canonical base64 of (RFC 4648, one spelling only), None if it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None


def _key_bytes(text: str) -> bytes:
    data = decode_base64(text)
    if data is None or len(data) != 1 + _KEY_BYTES:
        raise SpecError("the key is no base64 of 33 bytes: it was cut or damaged")
    if data[:1] != _ED25519:
        raise SpecError(f"the key is of signature type {data[0]}; only Ed25519 (type 1) is supported")
    return data[1:]


def _read(path: Path) -> str:
    """Return the one line of a key's file. Raises SpecError; no message repeats what the file holds."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SpecError(f"cannot read the key {path}: {error.strerror or error}. 'vt keygen' makes keys.") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{path} holds no key: it is no text") from None
    if len(data) > _MAX_FILE_BYTES:
        raise SpecError(f"{path} holds no key: it has more than {_MAX_FILE_BYTES} bytes")
    return text.removesuffix("\n").removesuffix("\r")


def _create(path: Path, text: str, mode: int) -> None:
    # Exclusive, so that a key is never lost; with its final mode, so that it is never readable for a moment.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
