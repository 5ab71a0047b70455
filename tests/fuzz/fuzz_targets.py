"""Every parser that reads what somebody else has written, with real documents to start from.

**A new parser registers here**: add a :class:`Target` to the list of ``_targets``. ``test_parsers.py`` fails for a
function of ``vt_core.evidence`` or ``vt_core.dispute`` that takes the bytes of a document and is in no target.

A target returns or raises :class:`EvidenceError`; anything else that leaves it is a fault.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_material import SEGMENT, Material, MemoryStore, material
from fuzz_mutate import (
    Mutator,
    mutate_bytes,
    mutate_json,
    mutate_log,
    mutate_record,
    mutate_safetensors,
    mutate_witness,
)

from tasks.coverage import run_coverage
from tasks.dvc_objects import Pointer, check_listing
from tasks.replays import parse_result
from tasks.report_facts import HIDDEN
from tasks.report_inputs import ReportInputs, read_metrics
from tasks.reporting import report_html
from tasks.runs import RunStore
from vt_core.dispute import inputs, judge, messages
from vt_core.dispute.witness import parse_witness
from vt_core.engine.rounding_log import LogReader
from vt_core.engine.step_record import decode_step, encode_step
from vt_core.errors import EvidenceError
from vt_core.evidence import agreement, attest, forks, judgement, model, note, outline, proof, records
from vt_core.evidence.canonical import dumps, float_from_hex, float_to_hex, loads_strict
from vt_core.evidence.signatures import PartyKeys, open_evidence
from vt_core.evidence.work import check_proof
from vt_core.training.checkpoint import SCALARS, TENSORS, load_checkpoint
from vt_core.training.environment import is_flat
from vt_core.training.leaves import decode_leaves, encode_leaves
from vt_core.training.spec import parse_spec
from vt_core.training.state import digest
from vt_core.verify.audit import open_run


@dataclass(frozen=True)
class Target:
    """``parse`` one document; ``seeds`` are real ones; ``covers``: the functions that this target is there for."""

    name: str
    parse: Callable[[bytes], object]
    seeds: Sequence[bytes]
    mutate: Mutator = mutate_json
    covers: Sequence[str] = field(default_factory=tuple)

    def mutated(self, seed: int) -> bytes:
        """Return one of the seeds with changes, all drawn from ``seed``."""
        rng = random.Random(seed)
        data = rng.choice(self.seeds)
        return self.mutate(rng, data) if rng.random() < 0.85 else mutate_bytes(rng, data)


@cache
def targets() -> dict[str, Target]:
    """Return all targets by name. Trains a small run first, which takes some seconds."""
    return {target.name: target for target in _targets(material())}


def _targets(m: Material) -> list[Target]:
    spec, seal, segment = m.spec, m.seal, m.segments[2]
    log, leaves = m.files["rounding.vtlog"], m.files["leaves.json"]
    keys = PartyKeys(m.trainer.verifier, m.client.verifier)
    return [
        Target("canonical", _canonical, [spec, seal, leaves, b"[1.5,-2e+30,null,true]"], covers=["loads_strict"]),
        Target("float", _float, [b"0x1.8000000000000p+1", b"nan", b"-inf", b"-0x0.0p+0"], mutate_bytes),
        Target("spec", parse_spec, [spec]),
        Target("outline", outline.parse_outline, [spec], covers=["parse_outline"]),
        Target("segment", lambda d: records.parse_segment(d, "s"), [segment], covers=["parse_segment"]),
        Target("seal", records.parse_seal, [seal], covers=["parse_seal"]),
        Target("chain-spec", lambda d: open_run(m.commitments(spec=d)), [spec]),
        Target(
            "chain-segment", lambda d: open_run(m.commitments(segments=[*m.segments[:2], d, m.segments[3]])), [segment]
        ),
        Target("chain-seal", lambda d: open_run(m.commitments(seal=d)), [seal]),
        Target("leaves", lambda d: encode_leaves(decode_leaves(d)), [leaves]),
        Target("record", _record, m.log_records, mutate_record),
        Target("log", _log, [log], mutate_log),
        Target("tensors", lambda d: _checkpoint(TENSORS, d, m), [m.files[TENSORS]], mutate_safetensors),
        Target("scalars", lambda d: _checkpoint(SCALARS, d, m), [m.files[SCALARS]]),
        Target("metrics", lambda d: read_metrics(d, 3, 4), [m.files["metrics.json"]]),
        Target("environment", _environment, [m.files["environment.json"]]),
        Target("replay-result", _replay_result, m.results),
        Target("report", _report, m.verdicts),
        Target("coverage", lambda d: _coverage(d, m), m.verdicts),
        Target("pointer", _pointer, [dumps(m.pointer)]),
        Target("listing", lambda d: _listing(d, m), [m.listing]),
        Target(
            "envelope", lambda d: attest.parse_envelope(d, agreement.SPEC_TYPE, "e"), [m.agreement],
            covers=["parse_envelope"],
        ),
        Target(
            "statement", lambda d: attest.parse_statement(d, model.MODEL_PREDICATE, "s"), [m.statement],
            covers=["parse_statement"],
        ),
        Target("agreement", agreement.parse_agreement, [m.agreement], covers=["parse_agreement"]),
        Target(
            "spec-file", lambda d: agreement.read_spec_file(d, "f"), [m.agreement, spec, spec + b"\n"],
            covers=["read_spec_file"],
        ),
        Target(
            "note", lambda d: note.parse_checkpoint(note.parse_note(d)), [m.note], _mutate_note, covers=["parse_note"]
        ),
        Target("model", model.parse_model, [m.model], covers=["parse_model"]),
        Target(
            "signatures-note", lambda d: open_evidence(m.commitments(note=d), keys), [m.note], _mutate_note
        ),
        Target("signatures-model", lambda d: open_evidence(m.commitments(model=d), keys), [m.model]),
        Target(
            "verdict-envelope", lambda d: judgement.open_verdict(d, m.verdict_name, m.verdicts[0]), [m.signed_verdict],
            covers=["open_verdict"],
        ),
        Target(
            "fork", lambda d: forks.check_fork(d, m.trainer.verifier), [m.fork],
            covers=["check_fork", "check_same_history", "fork_proof"],
        ),
        Target(
            "proof", lambda d: proof.check_proof_file(d, m.trainer.verifier), [m.proof], covers=["check_proof_file"]
        ),
        Target("proof-of-replay", lambda d: _work(d, m), m.works[SEGMENT : SEGMENT + 1]),
        Target(
            "dispute-message", lambda d: messages.open_message(d, m.dispute_keys, messages.Role.TRAINER), [m.message],
            covers=["open_message"],
        ),
        Target("dispute-payload", lambda d: _signed_message(d, m), [m.message_payload]),
        Target(
            "dispute-record", lambda d: judge.record_uses(d, 10), m.op_records, covers=["parse_record", "record_uses"]
        ),
        Target("dispute-step-end", judge.step_end, m.op_records[-1:], covers=["step_end"]),
        Target("dispute-witness", parse_witness, m.witnesses, mutate_witness, covers=["parse_witness"]),
        Target("dispute-exhibit", inputs.parse_exhibit, m.exhibits, covers=["parse_exhibit"]),
    ]  # fmt: skip


def _canonical(data: bytes) -> None:
    assert dumps(loads_strict(data, "document")) == data


def _float(data: bytes) -> None:
    text = data.decode("latin-1")
    assert float_to_hex(float_from_hex(text, "x", finite=False)) == text


def _record(data: bytes) -> None:
    assert encode_step(decode_step(data)) == data


def _log(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=_memory()) as file:
        file.write(data)
        file.flush()
        with LogReader(Path(file.name), 1 << 30) as reader:
            for _ in reader:
                pass


def _checkpoint(name: str, data: bytes, m: Material) -> None:
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for other in (TENSORS, SCALARS):
            (Path(folder) / other).write_bytes(data if other == name else m.files[other])
        state = load_checkpoint(Path(folder))
        digest(state)


def _environment(data: bytes) -> None:
    record = loads_strict(data, "environment.json", 1 << 20)
    if is_flat(record):  # then it may stand in a verdict, whatever it holds
        dumps({"verdict": {"trainer_environments": {"from_segment_0": record}}})


def _replay_result(data: bytes) -> None:
    replayed = parse_result(data)
    dumps(replayed.result.to_json())


_LEAKED = re.compile(r"<script|\son[a-z]+=[\"']|javascript:", re.IGNORECASE)
_UNSEEN = {chr(c) for c in HIDDEN} - {"\n"}


def _report(data: bytes) -> None:
    verdict = loads_strict(data, "verdict")
    if not isinstance(verdict, dict):
        raise EvidenceError("evidence_malformed", "a verdict is an object")
    page = report_html(verdict, ReportInputs("run", "file:///store", None))
    assert not _LEAKED.search(page), "markup from evidence came through"
    assert not _UNSEEN & set(page), "a character that nobody sees came through"


def _coverage(data: bytes, m: Material) -> None:
    name = "runs/run/20260101T000000Z-0123456789abcdef.json"
    store = MemoryStore({"runs/run/spec.json": m.spec, "runs/run/seal.json": m.seal}, {name: data})
    found = run_coverage(RunStore(store.store, "run"), ["runs/run/spec.json", "runs/run/seal.json"], [name])
    assert found.verdict in (None, "verified", "inconclusive", "rejected")


def _pointer(data: bytes) -> None:
    Pointer.from_json(loads_strict(data, "pointer"))


def _listing(data: bytes, m: Material) -> None:
    for path in check_listing(data, Pointer.from_json(m.pointer), "x"):
        assert Path("/base").joinpath(path).is_relative_to("/base") and ".." not in path.split("/")


def _work(data: bytes, m: Material) -> None:
    check_proof(loads_strict(data, "proof of replay"), 2, "0" * 32, m.root, 4, m.leaf_count)


def _signed_message(data: bytes, m: Material) -> None:
    """A party signs what it likes: this reaches what lies behind the signature."""
    envelope = attest.seal_payload(data, messages.PAYLOAD_TYPE, [m.trainer])
    messages.open_message(envelope, m.dispute_keys, messages.Role.TRAINER)


def _mutate_note(rng: random.Random, data: bytes) -> bytes:
    lines = data.decode("utf-8").split("\n")
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, rng.choice((lines[at], "", "— x AAAA", "9" * 30, json.dumps("‮"))))
        case 2:
            lines[at] = mutate_bytes(rng, lines[at].encode()).decode("utf-8", "replace")
        case _:
            lines[at], lines[0] = lines[0], lines[at]
    return "\n".join(lines).encode()


def _memory() -> str | None:
    """Return a folder in memory if there is one: a fuzzer writes a hundred thousand small files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def parsers_of_documents() -> list[tuple[str, str]]:
    """Return (module, function) of every public function of evidence and disputes that takes ``bytes`` first."""
    import importlib
    import inspect
    import pkgutil

    found = []
    for package in ("vt_core.evidence", "vt_core.dispute"):
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            module: Any = importlib.import_module(f"{package}.{info.name}")
            for name, function in vars(module).items():
                if not inspect.isfunction(function) or function.__module__ != module.__name__ or name.startswith("_"):
                    continue
                parameters = list(inspect.signature(function).parameters.values())
                if parameters and parameters[0].annotation == "bytes":
                    found.append((module.__name__, name))
    return found
