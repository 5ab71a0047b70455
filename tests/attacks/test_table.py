"""The committed table says what the registry says, so it cannot go stale."""

from __future__ import annotations

from attacks.table import TABLE, render, row, rows_of
from attacks.zoo import load


def test_committed_table_is_the_registry() -> None:
    committed = [cells[:-1] for cells in rows_of(TABLE.read_text(encoding="utf-8"))]
    assert committed == [row(a, "")[:-1] for a in load()], "run: python -m tests.attacks.table"
    assert f"{len(committed)} attacks" in TABLE.read_text(encoding="utf-8")


def test_seconds_were_measured() -> None:
    seconds = [float(cells[-1]) for cells in rows_of(TABLE.read_text(encoding="utf-8"))]
    assert all(0 <= s < 60 for s in seconds) and sum(s > 0 for s in seconds) > len(seconds) / 2


def test_rows_survive_the_way_through_the_document() -> None:
    attacks = load()
    text = render(attacks, {a.name: 1.5 for a in attacks})
    assert rows_of(text) == [row(a, "1.5") for a in attacks]
