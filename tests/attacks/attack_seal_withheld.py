"""The run is never closed, so that it can still be continued differently."""

from __future__ import annotations

from pathlib import Path

from attacks.zoo import Attack, Lab, Mounted, Place


def withhold(folder: Path) -> None:
    (folder / "seal.json").unlink()


def mount(lab: Lab) -> Mounted:
    return lab.forge(withhold)


ATTACK = Attack(
    name="seal-withheld",
    kind="evidence",
    does="publishes every segment and no seal",
    gain="asks for payment while it keeps the choice what the run's end will be",
    caught_by="verdict: nothing is verified without a seal",
    reason="not_sealed",
    place=Place(),
    mount=mount,
    result="inconclusive",
)
