"""Two auditors are shown two histories of one run, both signed, both sealed, both without a fault."""

from __future__ import annotations

from attacks.signed import KNOWN, TRAINER, read, sign_run
from attacks.zoo import OTHER, Attack, Finding, Lab, Mounted, Place, commitments_digest

from vt_core.errors import EvidenceError
from vt_core.evidence.forks import check_fork, check_same_history, fork_proof


def mount(lab: Lab) -> Mounted:
    first, second = sign_run(lab.honest().folder), sign_run(lab.honest(OTHER).folder)
    assert first.note is not None and second.note is not None
    assert read(first, KNOWN).result == read(second, KNOWN).result == "verified", "each history alone is in order"
    control = read(first)
    check_same_history(first.note, first.note, TRAINER.verifier)
    try:
        check_same_history(first.note, second.note, TRAINER.verifier)
        found = control
    except EvidenceError as error:
        found = Finding.of_error(error)
        proof = fork_proof(first.note, second.note, TRAINER.verifier)
        assert proof is not None and check_fork(proof.to_bytes(), TRAINER.verifier) == proof, (
            "a third party can check it"
        )
    return Mounted(commitments_digest(first), commitments_digest(second), control, found)


ATTACK = Attack(
    name="chain-forked",
    kind="signatures",
    does="shows one sealed history to one auditor and another one to the next",
    gain="delivers a model that was never audited and points to the audit of the other one",
    caught_by="signatures: two checkpoints of one run by one key (`vt_core/evidence/forks.py`)",
    reason="chain_broken",
    place=Place(part="seal.note"),
    mount=mount,
)
