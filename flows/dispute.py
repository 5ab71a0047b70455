"""The dispute flow: one party of a dispute about a run, played against the store; a referee starts both and leads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.deployments import run_deployment

from flows.observing import observed
from tasks.dispute_roles import Terms, play_one
from tasks.runs import RunStore
from tasks.store import open_store
from vt_core.dispute.answers import Keys
from vt_core.dispute.messages import PARTIES, Role


@flow(name="dispute", flow_run_name="dispute-{role}-{run_id}", persist_result=False, validate_parameters=False)
def dispute(
    run_id: str,
    store: str,
    role: str,
    dispute: str,
    keys: dict[str, str],
    deadline: float = 600.0,
    segment: int | None = None,
    data: str | None = None,
    device: str = "cpu",
    limits: dict[str, Any] | None = None,
    workspace: str = ".vt",
    key: str | None = None,
) -> dict[str, Any]:
    """Play ``role`` (trainer or auditor) in a dispute that a referee leads, and return the referee's ruling.

    ``keys`` holds the public keys by role, as text. ``key`` names the *file* of this party's private key; by default
    the one that VT_KEY names, else ``keys/ROLE``. Raises SpecError, StoreError, and VtError if the referee is gone.
    """
    own = key or os.environ.get("VT_KEY") or f"keys/{role}"
    run = RunStore(open_store(store), run_id)
    terms = Terms(run, {**keys, role: own}, dispute, deadline, segment, data, device, Path(workspace), limits)
    with observed(run_id, f"dispute-{role}"), ExitStack() as stack:
        return dict(play_one(terms, role, stack).ruling)


def start_parties(terms: Terms, dispute: str, public: Keys, key_files: Mapping[str, str] | None = None) -> None:
    """Start the deployments ``dispute/trainer`` and ``dispute/auditor`` on their pools, and wait for neither.

    ``key_files`` names the files of their private keys on their own machines, where VT_KEY does not.
    """
    for role in PARTIES:
        run_deployment(
            f"dispute/{role}",
            parameters={
                "run_id": terms.run.run_id,
                "dispute": dispute,
                "keys": {str(r): k.text for r, k in public.items()},
                "deadline": terms.deadline,
                "key": (key_files or {}).get(role),
                "segment": terms.segment if role is Role.AUDITOR else None,
            },
            flow_run_name=f"dispute-{role}-{terms.run.run_id}",
            tags=[f"run:{terms.run.run_id}"],
            timeout=0,
            as_subflow=False,
        )
