"""The referee: leads a dispute by signed requests, and checks a finished one again from its files alone.

Online it is trusted for two things: the time, and what it says it received. Both are in its signed messages. Everything
else follows from the parties' signed answers, so :func:`examine` comes to the same ruling without the store, the job's
code or whoever collected the files. A transcript that is not complete and consistent is an error, never a ruling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vt_core.dispute.answers import Keys, Received, announced, read_answer, terms_of
from vt_core.dispute.claims import WitnessClaim
from vt_core.dispute.game import Game
from vt_core.dispute.messages import (
    MAX_MESSAGE_BYTES,
    MAX_ROUNDS,
    Message,
    Role,
    Subject,
    digest,
    file_name,
    open_message,
    sign,
)
from vt_core.dispute.moves import Answer, Failure
from vt_core.dispute.rules import Rules, Ruling
from vt_core.dispute.transcript import SEAL, SPEC, Files, part_name
from vt_core.errors import EvidenceError
from vt_core.evidence.digests import is_sha256, sha256_bytes
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.evidence.note import MAX_NOTE_BYTES, parse_checkpoint, parse_note
from vt_core.evidence.records import MAX_RECORD_BYTES, Seal, parse_seal
from vt_core.evidence.signatures import NOTE, check_checkpoint
from vt_core.training.spec import MAX_SPEC_BYTES, RunSpec, parse_spec


class Referee:
    """Leads one dispute. Times are milliseconds since 1970 (UTC), as integers."""

    def __init__(
        self, subject: Subject, spec: RunSpec, seal: Seal, rules: Rules, key: SignerKey, keys: Keys, deadline: int
    ) -> None:
        """Prepare; ``deadline`` is how long a party has for an answer. Raises EvidenceError if seal and spec differ."""
        self.subject, self.key, self.deadline = subject, key, deadline
        self.keys = {**keys, Role.REFEREE: key.verifier}
        self.game = Game(spec, seal, rules)
        self._last: bytes | None = None
        self._asked: Message | None = None
        self.answer_by = 0

    @property
    def waits_for(self) -> Sequence[Role]:
        """The parties whose answer is awaited; empty once there is a ruling."""
        return () if self.game.request is None else self.game.request.of

    @property
    def round(self) -> int:
        """Number of the round whose answers are awaited."""
        return -1 if self._asked is None else self._asked.round

    def begin(self, now: int) -> bytes:
        """Return the first request, which also names the keys and the time for an answer."""
        terms = {"keys": {str(r): k.text for r, k in self.keys.items()}, "deadline": self.deadline}
        return self._say(now, None, {"terms": terms})

    def announced(self, role: Role, data: bytes) -> Sequence[tuple[str, int]]:
        """Return SHA-256 (hex) and size of each part of a witness that a message announces; most announce none."""
        assert self._asked is not None and self._last is not None
        claim = announced(self._asked, digest(self._last), self.keys, role, data)
        return () if claim is None else claim.parts

    def complete(self, role: Role, received: Received) -> bool:
        """Tell whether everything that a message announces has arrived."""
        announced = list(self.announced(role, received.data))
        return not announced or list(WitnessClaim.of(received.parts).parts) == announced

    def take(self, received: Mapping[Role, Received | None], now: int) -> bytes:
        """Take what arrived (None: nothing by the deadline) and return the next request, or the ruling."""
        assert self._asked is not None and self._last is not None and self.game.request is not None
        answers: dict[Role, Answer | Failure] = {}
        receipts: dict[str, Any] = {}
        for role in self.game.request.of:
            found = received.get(role)
            whole = found is not None and self.complete(role, found)
            receipts[str(role)] = None if found is None else {"message": digest(found.data), "complete": whole}
            witness = b"".join(found.parts) if found is not None and whole else None
            data = None if found is None else found.data
            answers[role] = read_answer(self._asked, digest(self._last), self.keys, role, data, witness)
        self.game.answer(answers)
        return self._say(now, receipts, {})

    def _say(self, now: int, receipts: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> bytes:
        number = 0 if self._asked is None else self._asked.round + 1
        previous = None if self._last is None else digest(self._last)
        body: dict[str, Any] = {"time": now, "received": receipts, **extra}
        if self.game.request is None:
            assert self.game.ruling is not None
            kind, body["ruling"] = "ruling", self.game.ruling.to_json()
        else:
            kind, self.answer_by = self.game.request.kind, now + self.deadline
            body |= terms_of(self.game.request, self.answer_by)
        self._asked = Message(self.subject, number, Role.REFEREE, previous, kind, body)
        self._last = sign(self._asked, self.key)
        return self._last


@dataclass(frozen=True)
class Examined:
    """What a transcript shows.

    ``seal_signed``: whether it holds the trainer's signature over the seal (else the trainer's answers name the seal).
    ``referee_agrees``: whether the referee signed the same ruling as found here. ``deadline`` in milliseconds.
    """

    subject: Subject
    root: str
    seal_signed: bool
    ruling: Ruling
    referee_agrees: bool
    rounds: int
    deadline: int
    message_bytes: int
    witness_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "run_id": self.subject.run,
            "dispute": self.subject.dispute,
            "seal": self.subject.seal,
            "root": self.root,
            "seal_signed": self.seal_signed,
            **self.ruling.to_json(),
            "referee_agrees": self.referee_agrees,
            "rounds": self.rounds,
            "deadline_seconds": self.deadline / 1000,
            "message_bytes": self.message_bytes,
            "witness_bytes": self.witness_bytes,
        }


def examine(files: Files, keys: Keys, rules: Rules) -> Examined:
    """Replay a dispute from its files and rule on it.

    ``keys`` holds the public keys of trainer, auditor and referee as the reader knows them. Raises EvidenceError for a
    transcript that is incomplete, was tampered with, or was not led by the rules; the reason tells which.
    """
    spec_bytes, seal_bytes = _needed(files, SPEC, MAX_SPEC_BYTES), _needed(files, SEAL, MAX_RECORD_BYTES)
    spec, seal = parse_spec(spec_bytes), parse_seal(seal_bytes)
    game = Game(spec, seal, rules)
    first = open_message(_needed(files, file_name(0, Role.REFEREE), 2 * MAX_MESSAGE_BYTES), keys, Role.REFEREE)
    subject = first.subject
    if subject.seal != sha256_bytes(seal_bytes) or subject.run != seal.run_id:
        raise EvidenceError("chain_broken", "the dispute is about another seal than the one in the transcript")
    signed = _check_note(files, seal, keys[Role.TRAINER])
    deadline = _terms(first, keys)
    size = witness_size = 0
    before: tuple[Message, str] | None = None
    for number in range(MAX_ROUNDS):
        data = _needed(files, file_name(number, Role.REFEREE), 2 * MAX_MESSAGE_BYTES)
        size += len(data)
        message = open_message(data, keys, Role.REFEREE)
        _follows(message, number, subject, before)
        if before is not None:
            answers, messages, witnesses = _answers(files, message, before, game, keys)
            size, witness_size = size + messages, witness_size + witnesses
            game.answer(answers)
        if game.request is None:
            found = _closed(message, game)
            return Examined(subject, seal.root, signed, *found, game.rounds, deadline, size, witness_size)
        expected = terms_of(game.request, message.body["time"] + deadline)
        if message.kind != game.request.kind or {k: message.body.get(k) for k in expected} != expected:
            raise EvidenceError("chain_broken", f"the referee's request of round {number} is not what the rules ask")
        before = (message, digest(data))
    raise EvidenceError("evidence_malformed", f"the dispute has more than {MAX_ROUNDS} rounds")


def _closed(message: Message, game: Game) -> tuple[Ruling, bool]:
    """Return the ruling that follows from the answers, and whether the referee signed the same."""
    if message.kind != "ruling":
        raise EvidenceError("chain_broken", "the referee goes on with a dispute that is decided")
    assert game.ruling is not None
    own, signed = game.ruling.to_json(), message.body.get("ruling")
    names = ("winner", "reason", "place")
    same = isinstance(signed, dict) and [signed.get(n) for n in names] == [own[n] for n in names]
    return game.ruling, same


def _check_note(files: Files, seal: Seal, key: VerifierKey) -> bool:
    """Check the trainer's signature over the seal if it is there, and tell whether it is."""
    data = files.read(NOTE, MAX_NOTE_BYTES)
    if data is None:
        return False
    note = parse_note(data, NOTE)
    note.verify(key, NOTE)
    check_checkpoint(parse_checkpoint(note, NOTE), seal)
    return True


