"""An audited checkpoint is changed afterwards in the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Finding, Lab, Mounted, Place
from support.runs import artifacts, audit, copy_run

from vt_core.training.checkpoint import TENSORS


def tamper(folder: Path) -> None:
    path = artifacts(folder, SEGMENT) / TENSORS
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x01
    path.write_bytes(bytes(data))


def mount(lab: Lab) -> Mounted:
    folder = copy_run(lab.honest().folder, lab.folder())
    before = Finding.of_verdict(audit(folder))  # the audit after which the attacker feels safe
    tamper(folder)
    return dataclasses.replace(lab.compare(folder), control=before)


ATTACK = Attack(
    name="artifact-changed-after-audit",
    kind="evidence",
    does="flips a bit of a weight in a checkpoint that was audited before",
    gain="delivers another model than the one with the verdict",
    caught_by="evidence: SHA-256 of every file, at each use",
    reason="artifact_corrupt",
    place=Place(2, None, "checkpoint.safetensors"),
    mount=mount,
)
