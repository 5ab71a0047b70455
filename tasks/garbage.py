"""What can be thrown away: workspaces whose work is done, and artifacts that no commitment names.

Evidence stays: an artifact goes only after all commitments of all runs were read and none of them names it. That is
decided for whole stores only where every run is sealed (or given up by name): a trainer that goes on may commit to
objects which an earlier, killed attempt has pushed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.dvc_objects import Pointer, check_listing, object_name, read_listing
from tasks.garbage_objects import Bin, open_bin
from tasks.in_use import claimed
from tasks.runs import RunStore, list_runs
from tasks.store import CommitmentStore, Store
from vt_core.errors import EvidenceError, StoreError
from vt_core.evidence.records import parse_seal, parse_segment


@dataclass(frozen=True)
class Item:
    """One thing that can go: ``kind`` is workspace, audit-workspace or artifact; ``size`` in bytes."""

    kind: str
    name: str
    size: int
    why: str


@dataclass
class Garbage:
    """What can go, and why other things stay."""

    items: list[Item] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "items": [dict(item.__dict__) for item in self.items],
            "bytes": sum(item.size for item in self.items),
            "kept": self.kept,
        }


def find_garbage(store: Store, workspace: Path, abandoned: Collection[str] = ()) -> Garbage:
    """Return what can go from ``workspace`` and ``store``; deletes nothing.

    ``abandoned``: runs that will never be continued though they are not sealed. What they have published stays.
    Raises StoreError if a part of the store cannot be read: then nothing can be known.
    """
    garbage = Garbage()
    runs = {run_id: _sealed(RunStore(store, run_id)) for run_id in list_runs(store)}
    _workspaces(garbage, store, workspace, runs)
    _audit_workspaces(garbage, workspace)
    unsealed = sorted(r for r, sealed in runs.items() if not sealed and r not in abandoned)
    if unsealed:
        garbage.kept.append(
            f"all artifacts: {', '.join(unsealed[:5])}{' ...' if len(unsealed) > 5 else ''} not sealed; a trainer that "
            "goes on may use what is there. Give up a run for good with --abandoned RUN"
        )
        return garbage
    remote = store.dvc_remote()
    try:
        named = named_objects(store, remote.objects())
    except EvidenceError as error:
        garbage.kept.append(f"all artifacts: which are evidence cannot be told, {error.reason}: {error}")
        return garbage
    objects = open_bin(remote)
    for name, size in sorted(objects.sizes().items()):
        if name in named:
            continue
        if objects.retained(name):
            garbage.kept.append(f"{name}: under retention")
            continue
        garbage.items.append(Item("artifact", name, size, "no commitment names it"))
    return garbage


def remove(garbage: Garbage, store: Store, workspace: Path) -> Garbage:
    """Remove what was found and return what is gone; what has come into use since then stays.

    The commitments are read again first: an artifact that one of them names by now is kept. Raises StoreError if the
    store refuses to delete, as one for evidence should: see docs/operations.md.
    """
    done = Garbage(kept=list(garbage.kept))
    for item in garbage.items:
        if item.kind == "artifact":
            continue
        with claimed(Path(item.name)) as free:
            if not free:
                done.kept.append(f"{item.name}: in use by now")
                continue
            shutil.rmtree(item.name)
        done.items.append(item)
    artifacts = [item for item in garbage.items if item.kind == "artifact"]
    if artifacts:
        named = named_objects(store, store.dvc_remote().objects())
        objects: Bin = open_bin(store.dvc_remote())
        for item in artifacts:
            if item.name in named:
                done.kept.append(f"{item.name}: a commitment names it by now")
                continue
            objects.delete(item.name)
            done.items.append(item)
    return done


def named_objects(store: Store, objects: CommitmentStore) -> set[str]:
    """Return the names of all objects that the commitments of any run name, listings and files.

    Raises EvidenceError if a record or a listing cannot be read: then what it names is not known.
    """
    named: set[str] = set()
    for run_id in list_runs(store):
        run = RunStore(store, run_id)
        commitments = run.commitments()
        listed = store.commitments.list(f"runs/{run_id}/segments/")
        if len(listed) != len(commitments.segments):  # records beyond a hole in the chain name artifacts too
            raise EvidenceError("chain_broken", f"run {run_id} has segment records that are not in order")
        for index, data in enumerate(commitments.segments):
            what = f"run {run_id} segment {index}"
            pointer = Pointer.from_json(dict(parse_segment(data, what).pointer))
            listing = read_listing(pointer, objects, what)
            named.add(object_name(pointer.md5))
            named |= {object_name(md5) for md5 in check_listing(listing, pointer, what).values()}
    return named


def _workspaces(garbage: Garbage, store: Store, workspace: Path, runs: dict[str, bool]) -> None:
    for folder in _folders(workspace / "train"):
        if not runs.get(folder.name):
            garbage.kept.append(f"{folder}: its run is not sealed in {store.url}")
        elif _remote_of(folder) != _remote_url(store):
            garbage.kept.append(f"{folder}: it belongs to a run of that name in another store")
        else:
            _add(garbage, "workspace", folder, "its run is sealed, and its artifacts are in the store")


def _audit_workspaces(garbage: Garbage, workspace: Path) -> None:
    for folder in _folders(workspace / "audit"):
        if folder.name.startswith("audit-"):
            _add(garbage, "audit-workspace", folder, "left by an audit that was killed (or run with --keep)")


def _add(garbage: Garbage, kind: str, folder: Path, why: str) -> None:
    with claimed(folder) as free:
        if free:
            garbage.items.append(Item(kind, str(folder), _size(folder), why))
        else:
            garbage.kept.append(f"{folder}: in use, or made by an older version")


def _sealed(run: RunStore) -> bool:
    try:
        return len(parse_seal(run.seal() or b"").segments) == len(run.published())
    except EvidenceError:
        return False


def _folders(parent: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from sorted(p for p in parent.iterdir() if p.is_dir() and not p.is_symlink())


def _remote_url(store: Store) -> str:
    remote = store.dvc_remote()
    return remote.url if remote.is_s3 else os.path.realpath(remote.url)


def _remote_of(folder: Path) -> str | None:
    """Return where a workspace pushes to: a link beside DVC's configuration, or the bucket named in it."""
    link = folder / ".dvc" / "store"
    if link.is_symlink():
        return os.path.realpath(link)
    with suppress(OSError):
        for line in (folder / ".dvc" / "config").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "url":
                return value.strip()
    return None


def _size(folder: Path) -> int:
    total = 0
    for base, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(base, name)).st_size
    return total


__all__ = ["Garbage", "Item", "StoreError", "find_garbage", "named_objects", "remove"]
