"""A model that does with memory what models do, in one step: for tests of how values are followed."""

from __future__ import annotations

import torch
from support.runs import SMALL_DIGITS
from torch import nn

from vt_core.training.session import Session


class Awkward(nn.Module):
    """Writes through views, keeps plain tensors as attributes, expands, and reads parts of what it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(4, 10))
        self.plain = torch.arange(640, dtype=torch.get_default_dtype()).reshape(10, 64) / 640
        self.small = torch.tensor([0.5, 0.25])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.flatten(1)  # (B, 64)
        scores = self.inner(x) + x @ self.plain[:, :64].t() * self.small[0]
        with torch.no_grad():
            table = x.new_zeros(4, 10)
            table[1:3, ::2] += scores[:2, ::2].detach()
            table.t()[3].fill_(2.0)
            copy = table.clone()
            table[0] = 7.0
            copy[:, 1] = table[:, 0]
            self.seen[1:].copy_((table + copy)[:3])
        mask = torch.tril(torch.ones(10, 10)).bool()
        row = scores.unsqueeze(1).expand(-1, 10, -1).masked_fill(~mask, 0.0).sum(1)  # (B, 10)
        top = torch.topk(row, 3).indices
        return scores.scatter_add(1, top, row.gather(1, top))


def awkward(session: Session) -> None:
    """Give the session this model in place of its own."""
    session.job = SMALL_DIGITS.open()[0]
    session.job.build_model = Awkward  # type: ignore[method-assign, assignment]
