"""A trainer that computed one operation wrongly insists on its result to the end."""

from __future__ import annotations

from attacks.disputes import control, finding, wrong_dispute, wrong_run
from attacks.zoo import Attack, Lab, Mounted, Place, tree_digest


def mount(lab: Lab) -> Mounted:
    folder = wrong_run(lab)
    played = wrong_dispute(lab)
    return Mounted(tree_digest(lab.honest().folder), tree_digest(folder), control(lab), finding(played.ruling))


ATTACK = Attack(
    name="cheat-in-a-dispute",
    kind="dispute",
    does="doubles the result of one operation and defends it through every round",
    gain="hopes that a client without the model's code cannot tell who is right",
    caught_by="judge: recomputes that one operation from the witness",
    reason="result_mismatch",
    place=Place(2, 3),
    mount=mount,
    result="the trainer loses",
)
