"""Signed notes and checkpoints (https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint).

A note is a text, an empty line, and one or more signature lines ``— NAME BASE64(key id || signature)``. The seal of a
run is published as a checkpoint: origin, number of leaves, Merkle root, and two extension lines that name the seal and
the run spec by digest. Signatures by unknown keys are ignored, as the specification demands; a signature by a known key
that does not verify rejects the note.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vt_core.errors import EvidenceError
from vt_core.evidence.digests import is_sha256
from vt_core.evidence.keys import SignerKey, VerifierKey, decode_base64

MAX_NOTE_BYTES = 64 << 10
MAX_SIGNATURES = 64
ORIGIN = "verifiable-training/"
_DASH = "— "
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
_LINE = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class NoteSignature:
    """One signature line: key name, key id (4 bytes), signature."""

    name: str
    key_hash: bytes
    signature: bytes

    @property
    def keyid(self) -> str:
        """NAME+HASH, as :attr:`VerifierKey.keyid`."""
        return f"{self.name}+{self.key_hash.hex()}"


@dataclass(frozen=True)
class Note:
    """A parsed note. Nothing in ``text`` may be believed before :meth:`verify`."""

    text: str
    signatures: Sequence[NoteSignature]

    def verify(self, key: VerifierKey, what: str = "the note") -> None:
        """Check that ``key`` signed the text. Raises EvidenceError("signature_invalid").

        Every signature that claims to be by this key must verify, and there must be one.
        """
        own = [s for s in self.signatures if (s.name, s.key_hash) == (key.name, key.key_hash)]
        for signature in own:
            key.verify(signature.signature, self.text.encode(), what)
        if not own:
            found = ", ".join(s.keyid for s in self.signatures)
            raise EvidenceError("signature_invalid", f"{what} is not signed by {key.keyid}, only by {found}")


@dataclass(frozen=True)
class Checkpoint:
    """What the checkpoint of a run says: run, number of leaves, and root, seal and spec as SHA-256 in hex."""

    run_id: str
    size: int
    root: str
    seal: str
    spec: str

    def text(self) -> str:
        """Return the note's text."""
        root = base64.b64encode(bytes.fromhex(self.root)).decode()
        return f"{ORIGIN}{self.run_id}\n{self.size}\n{root}\nseal sha256:{self.seal}\nspec sha256:{self.spec}\n"


def sign_note(text: str, keys: Sequence[SignerKey]) -> bytes:
    """Return the note over ``text``, signed by ``keys``. Raises ValueError for a text that cannot be one."""
    if not text.endswith("\n") or _CONTROL.search(text) or not keys:
        raise ValueError("a note needs a text that ends in a newline, has no control characters, and a key")
    lines = (
        f"{_DASH}{key.verifier.name} {base64.b64encode(key.verifier.key_hash + key.sign(text.encode())).decode()}\n"
        for key in keys
    )
    return (text + "\n" + "".join(lines)).encode()


def parse_note(data: bytes, what: str = "the note") -> Note:
    """Read a note. Raises EvidenceError("evidence_malformed") for anything outside the grammar or the limits."""
    if len(data) > MAX_NOTE_BYTES:
        raise _malformed(what, f"it has {len(data)} bytes, the limit is {MAX_NOTE_BYTES}")
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(what, "it is not UTF-8") from error
    if _CONTROL.search(content):
        raise _malformed(what, "it holds a control character")
    head, gap, tail = content.rpartition("\n\n")  # the last empty line: the text may hold others
    if not gap or not head or not tail.endswith("\n"):
        raise _malformed(what, "it has no text, no empty line before the signatures, or no last newline")
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise _malformed(what, f"it has {len(lines)} signatures, the limit is {MAX_SIGNATURES}")
    return Note(head + "\n", [_signature(line, what) for line in lines])


def parse_checkpoint(note: Note, what: str = "the note") -> Checkpoint:
    """Read the text of a run's checkpoint. Raises EvidenceError("evidence_malformed")."""
    lines = note.text[:-1].split("\n")
    if len(lines) != 5 or not lines[0].startswith(ORIGIN) or not _SIZE.fullmatch(lines[1]):
        raise _malformed(
            what, "it is no checkpoint of a run: origin, size, root, seal and spec are needed, a line each"
        )
    root = decode_base64(lines[2])
    if root is None or len(root) != 32:
        raise _malformed(what, "its root is no base64 of 32 bytes")
    digests = []
    for line, label in ((lines[3], "seal sha256:"), (lines[4], "spec sha256:")):
        digest = line.removeprefix(label)
        if digest == line or not is_sha256(digest):
            raise _malformed(what, f"the line '{label}' is not there or holds no digest")
        digests.append(digest)
    return Checkpoint(lines[0].removeprefix(ORIGIN), int(lines[1]), root.hex(), *digests)


def _signature(line: str, what: str) -> NoteSignature:
    found = _LINE.fullmatch(line)
    data = decode_base64(found[2]) if found is not None else None
    if found is None or data is None or len(data) < 5:
        raise _malformed(what, "a signature line is not of the form '— NAME BASE64'")
    return NoteSignature(found[1], data[:4], data[4:])


def _malformed(what: str, why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what} is malformed: {why}", document=what)
