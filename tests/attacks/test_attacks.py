"""Every attack of the zoo is one, is caught with the expected reason at the expected place, and honesty is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from attacks.zoo import VERIFIED, Attack, Lab, load, tree_digest
from support.forging import logs_of
from support.runs import SMALL_DIGITS, Trainer, audit, copy_run, unsaid

ZOO = load()
MOUNTED = [(how, a) for how in ("logged", "exact") for a in ZOO if how == "logged" or not a.needs_log]
"""On a run with a log for everything, and, but for what needs one, on a run with default parameters, without."""


@pytest.mark.parametrize(("how", "attack"), MOUNTED, ids=[f"{a.name}-{how}" for how, a in MOUNTED])
def test_attack(how: str, attack: Attack, labs: dict[str, Lab]) -> None:
    with unsaid(how):
        mounted = attack.mount(labs[how])
    assert mounted.attacked != mounted.honest, "without an effect it is no attack, and finding it proves nothing"
    assert mounted.control == VERIFIED, mounted.control.message
    assert mounted.found == attack.expected, mounted.found.message


def test_what_needs_a_log_finds_none_in_a_run_without(labs: dict[str, Lab]) -> None:
    sizes: dict[str, int] = {}
    for how, lab in labs.items():
        with unsaid(how):
            logs = logs_of(lab.honest().folder)
        sizes[how] = sum(len(site.positions) for log in logs for site in log.sites.values())
    assert sizes["logged"] and not sizes["exact"], sizes
    assert len([a for a in ZOO if a.needs_log]) < 8


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
