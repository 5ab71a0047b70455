"""Only the largest tenth of each gradient is used, as communication-saving training does."""

from __future__ import annotations

from attacks.cheaper import Substitutes
from attacks.zoo import Attack, Lab, Mounted, Place

KEPT = 0.1


class Sparsified(Substitutes):
    def spoil(self) -> None:
        for parameter in self.model.parameters():
            gradient = parameter.grad
            if gradient is not None:
                count = max(1, int(KEPT * gradient.numel()))
                least = gradient.abs().flatten().topk(count).values[-1]
                gradient[gradient.abs() < least] = 0.0


def mount(lab: Lab) -> Mounted:
    return lab.cheat(Sparsified)


ATTACK = Attack(
    name="sparsified-gradients",
    kind="compute",
    does="keeps a tenth of each gradient in step 3",
    gain="saves the exchange of gradients between its machines",
    caught_by="replay: state root of the leaf",
    reason="state_mismatch",
    place=Place(2, 3, "buffer.norm1.running_mean and others"),
    mount=mount,
)
