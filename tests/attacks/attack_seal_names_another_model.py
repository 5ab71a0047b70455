"""The seal names another final state than the one the chain ends in."""

from __future__ import annotations

from attacks.zoo import OTHER, Attack, Lab, Mounted, Place
from support.runs import recommit


def mount(lab: Lab) -> Mounted:
    other = lab.honest(OTHER).final
    return lab.forge(lambda folder: recommit(folder, state=other))


ATTACK = Attack(
    name="seal-names-another-model",
    kind="evidence",
    does="seals an honest chain with the state root of another model",
    gain="passes off a model of its own as the audited one",
    caught_by="verdict: the sealed state must be the last leaf's",
    reason="chain_broken",
    place=Place(3, 6),
    mount=mount,
)
