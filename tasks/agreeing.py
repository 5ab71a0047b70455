"""The facts of a run that its parties agree on before training, beside its parameters: inputs and program of its steps.

With them in the signed spec, a judge who has neither code nor data can rule on a dispute about either
(``vt_core/dispute/inputs.py``).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tasks.params import Params, import_from
from vt_core.dispute.inputs import agreed_facts
from vt_core.errors import SpecError
from vt_core.training.job import Dataset, Job, load_job
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec, parse_spec


def with_facts(spec: RunSpec, job: Job, dataset: Dataset, device: str = "cpu") -> RunSpec:
    """Return the spec with the facts of its run: runs the data pipeline once over all steps, and four steps.

    Raises SpecError, and what training would raise for this job.
    """
    session = Session(spec, job, dataset, device)
    with session.open():
        return dataclasses.replace(spec, agreed=agreed_facts(session).digests())


def check_facts(document: bytes, own: Params | None) -> None:
    """Work out again the facts that a bare spec agrees on, from this party's own code and data.

    ``own`` says where the data lies. Raises SpecError if the spec agrees on others than come out here, or if the job
    cannot be loaded: nobody should sign what they have not checked.
    """
    spec = parse_spec(document)
    if not spec.agreed:
        return
    import_from(str(Path.cwd()) if own is None else own.folder)
    job = load_job(spec.reference, dict(spec.args))
    found = with_facts(dataclasses.replace(spec, agreed={}), job, job.dataset(own.location if own else None))
    differing = sorted(k for k in found.agreed.keys() | spec.agreed.keys() if found.agreed.get(k) != spec.agreed.get(k))
    if differing:
        raise SpecError(
            f"the spec agrees on other facts than come out here: {', '.join(differing)}. Do not sign it unless you "
            f"know why; --no-facts signs without this check."
        )
