"""A forged checkpoint and a leaf that fits it; chain and seal are made anew."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from attacks.zoo import SEGMENT, Attack, Lab, Mounted, Place
from support.forging import commit, leaves_of
from support.runs import artifacts

from vt_core.training.checkpoint import load_checkpoint, save_checkpoint
from vt_core.training.state import State, digest


def forge(folder: Path) -> None:
    state = load_checkpoint(artifacts(folder, SEGMENT))
    bias = state.tensors["param.linear.bias"].clone()
    bias[0] += 0.25  # one class wins more often
    state = State(state.step, {**state.tensors, "param.linear.bias": bias}, state.scalars)
    save_checkpoint(state, artifacts(folder, SEGMENT))
    root = digest(state)
    *before, last = leaves_of(folder)
    commit(folder, [*before, dataclasses.replace(last, state=root.root, tensors=root.tensors)])


def mount(lab: Lab) -> Mounted:
    return lab.forge(forge)


ATTACK = Attack(
    name="leaf-forged",
    kind="evidence",
    does="changes a bias in a finished checkpoint and makes leaf, chain and seal anew",
    gain="a manipulated model under digests that all fit",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 4, "param.linear.bias"),
    mount=mount,
)
