"""Several seeds are tried and the run of the best one is published under the agreed seed."""

from __future__ import annotations

import json

from attacks.zoo import Attack, Finding, Lab, Mounted, Place
from support.cheats import disguise
from support.runs import SMALL_DIGITS, Trainer, artifacts, audit

from vt_core.training.job import Dataset, Job
from vt_core.training.segment import METRICS
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec

TRIED = (8, 9, 10)


def train(lab: Lab, seed: int) -> tuple[float, Trainer]:
    """Return the last loss (nats) and the run of one seed."""

    def make(spec: RunSpec, job: Job, dataset: Dataset) -> Session:
        return Session(disguise(spec, seed=seed), job, dataset)

    run = Trainer(SMALL_DIGITS, lab.folder(), make=make).run()
    rows = json.loads((artifacts(run.folder, 3) / METRICS).read_bytes())["steps"]
    return float.fromhex(rows[-1]["loss"]), run


def mount(lab: Lab) -> Mounted:
    best = min((train(lab, seed) for seed in TRIED), key=lambda pair: pair[0])[1]
    return Mounted(lab.honest().final, best.final, lab.control(), Finding.of_verdict(audit(best.folder)))


ATTACK = Attack(
    name="other-seed",
    kind="training",
    does="tries three seeds and publishes the run with the lowest loss under the agreed seed",
    gain="a better figure in the report, or a seed whose data order favours the attacker",
    caught_by="replay: the first random draw of the initialisation",
    reason="state_mismatch",
    place=Place(0, 0, "aten.uniform_.default (init)"),
    mount=mount,
)
