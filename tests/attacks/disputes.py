"""Disputes about small real runs: both parties in one process, led by a referee, checked again from the transcript."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from attacks.zoo import SEGMENT, VERIFIED, Finding, Lab, Place
from support.disputants import WrongSum
from support.disputes import PUBLIC, Meddle, Played, play_parties
from support.runs import SMALL_DIGITS, Trainer, artifacts, read_commitments

from vt_core.dispute.messages import OTHER, Role
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.party import Claim
from vt_core.dispute.referee import examine
from vt_core.dispute.rules import Fault, Ruling
from vt_core.dispute.run_claim import RunClaim
from vt_core.training.job import Dataset, Job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.verify.audit import Run, open_run

Maker = Callable[[RunSpec, Job, Dataset], Session]
Wrap = Callable[[Claim], Claim]


def wrong_run(lab: Lab) -> Path:
    """Return the run of a trainer that computed one operation wrongly."""
    if "wrong sum" not in lab.shared:
        lab.shared["wrong sum"] = Trainer(SMALL_DIGITS, lab.folder(), make=WrongSum).run().folder
    folder: Path = lab.shared["wrong sum"]
    return folder


def dispute(
    folder: Path,
    trainer: Maker,
    auditor: Maker,
    wrap: Mapping[Role, Wrap] | None = None,
    meddle: Meddle | None = None,
) -> Played:
    """Play a dispute about segment 2 of the run in ``folder``; the transcript is checked again by itself.

    ``wrap`` changes what a party claims, ``meddle`` what it sends.
    """
    run = open_run(read_commitments(folder))
    assert run.seal is not None
    rules, wrap = OpRules(run.spec), wrap or {}
    with ExitStack() as stack:
        own: Claim = _claim(folder, run, trainer, None, stack)
        other: Claim = _claim(folder, run, auditor, SEGMENT, stack)
        own = wrap.get(Role.TRAINER, _unchanged)(own)
        other = wrap.get(Role.AUDITOR, _unchanged)(other)
        played = play_parties(run.spec, run.seal, rules, own, other, meddle)
    found = examine(played.files, PUBLIC, rules)
    assert found.ruling == played.ruling and found.referee_agrees, "the transcript alone gives the same ruling"
    return played


def _unchanged(claim: Claim) -> Claim:
    return claim


def _claim(folder: Path, run: Run, make: Maker, own: int | None, stack: ExitStack) -> RunClaim:
    job, dataset, _ = SMALL_DIGITS.open()
    session = stack.enter_context(make(run.spec, job, dataset).open())
    return RunClaim(session, run.records, lambda i: artifacts(folder, i), own, with_log=make is Session)


def wrong_dispute(lab: Lab) -> Played:
    """Return the dispute in which that trainer answers every question and an honest auditor is right."""
    if "wrong dispute" not in lab.shared:
        lab.shared["wrong dispute"] = dispute(wrong_run(lab), WrongSum, Session)
    played: Played = lab.shared["wrong dispute"]
    return played


def finding(ruling: Ruling) -> Finding:
    """Return a ruling as a finding: who loses, why, and where; nothing is found where the parties do not differ."""
    if (ruling.winner, ruling.reason) == (Role.TRAINER, Fault.NO_DIFFERENCE):
        return VERIFIED
    result = "inconclusive" if ruling.winner is None else f"the {OTHER[ruling.winner]} loses"
    place = Place(ruling.place.get("segment"), ruling.place.get("step"))
    return Finding(result, str(ruling.reason), place, ruling.detail)


def control(lab: Lab) -> Finding:
    """Return how a dispute between an honest trainer and an honest auditor ends."""
    if "honest dispute" not in lab.shared:
        lab.shared["honest dispute"] = finding(dispute(lab.honest().folder, Session, Session).ruling)
    found: Finding = lab.shared["honest dispute"]
    return found


def transcript_digest(played: Played) -> str:
    """Return one SHA-256 over all files of a transcript."""
    hasher = hashlib.sha256()
    for name, data in sorted(played.files.files.items()):
        hasher.update(f"{name}\0{len(data)}\0".encode() + data)
    return hasher.hexdigest()
