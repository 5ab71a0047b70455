"""Proof of a fork: two signed checkpoints of one run that say different things convict whoever signed both.

A trainer seals a run once. If it shows one history to one auditor and another history to the next (a *split view*, as
transparency logs call it), each is consistent in itself, and no audit of either finds anything. Both checkpoints are
signed, so the two together are evidence that everybody can check with the trainer's public key alone. Auditors and
clients who exchange the note they were shown find it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.keys import VerifierKey
from vt_core.evidence.note import MAX_NOTE_BYTES, Checkpoint, parse_checkpoint, parse_note

FORK_FORMAT = "vt-fork/1"
MAX_FORK_BYTES = 4 * MAX_NOTE_BYTES
_WHAT = "the proof of a fork"


@dataclass(frozen=True)
class Fork:
    """Two valid checkpoints (the notes' bytes and their content) of one run by one key that differ in ``fields``."""

    run_id: str
    keyid: str
    notes: tuple[bytes, bytes]
    checkpoints: tuple[Checkpoint, Checkpoint]
    fields: tuple[str, ...]

    @property
    def message(self) -> str:
        """What was found, in words."""
        first, second = self.checkpoints
        pairs = (f"{name} {getattr(first, name)} and {getattr(second, name)}" for name in self.fields)
        return f"{self.keyid} signed two histories of run {self.run_id!r}: {', '.join(pairs)}"

    def to_bytes(self) -> bytes:
        """Return the proof as one file (canonical JSON) that anybody can check; see :func:`check_fork`."""
        first, second = (note.decode("utf-8") for note in self.notes)
        return dumps({"format": FORK_FORMAT, "notes": [first, second]})


def fork_proof(first: bytes, second: bytes, key: VerifierKey) -> Fork | None:
    """Return the fork that two signed checkpoints prove, None if they say the same.

    Any difference counts: the number of leaves follows from the run's spec, so a sealed run does not grow, and a run
    has one spec. Raises EvidenceError (``evidence_malformed`` or ``signature_invalid``) if one of them is not a valid
    note by ``key``, which then proves nothing against anybody, and SpecError if they are about different runs.
    """
    one, other = _checkpoint(first, key, "the first note"), _checkpoint(second, key, "the second note")
    if one.run_id != other.run_id:
        raise SpecError(f"the notes are about two runs, {one.run_id!r} and {other.run_id!r}: that is no fork")
    fields = tuple(n for n in ("spec", "size", "root", "seal") if getattr(one, n) != getattr(other, n))
    return Fork(one.run_id, key.keyid, (first, second), (one, other), fields) if fields else None


def check_same_history(shown: bytes, elsewhere: bytes, key: VerifierKey) -> None:
    """Compare the note that this reader was shown with one that somebody else was shown.

    Raises EvidenceError("chain_broken") with the proof's message for a fork; otherwise as :func:`fork_proof`.
    """
    fork = fork_proof(shown, elsewhere, key)
    if fork is not None:
        raise EvidenceError("chain_broken", fork.message, file="seal.note")


def check_fork(data: bytes, key: VerifierKey) -> Fork:
    """Check a proof that somebody sent. Raises EvidenceError for anything that does not convict ``key``."""
    plain = loads_strict(data, _WHAT, MAX_FORK_BYTES)
    if not isinstance(plain, dict) or set(plain) != {"format", "notes"} or plain["format"] != FORK_FORMAT:
        raise _malformed(f"not a {FORK_FORMAT} object")
    notes = plain["notes"]
    if not isinstance(notes, list) or len(notes) != 2 or not all(isinstance(n, str) for n in notes):
        raise _malformed("it needs two notes")
    try:
        first, second = (note.encode("utf-8") for note in notes)
        fork = fork_proof(first, second, key)
    except (SpecError, UnicodeEncodeError) as error:  # not this reader's mistake, but the sender's
        raise _malformed(str(error)) from error
    if fork is None:
        raise _malformed("both notes say the same")
    return fork


def _checkpoint(data: bytes, key: VerifierKey, what: str) -> Checkpoint:
    note = parse_note(data, what)
    note.verify(key, what)
    return parse_checkpoint(note, what)


def _malformed(why: str) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{_WHAT} is malformed: {why}", document=_WHAT)
