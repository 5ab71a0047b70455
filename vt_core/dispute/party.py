"""One party of a dispute: answers the referee's requests from what it claims, and signs the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vt_core.dispute.bisection import (
    LEVELS,
    Node,
    descendants,
    padded_proof,
    padded_root,
    padded_size,
    subtree_hashes,
)
from vt_core.dispute.claims import (
    MAX_RECORDS,
    ExhibitClaim,
    LeafBefore,
    LeafClaim,
    RecordClaim,
    RecordsClaim,
    RootClaim,
    StepDigests,
    TreeClaim,
    WitnessClaim,
)
from vt_core.dispute.messages import Message, Role, Subject, digest, open_message, sign
from vt_core.dispute.rules import Rules
from vt_core.errors import EvidenceError
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.evidence.merkle import inclusion_proof, leaf_hash, root

PART_BYTES = 32 << 20  # a store takes objects of 64 MiB at most
MAX_PARTS = 256


@dataclass(frozen=True)
class LeafContent:
    """What one leaf is made of: its steps in order, and the work commitment (32 bytes)."""

    steps: Sequence[StepDigests]
    work: bytes


class StepRecords(Protocol):
    """The op records of one step, and witnesses for them."""

    @property
    def records(self) -> Sequence[bytes]:
        """All records of the step, the last of which leads to the state after it."""

    def witness(self, index: int) -> bytes:
        """Return the values of the inputs of record ``index``, as the judge reads them."""

    def exhibit(self, index: int) -> bytes:
        """Return proofs of what was agreed on before training about record ``index``; empty if there are none."""


class Claim(Protocol):
    """What a party stands by. Costly parts (a replay, a recorded step) are made when they are asked for."""

    def leaf_hashes(self) -> Sequence[bytes]:
        """Return the hashes of all leaves of the run."""

    def leaf(self, index: int) -> LeafContent:
        """Return what leaf ``index`` is made of."""

    def before(self, index: int) -> tuple[bytes, bytes, bytes, bytes]:
        """Return state root, log, trace and work of the leaf before leaf ``index`` (which is not the first)."""

    def step(self, step: int) -> StepRecords:
        """Return the records of step ``step``."""


@dataclass(frozen=True)
class Reply:
    """A signed answer, and the parts of a witness that travel beside it."""

    data: bytes
    parts: Sequence[bytes] = ()


@dataclass
class Party:
    """The trainer or the auditor in one dispute. ``concede``: give up in the first round, for this reason."""

    role: Role
    subject: Subject
    claim: Claim
    rules: Rules
    key: SignerKey
    referee: VerifierKey
    concede: str | None = None
    _step: int = -1
    _records: StepRecords | None = None
    _hashes: list[bytes] = field(default_factory=list)

    def answer(self, data: bytes) -> Reply | None:
        """Answer one message of the referee; None if it asks nothing of this party.

        Raises EvidenceError if the message is not the referee's or is about another dispute.
        """
        request = open_message(data, {Role.REFEREE: self.referee}, Role.REFEREE)
        if request.subject != self.subject:
            raise EvidenceError("chain_broken", "the request belongs to another dispute")
        if request.kind == "ruling" or str(self.role) not in request.body["of"]:
            return None
        parts: Sequence[bytes] = ()
        if self.concede is not None:
            body: Mapping[str, Any] = {"concede": self.concede}
        else:
            body, parts = self._body(request.kind, request.body["ask"])
        message = Message(self.subject, request.round, self.role, digest(data), request.kind, body)
        return Reply(sign(message, self.key), parts)

    def _body(self, kind: str, ask: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        if kind == "roots":
            leaves = self.claim.leaf_hashes()
            return RootClaim(len(leaves), root(leaves)).body(), ()
        if kind == "tree":
            return TreeClaim(self._descendants(ask["tree"], (ask["begin"], ask["end"]), ask["levels"])).body(), ()
        if kind == "leaf":
            return self._leaf(ask["index"]).body(), ()
        if kind == "records":
            return self._open_step(ask["step"]).body(), ()
        if kind == "record":
            return self._record(ask["index"]).body(), ()
        if kind == "exhibit":
            assert self._records is not None
            return ExhibitClaim(self._records.exhibit(ask["index"])).body(), ()
        if kind == "witness":
            assert self._records is not None
            blob = self._records.witness(ask["index"])
            parts = [blob[i : i + PART_BYTES] for i in range(0, len(blob), PART_BYTES)] or [b""]
            return WitnessClaim.of(parts).body(), parts
        raise EvidenceError("evidence_malformed", f"the referee asks for {kind!r}, which this version does not know")

    def _descendants(self, tree: str, node: Node, levels: int) -> list[bytes]:
        width = node[1] - node[0]
        if levels != LEVELS or not 0 <= node[0] < node[1]:
            raise EvidenceError("evidence_malformed", f"the referee asks for a node {node} that cannot be")
        if tree == "leaves":
            return subtree_hashes(self.claim.leaf_hashes(), node, levels)
        if width & (width - 1) or node[0] % width or node[1] > 2 * MAX_RECORDS:
            raise EvidenceError("evidence_malformed", f"the referee asks for a node {node} that cannot be")
        return [padded_root(self._hashes, n) for n in descendants(node, levels)]

    def _leaf(self, index: int) -> LeafClaim:
        content, before = self.claim.leaf(index), None
        if index > 0:
            proof = inclusion_proof(index - 1, list(self.claim.leaf_hashes()))
            before = LeafBefore(self.claim.before(index), proof)
        return LeafClaim(content.steps, content.work, before)

    def _open_step(self, step: int) -> RecordsClaim:
        if step != self._step or self._records is None:
            self._records, self._step = self.claim.step(step), step
            self._hashes = [leaf_hash(record) for record in self._records.records]
        records = self._records.records
        size, last = padded_size(len(records)), len(records) - 1
        return RecordsClaim(
            len(records), padded_root(self._hashes, (0, size)), records[-1], padded_proof(self._hashes, last, size)
        )

    def _record(self, index: int) -> RecordClaim:
        assert self._records is not None
        records = self._records.records
        if index >= len(records):
            return RecordClaim(b"")
        used = sorted(set(self.rules.uses(records[index], index)))
        size = padded_size(len(records))
        proofs = {j: padded_proof(self._hashes, j, size) for j in used}
        return RecordClaim(records[index], {j: records[j] for j in used}, proofs)
