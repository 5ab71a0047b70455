"""Playing the roles of a dispute: all of them in one process, or one against the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.disputants import Disputant, Maker
from tasks.disputes import DisputeBoard, lead, list_disputes, new_dispute_id, take_part
from tasks.reporter import reporter
from tasks.runs import RunStore
from vt_core.dispute.answers import Keys
from vt_core.dispute.messages import PARTIES, Role
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.referee import Examined, Referee, examine
from vt_core.dispute.transcript import SPEC, FolderFiles, save
from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.keys import SignerKey, VerifierKey, read_signer_key, read_verifier_key
from vt_core.training.session import Session
from vt_core.training.spec import MAX_SPEC_BYTES, parse_spec
from vt_core.verify.audit import open_run
from vt_core.verify.limits import AuditorLimits


@dataclass(frozen=True)
class Terms:
    """What a person says about a dispute.

    ``keys``: for each role a key's file, private for a role played here. ``deadline`` in seconds. ``limits``: the
    auditor's, as ``audit.limits`` in the parameters. ``makers`` gives the sessions of parties that do not run the
    agreed code (demonstrations).
    """

    run: RunStore
    keys: Mapping[str, str]
    dispute: str | None = None
    deadline: float = 600.0
    segment: int | None = None
    data: str | None = None
    device: str = "cpu"
    workspace: Path = Path(".vt")
    limits: Mapping[str, Any] | None = None
    makers: Mapping[Role, Maker] = field(default_factory=dict)

    def signer(self, role: Role) -> SignerKey:
        """Return a private key. Raises SpecError."""
        return read_signer_key(Path(self.keys[role]))

    def public(self, own: Role, key: SignerKey) -> Keys:
        """Return the public keys of all roles; that of ``own`` belongs to ``key``. Raises SpecError."""
        return {role: key.verifier if role is own else public_key(self.keys[role]) for role in Role}

    def disputant(self, role: Role) -> AbstractContextManager[Disputant]:
        """Return the party that plays ``role``, to be opened; see :meth:`Disputant.open`."""
        make = self.makers.get(role, Session)
        limits = AuditorLimits.from_params(self.limits) if role is Role.AUDITOR else None
        return Disputant(self.run, role, self.workspace, self.data, self.device, make).open(limits)


@dataclass(frozen=True)
class Played:
    """A dispute that was played to its end; ``ruling`` is what the referee said."""

    dispute: str
    ruling: Mapping[str, Any]
    board: DisputeBoard

    def save(self, folder: Path) -> dict[str, int]:
        """Write the transcript to ``folder`` and return its size: rounds, bytes of messages and of the witness."""
        files = self.board.files()
        save(files, folder)
        messages = {n: len(d) for n, d in files.items() if n[0].isdigit() and n.endswith(".json")}
        parts = sum(len(d) for n, d in files.items() if ".part" in n)
        rounds = max(int(n[:4]) for n in messages)
        return {"rounds": rounds, "message_bytes": sum(messages.values()), "witness_bytes": parts}


def play_all(terms: Terms, stack: ExitStack) -> Played:
    """Play trainer, auditor and referee in this process, one after the other in each round."""
    keys = {role: terms.signer(role) for role in Role}
    public = {role: key.verifier for role, key in keys.items()}
    board = DisputeBoard(terms.run, terms.dispute or new_dispute_id())
    parties = {}
    for role in reversed(PARTIES):
        disputant = stack.enter_context(terms.disputant(role))
        parties[role] = disputant.party(board, keys[role], public[Role.REFEREE], terms.segment)
    ruling = lead(board, _referee(terms, board, keys[Role.REFEREE], public), parties)
    return Played(board.dispute, ruling.to_json(), board)


def play_one(terms: Terms, role: str, stack: ExitStack, begun: Callable[[str, Keys], None] | None = None) -> Played:
    """Play one role against the store. A referee calls ``begun`` with the dispute's id and all keys before it leads.

    Raises SpecError for a role that is none, or to take part where no dispute was begun, VtError if the referee is
    gone.
    """
    if role not in list(Role):
        raise SpecError(f"--as {role}: use all, trainer, auditor or referee")
    own = Role(role)
    key = terms.signer(own)
    public = terms.public(own, key)
    if own is Role.REFEREE:
        board = DisputeBoard(terms.run, terms.dispute or new_dispute_id())
        reporter.get().message(f"dispute {board.dispute} of run {terms.run.run_id}")
        leading = _referee(terms, board, key, public)
        if begun is not None:
            begun(board.dispute, public)
        return Played(board.dispute, lead(board, leading).to_json(), board)
    name = terms.dispute or next(iter(reversed(list_disputes(terms.run))), None)
    if name is None:
        raise SpecError(f"no dispute about run {terms.run.run_id!r} was begun; give --dispute ID to wait for one")
    board = DisputeBoard(terms.run, name)
    disputant = stack.enter_context(terms.disputant(own))
    party = disputant.party(board, key, public[Role.REFEREE], terms.segment)
    ruling = take_part(board, party, 2 * terms.deadline + 60.0)
    return Played(name, ruling, board)


def examine_folder(folder: Path, keys: Mapping[str, str]) -> Examined:
    """Rule on a transcript. Raises EvidenceError for one that is not complete and consistent, SpecError for keys."""
    files = FolderFiles(folder)
    spec = files.read(SPEC, MAX_SPEC_BYTES)
    if spec is None:
        raise EvidenceError("artifact_missing", f"{folder} holds no transcript: there is no {SPEC}", file=SPEC)
    return examine(files, {role: public_key(keys[role]) for role in Role}, OpRules(parse_spec(spec)))


def public_key(text_or_path: str) -> VerifierKey:
    """Return a public key, given as text, as its file, or as the private key's file beside it. Raises SpecError."""
    path = Path(text_or_path)
    if "+" not in text_or_path and path.suffix != ".pub" and path.with_name(path.name + ".pub").exists():
        return read_verifier_key(text_or_path + ".pub")
    return read_verifier_key(text_or_path)


def _referee(terms: Terms, board: DisputeBoard, key: SignerKey, public: Keys) -> Referee:
    run = open_run(terms.run.commitments())
    subject = board.subject()
    assert run.seal is not None  # subject() says so
    return Referee(subject, run.spec, run.seal, OpRules(run.spec), key, public, round(1000 * terms.deadline))
