"""The spec names other source code than the auditor has; the evidence is honest for that code."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from attacks.zoo import Attack, Lab, Mounted, Place


def mount(lab: Lab) -> Mounted:
    def change(job: Any, dataset: Any, spec: Any) -> Any:
        other = hashlib.sha256(b"# with a line of the attacker's own").hexdigest()
        return job, dataset, dataclasses.replace(spec, sources={**spec.sources, "digits.py": other})

    return lab.disagree(change)


ATTACK = Attack(
    name="code-not-agreed",
    kind="code and spec",
    does="publishes a spec with the digest of code that was not agreed",
    gain="code with a hidden part, declared in a place that people do not read",
    caught_by="agreement: digests of the auditor's own copy of the code",
    reason="code_mismatch",
    place=Place(),
    mount=mount,
)
