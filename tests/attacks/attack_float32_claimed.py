"""Contractions with the errors of float32 arithmetic, each value that came out differently put into the log."""

from __future__ import annotations

from attacks.zoo import Attack, Lab, Mounted, Place
from support.cheats import ClaimsFloat32, steering

from vt_core.numerics import OpClass


def mount(lab: Lab) -> Mounted:
    return lab.cheat(steering(ClaimsFloat32, frozenset({OpClass.CONTRACTION}), 1.0, first=3))


ATTACK = Attack(
    name="float32-claimed",
    kind="compute",
    does="computes convolutions and products in float32 and puts every value that differs into the log",
    gain="saves the cost of float64 and uses the log as an excuse",
    caught_by="replay: interval rule for log entries",
    reason="log_implausible",
    place=Place(2, 3, "aten.convolution.default (conv1)"),
    mount=mount,
    needs_log=True,
)
