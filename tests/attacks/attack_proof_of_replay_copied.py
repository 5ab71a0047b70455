"""An auditor copies the proofs of replay from the verdict of another one."""

from __future__ import annotations

from attacks.verdicts import count, honest_verdict
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes


def mount(lab: Lab) -> Mounted:
    honest = honest_verdict(lab, "0123456789abcdef")
    copied = {**honest, "nonce": "fedcba9876543210"}  # the client drew another nonce for this auditor
    plain, attacked = sha256_bytes(dumps(honest)), sha256_bytes(dumps(copied))
    return Mounted(plain, attacked, count(lab, honest), count(lab, copied))


ATTACK = Attack(
    name="proof-of-replay-copied",
    kind="audit",
    does="copies the proofs of replay of another auditor's verdict",
    gain="two independent audits for the price of one",
    caught_by="coverage: the client's nonce draws which values must be opened",
    reason="proof_of_replay_missing",
    place=Place(),
    mount=mount,
    result="inconclusive",
)
