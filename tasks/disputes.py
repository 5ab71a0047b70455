"""Disputes in the store: where their messages lie, and who waits for whom.

The messages of a dispute lie under ``disputes/RUN/ID/``: the trainer's among the commitments, those of auditor and
referee among the verdicts, since each may write there alone. They are created once and never overwritten. A process
that was stopped goes on where it was when it is started again: answers and signatures come out the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tasks.reporter import reporter
from tasks.runs import RunStore
from tasks.store import CommitmentStore
from vt_core.dispute.answers import Received
from vt_core.dispute.messages import (
    MAX_MESSAGE_BYTES,
    MAX_ROUNDS,
    Message,
    Role,
    Subject,
    check_dispute_id,
    file_name,
    open_message,
)
from vt_core.dispute.party import PART_BYTES, Party
from vt_core.dispute.referee import Referee
from vt_core.dispute.rules import Ruling
from vt_core.dispute.transcript import SEAL, SPEC, part_name
from vt_core.errors import AlreadyExists, EvidenceError, NotFound, SpecError, VtError
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.signatures import NOTE

POLL_S = 0.5


class DisputeBoard:
    """The files of one dispute in the store."""

    def __init__(self, run: RunStore, dispute: str) -> None:
        """Name a dispute; nothing is read yet. Raises SpecError for an id that cannot be used."""
        try:
            self.dispute = check_dispute_id(dispute)
        except ValueError as error:
            raise SpecError(str(error)) from error
        self.run = run
        self._base = f"disputes/{run.run_id}/{dispute}"

    def subject(self) -> Subject:
        """Return what the dispute is about. Raises SpecError if the run is not sealed."""
        seal = self.run.seal()
        if seal is None:
            raise SpecError(f"run {self.run.run_id!r} is not sealed: there is nothing yet that its trainer stands by")
        return Subject(self.run.run_id, sha256_bytes(seal), self.dispute)

    def put(self, sender: Role, name: str, data: bytes) -> None:
        """Write a file of ``sender``'s. Raises SpecError if another one of that name is there."""
        store = self._store(sender)
        try:
            store.create(f"{self._base}/{name}", data)
        except AlreadyExists:
            if store.read(f"{self._base}/{name}") != data:
                raise SpecError(
                    f"{name} of dispute {self.dispute!r} is there already and differs: begin another dispute"
                ) from None

    def get(self, sender: Role, name: str, max_bytes: int) -> bytes | None:
        """Return a file of ``sender``'s, None if it is not there or too large to be what it should be."""
        try:
            return self._store(sender).read(f"{self._base}/{name}", max_bytes)
        except (NotFound, EvidenceError):
            return None

    def message(self, number: int, sender: Role) -> bytes | None:
        """Return the envelope of one round."""
        return self.get(sender, file_name(number, sender), 2 * MAX_MESSAGE_BYTES)

    def files(self) -> dict[str, bytes]:
        """Return all that a transcript holds: spec, seal, its signature, messages and witness."""
        commitments = self.run.commitments()
        copies = {SPEC: commitments.spec, SEAL: commitments.seal, NOTE: commitments.note}
        found = {name: data for name, data in copies.items() if data is not None}
        for store in (self.run.store.commitments, self.run.store.verdicts):
            for name in store.list(f"{self._base}/"):
                found[name.rpartition("/")[2]] = store.read(name)
        return found

    def _store(self, sender: Role) -> CommitmentStore:
        return self.run.store.commitments if sender is Role.TRAINER else self.run.store.verdicts


def list_disputes(run: RunStore) -> list[str]:
    """Return the ids of a run's disputes, sorted; ids begin with the time, so the newest comes last."""
    return sorted({name.split("/")[2] for name in run.store.verdicts.list(f"disputes/{run.run_id}/")})


