"""Tools of a forger: change evidence in a run's folder, then commit to it anew so that all digests fit again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.runs import artifacts, recommit

from vt_core.engine.rounding_log import LogReader, LogWriter, StepLog, step_digest
from vt_core.numerics import SiteEntries
from vt_core.training.leaves import Leaf, decode_leaves, encode_leaves
from vt_core.training.segment import LEAVES, LOG

SEGMENT = 2
"""The forged segment; of SMALL_DIGITS it holds steps 3 and 4."""


def leaves_of(folder: Path) -> list[Leaf]:
    """Return the leaves of the segment that is forged."""
    return decode_leaves((artifacts(folder, SEGMENT) / LEAVES).read_bytes())


def commit(folder: Path, leaves: list[Leaf]) -> None:
    """Publish other leaves for the forged segment, and all commitments anew."""
    (artifacts(folder, SEGMENT) / LEAVES).write_bytes(encode_leaves(leaves))
    recommit(folder, {SEGMENT: leaves})


def logs_of(folder: Path) -> list[StepLog]:
    """Return the decoded logs of the forged segment's steps."""
    with LogReader(artifacts(folder, SEGMENT) / LOG, 1 << 30) as reader:
        return list(reader)


def rewrite_log(folder: Path, change: Callable[[dict[int, StepLog]], Any], fix_leaves: bool = True) -> None:
    """Change the decoded log of the forged segment; commitments follow, with ``fix_leaves`` the leaves too."""
    path = artifacts(folder, SEGMENT) / LOG
    with LogReader(path, 1 << 30) as reader:
        header, logs = reader.header, {log.step: log for log in reader}
    change(logs)
    path.unlink()
    digests = {}
    with LogWriter(path, header) as writer:
        for step, log in sorted(logs.items()):
            digests[step] = step_digest(writer.append(log))
    leaves = leaves_of(folder)
    if fix_leaves:
        kept = [leaf for leaf in leaves if leaf.step in digests]
        leaves = [dataclasses.replace(x, log=hashlib.sha256(digests[x.step]).digest()) for x in kept]
    commit(folder, leaves)


def truncate_log(folder: Path) -> None:
    """Leave the last step out of the forged segment's log and commit to that."""
    path = artifacts(folder, SEGMENT) / LOG
    with LogReader(path, 1 << 30) as reader:
        header, first = reader.header, reader.read_step(3)
    path.unlink()
    with LogWriter(path, header) as writer:
        writer.append(first)
    recommit(folder)


def parity_site(log: StepLog) -> tuple[int, SiteEntries]:
    """Return the site with the most entries among those that have parity entries only."""
    number = max((n for n, s in log.sites.items() if not s.full_index.size), key=lambda n: log.sites[n].positions.size)
    return number, log.sites[number]
