"""``python -m tests.attacks.table`` mounts every attack and writes ``docs/attacks.md``; run it in the repository.

It refuses to write a table in which an attack is not caught as expected.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS))
from attacks.zoo import KINDS, VERIFIED, Attack, Lab, load  # noqa: E402

TABLE = TESTS.parent / "docs" / "attacks.md"
COLUMNS = ("attack", "the attacker", "gains", "caught by", "reason", "found at", "CPU s")
HEAD = """# The attack zoo

{count} attacks, each mounted on a small real run by a file of its own, `tests/attacks/attack_NAME.py`. For each one the
tests show that it *is* an attack (the run ends in another state, or other bytes are published), that the honest
counterpart is verified, and that the attack is found with exactly this reason code and at exactly this place. All
verdicts are `rejected`, except where the reason is marked *inconclusive* or belongs to the dispute game.

All but the {logs} that lie in the log are mounted twice: on a run with a log for everything there may be one for, and
on one with default parameters, whose log is empty.

Steps 3 and 4 are segment 2; segment 0 is the initialisation. Seconds are CPU time and include training the attacked run
and auditing all of it: {total:.0f} s together, on {machine}. What honest runs get is in
`tests/verify/test_profiles.py` and `tests/attacks/test_honest.py`.

**This file is made by `python -m tests.attacks.table`; do not edit it.**
"""


def row(attack: Attack, seconds: str) -> tuple[str, ...]:
    """Return the cells of one attack."""
    reason = f"`{attack.reason}`" + ("" if attack.result == "rejected" else f" ({attack.result})")
    return (attack.name, attack.does, attack.gain, attack.caught_by, reason, str(attack.place), seconds)


def render(attacks: Sequence[Attack], seconds: Mapping[str, float]) -> str:
    """Return the document. ``seconds``: CPU time of each attack by name."""
    machine = f"one {platform.machine()} machine, Python {platform.python_version()}"
    logs = sum(a.needs_log for a in attacks)
    lines = [HEAD.format(count=len(attacks), logs=logs, machine=machine, total=sum(seconds.values()))]
    for kind in KINDS:
        rows = [row(a, f"{seconds[a.name]:.1f}") for a in attacks if a.kind == kind]
        if rows:
            lines += [f"## {kind.capitalize()}\n", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
            lines += [*map(_line, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def rows_of(text: str) -> list[tuple[str, ...]]:
    """Return the cells of all table rows in a document, headings left out."""
    cells = [tuple(c.strip() for c in line.strip("|").split("|")) for line in text.splitlines() if line.startswith("|")]
    return [c for c in cells if c != COLUMNS and set("".join(c)) != {"-"}]


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended (DVC): other load does not count."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _line(cells: Sequence[str]) -> str:
    assert not any("|" in cell for cell in cells)
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    """Run everything; return 1 and write nothing if an attack is not caught as expected."""
    attacks, seconds, wrong = load(), {}, 0
    torch.set_num_threads(1)  # as the tests do
    with tempfile.TemporaryDirectory(prefix="vt-zoo-") as folder:
        lab = Lab(Path(folder))
        lab.control()  # the shared honest run and its audit are nobody's time
        for attack in attacks:
            started = _cpu_seconds()
            mounted = attack.mount(lab)
            seconds[attack.name] = _cpu_seconds() - started
            good = mounted.found == attack.expected and mounted.control == VERIFIED
            good = good and mounted.attacked != mounted.honest
            wrong += not good
            verdict = "caught" if good else f"NOT as expected: {mounted.found} where {attack.expected} is right"
            print(f"{attack.name:32} {seconds[attack.name]:6.1f} s  {verdict}", flush=True)
    if wrong:
        print(f"{wrong} attacks are not caught as expected: {TABLE.name} stays as it is", file=sys.stderr)
        return 1
    TABLE.write_text(render(attacks, seconds), encoding="utf-8")
    print(f"{len(attacks)} attacks in {sum(seconds.values()):.0f} s of CPU time: {TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