def new_dispute_id() -> str:
    """Return a fresh id for a dispute: the time in UTC."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def now_ms() -> int:
    """Return milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def lead(
    board: DisputeBoard,
    referee: Referee,
    present: Mapping[Role, Party] | None = None,
    clock: Callable[[], int] = now_ms,
    pause: float = POLL_S,
) -> Ruling:
    """Lead a dispute to its ruling; ``present`` are parties that are played by this process, the others are waited for.

    Goes on with a dispute that was begun with the same terms. Raises SpecError if it was begun with others.
    """
    keys = {Role.REFEREE: referee.key.verifier}
    first = board.message(0, Role.REFEREE)
    data = referee.begin(clock() if first is None else _time(open_message(first, keys, Role.REFEREE)))
    board.put(Role.REFEREE, file_name(0, Role.REFEREE), data)
    while referee.waits_for:
        number = referee.round
        said = board.message(number + 1, Role.REFEREE)
        for party in (present or {}).values():  # in rounds that are over too: a party builds on what it said before
            _answer(board, party, number, data)
        if said is None:
            assert referee.game.request is not None
            reporter.get().message(f"round {number}: {referee.game.request.kind} {_terms(referee.game.request.ask)}")
            received, when = _wait(board, referee, clock, pause)
        else:
            message = open_message(said, keys, Role.REFEREE)
            received, when = _received(board, referee, message), _time(message)
        data = referee.take(received, when)
        board.put(Role.REFEREE, file_name(number + 1, Role.REFEREE), data)
    assert referee.game.ruling is not None
    return referee.game.ruling


def take_part(board: DisputeBoard, party: Party, patience: float, pause: float = POLL_S) -> Mapping[str, Any]:
    """Answer the referee's requests until it rules; returns what it ruled.

    ``patience``: seconds to wait for the referee's next message. Raises VtError when they are over.
    """
    for number in range(MAX_ROUNDS + 1):
        until = time.monotonic() + patience
        while (data := board.message(number, Role.REFEREE)) is None:
            if time.monotonic() > until:
                raise VtError(f"the referee of dispute {board.dispute!r} has said nothing for {patience:.0f} s")
            time.sleep(pause)
        message = open_message(data, {Role.REFEREE: party.referee}, Role.REFEREE)
        if message.kind == "ruling":
            ruling: Mapping[str, Any] = message.body["ruling"]
            return ruling
        reporter.get().message(f"round {number}: {message.kind} {_terms(message.body['ask'])}")
        _answer(board, party, number, data)
    raise EvidenceError("evidence_malformed", f"the dispute has more than {MAX_ROUNDS} rounds")


def _answer(board: DisputeBoard, party: Party, number: int, request: bytes) -> None:
    reply = party.answer(request)
    if reply is None:
        return
    for k, part in enumerate(reply.parts):  # before the message, so that whoever sees it finds them
        board.put(party.role, part_name(number, party.role, k), part)
    board.put(party.role, file_name(number, party.role), reply.data)


def _wait(
    board: DisputeBoard, referee: Referee, clock: Callable[[], int], pause: float
) -> tuple[dict[Role, Received | None], int]:
    """Wait until all have answered or the time is over; return what is there then, and when that was."""
    while True:
        now = clock()
        received = {role: _look(board, referee, role) for role in referee.waits_for}
        missing = [r for r, found in received.items() if found is None or not referee.complete(r, found)]
        if not missing or now >= referee.answer_by:
            for role in missing:
                reporter.get().message(f"no (whole) answer of the {role} by the deadline")
            return received, now
        time.sleep(min(pause, max(0.001, (referee.answer_by - now) / 1000)))


def _look(board: DisputeBoard, referee: Referee, role: Role) -> Received | None:
    data = board.message(referee.round, role)
    if data is None:
        return None
    parts = []
    for k, (_, size) in enumerate(referee.announced(role, data)):
        part = board.get(role, part_name(referee.round, role, k), min(size, PART_BYTES))
        if part is not None:
            parts.append(part)
    return Received(data, parts)


def _received(board: DisputeBoard, referee: Referee, message: Message) -> dict[Role, Received | None]:
    """Return what this referee received before it was stopped, as its next message says."""
    found: dict[Role, Received | None] = {}
    for role in referee.waits_for:
        receipt = message.body["received"][str(role)]
        here = None if receipt is None else _look(board, referee, role)
        if receipt is not None and here is not None and receipt["complete"] is not True:
            here = Received(here.data)
        found[role] = here
    return found


def _time(message: Message) -> int:
    return int(message.body["time"])


def _terms(ask: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in ask.items())
