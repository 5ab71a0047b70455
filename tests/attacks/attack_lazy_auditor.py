"""An auditor reads the published leaves and writes "verified" without having replayed a step."""

from __future__ import annotations

from attacks.verdicts import count, honest_verdict
from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes


def mount(lab: Lab) -> Mounted:
    honest = honest_verdict(lab, "0123456789abcdef")
    rows = [{**row, "proof_of_replay": None} for row in honest["segments"]]
    lazy = {**honest, "segments": rows, "nonce": "fedcba9876543210"}
    plain, attacked = sha256_bytes(dumps(honest)), sha256_bytes(dumps(lazy))
    return Mounted(plain, attacked, count(lab, honest), count(lab, lazy))


ATTACK = Attack(
    name="lazy-auditor",
    kind="audit",
    does="writes a verdict `verified` from the published evidence alone",
    gain="is paid for a replay that never happened; a colluding auditor covers a cheat",
    caught_by="coverage: no verdict counts without proofs of replay",
    reason="proof_of_replay_missing",
    place=Place(),
    mount=mount,
    result="inconclusive",
)
