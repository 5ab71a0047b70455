"""Every attack of the zoo is one, is caught with the expected reason at the expected place, and honesty is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks.zoo import VERIFIED, Attack, Lab, load, tree_digest
from support.runs import SMALL_DIGITS, Trainer, audit, copy_run

ZOO = load()


@pytest.mark.parametrize("attack", ZOO, ids=[a.name for a in ZOO])
def test_attack(attack: Attack, lab: Lab) -> None:
    mounted = attack.mount(lab)
    assert mounted.attacked != mounted.honest, "without an effect it is no attack, and finding it proves nothing"
    assert mounted.control == VERIFIED, mounted.control.message
    assert mounted.found == attack.expected, mounted.found.message


def test_zoo_is_large_and_its_names_are_unique() -> None:
    assert len({a.name for a in ZOO}) == len(ZOO) >= 30
    assert all(a.does and a.gain and a.caught_by for a in ZOO)


def test_honest_runs_do_not_differ(lab: Lab, tmp_path: Path) -> None:
    """An attack is told by another final state or other bytes: two honest runs have the same."""
    again = Trainer(SMALL_DIGITS, tmp_path / "again").run()
    assert again.final == lab.honest().final
    copy = copy_run(lab.honest().folder, tmp_path / "copy")
    assert tree_digest(copy) == tree_digest(lab.honest().folder)
    assert audit(copy)["verdict"] == "verified"
