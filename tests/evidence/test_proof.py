"""Proofs that a client can mail: made from a signed run, checked with a public key alone, and ways to forge one."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.signed import CLIENT, STRANGER, TRAINER, leaf, make_commitments, make_records, make_seal, make_spec

from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, loads_strict
from vt_core.evidence.proof import check_proof_file, make_proof

STEPS = 10
RECORDS = make_records("run", make_spec(STEPS), STEPS)
SEAL = make_seal("run", make_spec(STEPS), RECORDS)
RUN = make_commitments()


def proof(step: int, asked: int | None = None) -> bytes:
    return make_proof(step if asked is None else asked, leaf("run", step), step, RECORDS, SEAL, RUN.note or b"")


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_every_step_can_be_proven(step: int):
    found = check_proof_file(proof(step) + b"\n", TRAINER.verifier)
    assert (found.run_id, found.leaf_step, found.index, found.leaves) == ("run", step, step, STEPS + 1)
    assert found.state == leaf("run", step)["state"].hex() and found.root == SEAL.root
    assert found.signed_by == TRAINER.keyid


def test_a_leaf_after_the_step_counts():
    assert check_proof_file(proof(8, asked=7), TRAINER.verifier).leaf_step == 8


def test_the_maker_refuses_a_leaf_that_is_not_committed():
    with pytest.raises(EvidenceError) as found:
        make_proof(3, leaf("another run", 3), 3, RECORDS, SEAL, RUN.note or b"")
    assert found.value.reason == "evidence_malformed"


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    plain = loads_strict(proof(7), "it")
    change(plain)
    return dumps(plain)


OTHER = make_commitments("other")
FORGED: dict[str, tuple[bytes, str]] = {
    "another state": (changed(lambda p: p["leaf"].update(state="0" * 64)), "chain_broken"),
    "another step of the leaf": (changed(lambda p: p["leaf"].update(step=8)), "chain_broken"),
    "another place": (changed(lambda p: p.update(index=6)), "chain_broken"),
    "a place outside": (changed(lambda p: p.update(index=99)), "evidence_malformed"),
    "another path": (changed(lambda p: p["path"].__setitem__(0, "0" * 64)), "chain_broken"),
    "a shorter path": (changed(lambda p: p["path"].pop()), "evidence_malformed"),
    "a longer path": (changed(lambda p: p["path"].append("0" * 64)), "evidence_malformed"),
    "an earlier leaf for a later step": (changed(lambda p: p.update(step=8)), "chain_broken"),
    "another run's name": (changed(lambda p: p.update(run_id="other")), "chain_broken"),
    "another root in the seal": (changed(lambda p: p["seal"].update(root="0" * 64)), "chain_broken"),
    "another state in the seal": (changed(lambda p: p["seal"].update(state="0" * 64)), "chain_broken"),
    "another number of leaves": (changed(lambda p: p["seal"].update(leaf_count=12)), "chain_broken"),
    "another spec": (changed(lambda p: p["seal"].update(spec="0" * 64)), "chain_broken"),
    "the note of another run": (changed(lambda p: p.update(note=(OTHER.note or b"").decode())), "chain_broken"),
    "a note by a stranger": (
        changed(lambda p: p.update(note=(make_commitments(key=STRANGER).note or b"").decode())), "signature_invalid",
    ),
    "a note without a signature line": (changed(lambda p: p.update(note="verified\n")), "evidence_malformed"),
    "a note that is a number": (changed(lambda p: p.update(note=1)), "evidence_malformed"),
    "a leaf without work": (changed(lambda p: p["leaf"].pop("work")), "evidence_malformed"),
    "a leaf with more": (changed(lambda p: p["leaf"].update(more=1)), "evidence_malformed"),
    "a negative step": (changed(lambda p: p.update(step=-1)), "evidence_malformed"),
    "a step that is true": (changed(lambda p: p.update(step=True)), "evidence_malformed"),
    "a path that is text": (changed(lambda p: p.update(path="0" * 64)), "evidence_malformed"),
    "one more field": (changed(lambda p: p.update(more=1)), "evidence_malformed"),
    "another format": (changed(lambda p: p.update(format="vt-proof/2")), "evidence_malformed"),
    "not canonical": (proof(7).replace(b'{"format"', b'{ "format"'), "evidence_malformed"),
    "two newlines": (proof(7) + b"\n\n", "evidence_malformed"),
    "nothing": (b"", "evidence_malformed"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_forged_proofs(name: str):
    data, reason = FORGED[name]
    assert data != proof(7)
    with pytest.raises(EvidenceError) as found:
        check_proof_file(data, TRAINER.verifier)
    assert found.value.reason == reason


def test_the_key_of_another_party_does_not_do():
    with pytest.raises(EvidenceError) as found:
        check_proof_file(proof(7), CLIENT.verifier)
    assert found.value.reason == "signature_invalid"


PROOF = proof(7)


@settings(max_examples=300)
@given(st.integers(0, len(PROOF) - 1), st.integers(1, 255))
def test_no_changed_byte_passes_unseen(place: int, flip: int):
    """Only the step that was asked for may change: a leaf at or after it proves the earlier steps just as well."""
    data = bytearray(PROOF)
    data[place] ^= flip
    try:
        found = check_proof_file(bytes(data), TRAINER.verifier)
    except EvidenceError:
        return
    assert dataclasses.replace(found, step=7) == check_proof_file(PROOF, TRAINER.verifier) and found.step < 7


def test_checking_needs_neither_torch_nor_a_store():
    program = (
        "import sys; from vt_core.evidence.keys import read_verifier_key;"
        "from vt_core.evidence.proof import check_proof_file;"
        "check_proof_file(sys.stdin.buffer.read(), read_verifier_key(sys.argv[1]));"
        "print(sorted({'torch', 'numba', 'boto3', 'dvc', 'tasks', 'flows'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, TRAINER.verifier.text], input=PROOF, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"[]"