def _terms(first: Message, keys: Keys) -> int:
    terms = first.body.get("terms")
    if not isinstance(terms, dict) or set(terms) != {"keys", "deadline"}:
        raise EvidenceError("evidence_malformed", "the first request names no terms")
    if terms["keys"] != {str(role): key.text for role, key in keys.items()}:
        raise EvidenceError("signature_invalid", "the dispute was led with other keys than the ones given")
    if type(terms["deadline"]) is not int or terms["deadline"] < 0:
        raise EvidenceError("evidence_malformed", "the deadline must be a count of milliseconds")
    return int(terms["deadline"])


def _follows(message: Message, number: int, subject: Subject, before: tuple[Message, str] | None) -> None:
    previous = None if before is None else before[1]
    if (message.subject, message.round, message.previous) != (subject, number, previous):
        raise EvidenceError("chain_broken", f"the referee's message {number} does not follow the one before it")
    time = message.body.get("time")
    if type(time) is not int or (before is not None and time < before[0].body["time"]):
        raise EvidenceError("evidence_malformed", f"the referee's clock in message {number} runs backwards")


def _answers(
    files: Files, message: Message, before: tuple[Message, str], game: Game, keys: Keys
) -> tuple[dict[Role, Answer | Failure], int, int]:
    """Return the answers to the request ``before``, as ``message`` acknowledges them, and their size in bytes."""
    assert game.request is not None
    request, request_digest = before
    receipts = message.body.get("received")
    if not isinstance(receipts, dict) or set(receipts) != {str(role) for role in game.request.of}:
        raise EvidenceError("evidence_malformed", "the referee does not say what it received")
    answers: dict[Role, Answer | Failure] = {}
    size = witness_size = 0
    for role in game.request.of:
        receipt = receipts[str(role)]
        if receipt is None:
            if message.body["time"] < request.body["answer_by"]:
                raise EvidenceError("chain_broken", f"the referee gave up on the {role} before its time was over")
            answers[role] = read_answer(request, request_digest, keys, role, None, None)
            continue
        if not _is_receipt(receipt):
            raise EvidenceError("evidence_malformed", "the referee does not say what it received")
        data = _needed(files, file_name(request.round, role), 2 * MAX_MESSAGE_BYTES)
        if digest(data) != receipt["message"]:
            raise EvidenceError("chain_broken", f"the {role}'s message {request.round} is another than was received")
        size += len(data)
        claim = announced(request, request_digest, keys, role, data)
        witness: bytes | None = None
        if claim is not None and receipt["complete"] is True:
            witness = _witness(files, request.round, role, claim)
            witness_size += len(witness)
        elif claim is not None and message.body["time"] < request.body["answer_by"]:
            raise EvidenceError("chain_broken", f"the referee gave up on the {role} before its time was over")
        answers[role] = read_answer(request, request_digest, keys, role, data, witness)
    return answers, size, witness_size


def _witness(files: Files, number: int, role: Role, claim: WitnessClaim) -> bytes:
    parts = []
    for k, (sha256, size) in enumerate(claim.parts):
        name = part_name(number, role, k)
        part = _needed(files, name, size)
        if sha256_bytes(part) != sha256:
            raise EvidenceError("artifact_corrupt", f"{name} is not the part that the {role} signed", file=name)
        parts.append(part)
    return b"".join(parts)


def _needed(files: Files, name: str, max_bytes: int) -> bytes:
    data = files.read(name, max_bytes)
    if data is None:
        raise EvidenceError("artifact_missing", f"the transcript is not complete: {name} is missing", file=name)
    return data


def _is_receipt(plain: Any) -> bool:
    return isinstance(plain, dict) and set(plain) == {"message", "complete"} and is_sha256(plain["message"])
