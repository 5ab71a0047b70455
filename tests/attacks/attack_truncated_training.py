"""Training ends after two of three segments and the run is sealed as if it were whole."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place


def mount(lab: Lab) -> Mounted:
    return lab.cheat(last=2)


ATTACK = Attack(
    name="truncated-training",
    kind="training",
    does="stops after step 4 of 6 and seals the run",
    gain="is paid for steps that nobody computed",
    caught_by="chain: the seal must cover every segment of the spec",
    reason="chain_broken",
    place=Place(part="seal.json"),
    mount=mount,
)
