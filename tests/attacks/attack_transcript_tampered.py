"""Whoever hands on the transcript of a dispute leaves out one answer and puts the referee's ruling after it."""

from __future__ import annotations

from attacks.disputes import control, wrong_dispute, wrong_run
from attacks.zoo import Attack, Finding, Lab, Mounted, Place
from support.disputes import PUBLIC
from support.runs import read_commitments

from vt_core.dispute.messages import Role, file_name
from vt_core.dispute.op_rules import OpRules
from vt_core.dispute.referee import examine
from vt_core.dispute.transcript import MemoryFiles
from vt_core.errors import EvidenceError
from vt_core.evidence.digests import sha256_bytes
from vt_core.training.spec import parse_spec


def mount(lab: Lab) -> Mounted:
    folder = wrong_run(lab)
    files = wrong_dispute(lab).files.files
    name = file_name(2, Role.AUDITOR)
    attacked = {**files, name: files[file_name(1, Role.AUDITOR)]}
    spec = read_commitments(folder).spec
    assert spec is not None
    try:
        examine(MemoryFiles(attacked), PUBLIC, OpRules(parse_spec(spec)))
        found = control(lab)
    except EvidenceError as error:
        found = Finding.of_error(error)
    return Mounted(sha256_bytes(files[name]), sha256_bytes(attacked[name]), control(lab), found)


ATTACK = Attack(
    name="transcript-tampered",
    kind="dispute",
    does="puts an older answer of the auditor in the place of another one in the transcript",
    gain="shows third parties a dispute in which the honest side has no answer",
    caught_by="`vt referee`: the referee's signed messages name every answer's digest",
    reason="chain_broken",
    place=Place(),
    mount=mount,
)
