"""After training, the spec in the store is exchanged for one that asks for something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attacks.zoo import Attack, Lab, Mounted, Place

from vt_core.training.spec import parse_spec


def rewrite(folder: Path) -> None:
    spec = parse_spec((folder / "spec.json").read_bytes())
    (folder / "spec.json").write_bytes(dataclasses.replace(spec, args={**spec.args, "dropout": 0.5}).to_bytes())


def mount(lab: Lab) -> Mounted:
    return lab.forge(rewrite)


ATTACK = Attack(
    name="spec-changed-after-training",
    kind="code and spec",
    does="replaces the spec of a finished run",
    gain="makes the run look as if something else had been ordered",
    caught_by="chain: every record names the digest of the spec",
    reason="spec_mismatch",
    place=Place(0),
    mount=mount,
)
