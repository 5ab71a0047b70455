"""An auditor claims that an honest trainer's replay ends elsewhere: it computed one operation wrongly on purpose."""

from __future__ import annotations

from attacks.disputes import WrongSum, control, dispute, finding, wrong_run
from attacks.zoo import Attack, Lab, Mounted, Place, tree_digest

from vt_core.training.session import Session


def mount(lab: Lab) -> Mounted:
    played = dispute(lab.honest().folder, Session, WrongSum)
    claimed = wrong_run(lab)  # the run that the auditor says would have been right
    return Mounted(tree_digest(lab.honest().folder), tree_digest(claimed), control(lab), finding(played.ruling))


ATTACK = Attack(
    name="lying-auditor",
    kind="dispute",
    does="accuses an honest trainer and shows a replay with one wrong result",
    gain="need not pay, or harms a competitor",
    caught_by="judge: recomputes that one operation from the witness",
    reason="result_stands",
    place=Place(2, 3),
    mount=mount,
    result="the auditor loses",
)
