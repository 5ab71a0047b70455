"""Half of a batch is used, and the records are those of the whole one."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from attacks.cheaper import Substitutes
from attacks.zoo import Attack, Lab, Mounted, Place


class HalfBatch(Substitutes):
    def part(self, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        return {name: array[: len(array) // 2] for name, array in arrays.items()}


def mount(lab: Lab) -> Mounted:
    return lab.cheat(HalfBatch)


ATTACK = Attack(
    name="half-batch",
    kind="compute",
    does="computes step 3 on half of its batch",
    gain="half of the work of a step",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.running_mean and others"),
    mount=mount,
)
