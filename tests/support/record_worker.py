"""A process of its own that records steps under a CPU profile with the trainer's logs.

``python -m support.record_worker FOLDER JOB``: reads ``FOLDER/JOB/STEP`` (checkpoint and log of the step before and of
the step), and prints one JSON object: ``hashes``, step -> leaf hashes of the records in hex, and ``refused``, the
operations whose honest result does not stand before a judge on this machine.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from support.worker import cases

from vt_core.dispute import records as rec
from vt_core.dispute.judge import Case, Finding, judge_record
from vt_core.dispute.recorder import StepClaim, record_step
from vt_core.engine.rounding_log import decode_step
from vt_core.evidence.canonical import dumps
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.training.state import digest

STEPS = (0, 1, 2)


def main() -> None:
    """Record every step and print the hashes."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    job, dataset, spec = cases(folder)[name].open()
    session = Session(spec, job, dataset)
    found, refused = {}, []
    with session.open():
        for step in STEPS:
            place = folder / name / str(step)
            state = load_checkpoint(place) if step else None
            claim = record_step(session, state, step, decode_step((place / "log").read_bytes()))
            found[step] = [h.hex() for h in claim.hashes()]
            refused += not_standing(spec, claim, None if state is None else digest(state).root)
    print(json.dumps({"hashes": found, "refused": refused}))


def not_standing(spec: RunSpec, claim: StepClaim, before: bytes | None) -> list[str]:
    """Judge the last record of each operation against a liar's here; return those that do not stand."""
    last = {rec.parse_record(r)["op"]: i for i, r in enumerate(claim.records)}
    chosen = [i for op, i in last.items() if not op.startswith("vt::")]
    bad = []
    for index, witness in zip(chosen, claim.witnesses(chosen), strict=True):
        honest = claim.records[index]
        record = json.loads(honest)
        lie = dumps({**record, "results": ["0" * 64] * len(record["results"])})
        log = hashlib.sha256(witness.log).digest()
        case = Case(spec, claim.step, index, honest, lie, lambda j: claim.records[j], before, log)
        ruling = judge_record(case, witness)
        if ruling is None or ruling.reason != Finding.RESULT_STANDS:
            bad.append(f"step {claim.step}: {record['op']}: {ruling}")
    return bad


if __name__ == "__main__":
    main()
