"""``vt gc``: show what could be thrown away, and do so with --yes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from flows.cli.output import out
from tasks.garbage import find_garbage, remove
from tasks.store import Store


def collect(store: Store, workspace: Path, abandoned: list[str], yes: bool) -> dict[str, Any]:
    """Return what could go, or what is gone if ``yes``, as plain JSON."""
    found = find_garbage(store, workspace, abandoned)
    if yes:
        found = remove(found, store, workspace)
    return {"store": store.url, "workspace": str(workspace), "removed": yes, **found.to_json()}


def print_garbage(plain: dict[str, Any]) -> None:
    """Print it for a person."""
    if plain["items"]:
        table = Table("kind", "MB", "name", "why")
        for item in plain["items"]:
            table.add_row(item["kind"], f"{item['size'] / 1e6:.2f}", Text(item["name"]), Text(item["why"]))
        out.print(table)
    for reason in plain["kept"]:
        out.print(f"kept: {reason}", markup=False, style="dim")
    total = f"{plain['bytes'] / 1e6:.2f} MB in {len(plain['items'])} items"
    if plain["removed"]:
        out.print(f"removed {total}")
    else:
        out.print(f"could go: {total}" + ("; nothing was deleted, --yes does it" if plain["items"] else ""))
