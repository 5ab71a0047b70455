"""A small real run and every kind of document that belongs to one: what mutations start from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from support.runs import SMALL_DIGITS, Trainer, artifacts, audit, read_commitments

from tasks.store import DvcRemote, Store
from vt_core.dispute.inputs import Exhibit, Shown
from vt_core.dispute.messages import Message, Role, Subject, sign
from vt_core.dispute.witness import Witness
from vt_core.engine.rounding_log import LogReader
from vt_core.errors import NotFound
from vt_core.evidence.agreement import sign_spec
from vt_core.evidence.attest import parse_envelope
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.forks import fork_proof
from vt_core.evidence.judgement import sign_verdict
from vt_core.evidence.keys import SignerKey, VerifierKey
from vt_core.evidence.note import sign_note
from vt_core.evidence.proof import make_proof
from vt_core.evidence.records import Commitments, parse_seal, parse_segment
from vt_core.evidence.signatures import checkpoint_of, sign_seal
from vt_core.training.leaves import decode_leaves

SEGMENT = 2  # of the run's 4; steps 3 and 4


@dataclass(frozen=True)
class Material:
    """Real documents of one run; ``files`` are the artifacts of segment 2."""

    spec: bytes
    segments: Sequence[bytes]
    seal: bytes
    agreement: bytes
    note: bytes
    model: bytes
    statement: bytes
    proof: bytes
    fork: bytes
    files: Mapping[str, bytes]
    log_records: Sequence[bytes]
    verdicts: Sequence[bytes]
    verdict_name: str
    signed_verdict: bytes
    results: Sequence[bytes]
    works: Sequence[bytes]
    pointer: Mapping[str, Any]
    listing: bytes
    message: bytes
    message_payload: bytes
    op_records: Sequence[bytes]
    witnesses: Sequence[bytes]
    exhibits: Sequence[bytes]
    trainer: SignerKey
    client: SignerKey
    root: str
    leaf_count: int

    @property
    def dispute_keys(self) -> dict[Role, VerifierKey]:
        """Keys of the three roles; the trainer's is the run's."""
        return {
            Role.TRAINER: self.trainer.verifier,
            Role.AUDITOR: self.client.verifier,
            Role.REFEREE: self.client.verifier,
        }

    def commitments(self, **changed: Any) -> Commitments:
        """Return the commitments of the run with some of them exchanged."""
        whole = Commitments("run", self.spec, self.segments, self.seal, self.agreement, self.note, self.model)
        return dataclasses.replace(whole, **changed)


@cache
def material() -> Material:
    """Train the run, audit it, and sign all that there is to sign."""
    folder = Path(tempfile.mkdtemp(prefix="vt-fuzz-"))
    try:
        return _make(Trainer(SMALL_DIGITS, folder).run().folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make(folder: Path) -> Material:
    found = read_commitments(folder)
    assert found.spec is not None and found.seal is not None
    records = [parse_segment(data, "segment") for data in found.segments]
    seal = parse_seal(found.seal)
    trainer, client = SignerKey.generate("trainer"), SignerKey.generate("client")
    note, model = sign_seal(records, seal, trainer)
    other = dataclasses.replace(checkpoint_of(seal), root="1" * 64)
    fork = fork_proof(note, sign_note(other.text(), [trainer]), trainer.verifier)
    assert fork is not None
    files = {path.name: path.read_bytes() for path in artifacts(folder, SEGMENT).iterdir()}
    with LogReader(artifacts(folder, SEGMENT) / "rounding.vtlog", 1 << 30) as reader:
        log_records = [reader.record(step) for step in reader.steps]
    last = decode_leaves(files["leaves.json"])[-1]
    leaf = {name: getattr(last, name) for name in ("step", "state", "log", "trace", "work")}
    index = sum(len(record.leaves) for record in records[: SEGMENT + 1]) - 1
    verdict = audit(folder, nonce="0" * 32)
    assert verdict["verdict"] == "verified", verdict["message"]
    spoilt = artifacts(folder, SEGMENT) / "scalars.json"
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    verdicts = [dumps(verdict), dumps(audit(folder, nonce="0" * 32)), dumps(_diverged(verdict))]
    name = "runs/run/20260101T000000Z-0123456789abcdef.json"
    rows = json.loads(verdicts[0])["segments"]
    results = [
        dumps({**row, "final_state": seal.state, "trainer_environment": json.loads(files["environment.json"])})
        for row in [*rows, _diverged(verdict)["segments"][0]]
    ]
    message = Message(Subject("run", sha256_bytes(found.seal), "d1"), 3, Role.TRAINER, "0" * 64, "answer", {"a": [1]})
    listing = json.dumps(
        [{"md5": hashlib.md5(data).hexdigest(), "relpath": name} for name, data in sorted(files.items())]
    ).encode()
    pointer = {
        "md5": hashlib.md5(listing).hexdigest() + ".dir",
        "nfiles": len(files),
        "path": "segment-00002",
        "size": 9,
    }
    return Material(
        spec=found.spec, segments=found.segments, seal=found.seal, agreement=sign_spec(found.spec, [client, trainer]),
        note=note, model=model, statement=parse_envelope(model, "application/vnd.in-toto+json", "model").payload,
        proof=make_proof(3, leaf, index, records, seal, note), fork=fork.to_bytes(), files=files,
        log_records=log_records, verdicts=verdicts, verdict_name=name,
        signed_verdict=sign_verdict(name, verdicts[0], [client]), results=results,
        works=[dumps(row["proof_of_replay"]) for row in rows], pointer=pointer, listing=listing,
        message=sign(message, trainer), message_payload=message.payload(), op_records=_op_records(),
        witnesses=[Witness(3, {(0, 0): torch.ones(2, 3), (1, 2): torch.tensor(5)}, {}, b"log").to_bytes()],
        exhibits=[Exhibit(Shown(b"leaf", (bytes(32),)), Shown(b"", ())).to_bytes(), Exhibit().to_bytes()],
        trainer=trainer, client=client, root=seal.root, leaf_count=seal.leaf_count,
    )  # fmt: skip


def _op_records() -> list[bytes]:
    """Return records of a dispute: what a tensor of the state ends in, and the end of a step."""
    source = {"from": [3, 0], "digest": "a" * 64}
    commit = {"op": "vt::commit", "name": "param.linear.weight", "value": source, "results": ["c" * 64]}
    state = {"op": "vt::state", "step": 3, "scalars": {}, "count": 2, "trace": "d" * 64, "results": ["e" * 64]}
    return [dumps(record) for record in (commit, state)]


def _diverged(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verdict with every field that a divergence can have."""
    place = {
        "segment": 2, "step": 3, "site": 7, "op": "aten.mm.default", "module": "linear", "element": 5,
        "trainer_value": (0.5).hex(), "trainer_value_text": "0.5", "auditor_value": (0.25).hex(),
        "auditor_value_text": "0.25", "distance": (9.0).hex(), "distance_text": "9", "tensors": ["param.linear.weight"],
    }  # fmt: skip
    rows = [
        {**row, "result": "rejected", "reason": "state_mismatch", "divergence": place} for row in verdict["segments"]
    ]
    return {
        **verdict, "verdict": "rejected", "reason": "state_mismatch", "first_divergence": place, "segments": rows,
        "trainer_environments": {"from_segment_0": verdict["environment"]},
    }  # fmt: skip


class MemoryStore:
    """A store whose objects are in memory, for what is too slow on a disk a hundred thousand times."""

    def __init__(self, commitments: Mapping[str, bytes], verdicts: Mapping[str, bytes]) -> None:
        self.store = Store("memory://", _Objects(commitments), _Objects(verdicts), DvcRemote("/nowhere"))


class _Objects:
    url = "memory://"

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = dict(objects)

    def read(self, name: str, max_bytes: int = 1 << 26) -> bytes:
        if name not in self._objects:
            raise NotFound(f"there is no {name}")
        return self._objects[name]

    def list(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self._objects if name.startswith(prefix))

    def exists(self, name: str) -> bool:
        return name in self._objects

    def size(self, name: str) -> int:
        return len(self.read(name))

    def hash(self, name: str, algorithm: str) -> str:
        return hashlib.new(algorithm, self.read(name)).hexdigest()

    def create(self, name: str, data: bytes) -> None:
        self._objects[name] = data

    def version(self, name: str) -> str | None:
        return None
