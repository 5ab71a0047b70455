"""An attacker who changes any bytes of a run and then makes every digest on the way to the seal anew.

A flipped byte alone is found by a digest. So after each change the leaves, the records, the chain and the seal are made
to fit again as far as the changed bytes can be read at all: the parsers and the replay see the damage themselves.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.runs import artifacts, read_commitments, recommit

from vt_core.engine.rounding_log import LogReader, step_digest
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps
from vt_core.evidence.digests import sha256_bytes
from vt_core.evidence.merkle import root
from vt_core.evidence.records import Commitments
from vt_core.training.checkpoint import load_checkpoint
from vt_core.training.leaves import Leaf, decode_leaves, encode_leaves
from vt_core.training.segment import LEAVES, LOG
from vt_core.training.state import digest

Change = Callable[[random.Random, bytes, int, int], bytes]

# (data, first byte, byte after the last) -> changed data; each covers every byte of the window.
CHANGES: dict[str, Change] = {
    "flip": lambda rng, d, a, b: d[:a] + bytes(x ^ rng.randrange(1, 256) for x in d[a:b]) + d[b:],
    "one-bit": lambda rng, d, a, b: d[:a] + bytes(x ^ 1 << rng.randrange(8) for x in d[a:b]) + d[b:],
    "zero": lambda rng, d, a, b: d[:a] + bytes(b - a) + d[b:],
    "ones": lambda rng, d, a, b: d[:a] + b"\xff" * (b - a) + d[b:],
    "truncate": lambda rng, d, a, b: d[:a],
    "cut-out": lambda rng, d, a, b: d[:a] + d[b:],
    "insert": lambda rng, d, a, b: d[:a] + rng.randbytes(b - a) + d[a:],
    "duplicate": lambda rng, d, a, b: d[:b] + d[a:b] + d[b:],
    "digit": lambda rng, d, a, b: d[:a] + bytes(_digit(rng, x) for x in d[a:b]) + d[b:],
}


def _digit(rng: random.Random, byte: int) -> int:
    """Return another digit for a digit, another letter for a letter: the document stays well formed."""
    for alphabet in (b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
        if byte in alphabet:
            return rng.choice([x for x in alphabet if x != byte])
    return byte


def windows(size: int, count: int) -> list[tuple[int, int]]:
    """Return ``count`` windows (fewer for a short file) that together cover all of ``size`` bytes, each once."""
    count = max(1, min(count, size))
    return [(i * size // count, (i + 1) * size // count) for i in range(count)]


def forge_artifact(folder: Path, segment: int, name: str, data: bytes) -> None:
    """Put ``data`` in the place of an artifact and make leaves, records and seal (its final state too) fit it."""
    path = artifacts(folder, segment) / name
    path.write_bytes(data)
    leaves = _leaves(folder, segment)
    if leaves is not None and name != LEAVES:
        fitting = _with_log(leaves, artifacts(folder, segment) / LOG) if name == LOG else leaves
        fitting = fitting if name in (LOG, "metrics.json", "environment.json") else _with_state(fitting, path.parent)
        if fitting != leaves:
            (path.parent / LEAVES).write_bytes(encode_leaves(fitting))
        leaves = fitting
    last = segment == len(list((folder / "segments").iterdir())) - 1
    state = leaves[-1].state.hex() if last and leaves else None
    recommit(folder, None if leaves is None else {segment: leaves}, state)


def _leaves(folder: Path, segment: int) -> list[Leaf] | None:
    try:
        return decode_leaves((artifacts(folder, segment) / LEAVES).read_bytes())
    except EvidenceError:
        return None


def _with_log(leaves: Sequence[Leaf], log: Path) -> list[Leaf]:
    """Return the leaves with the digests of the records that can be found in ``log``, read or not."""
    try:
        with LogReader(log, 1 << 30) as reader:
            digests = {step: step_digest(reader.record(step)) for step in reader.steps}
    except EvidenceError:
        return list(leaves)
    fitting, step = [], min(digests, default=0)
    for leaf in leaves:
        covered = [digests[s] for s in range(step, leaf.step + 1) if s in digests] if leaf.step - step < 1000 else []
        fitting.append(dataclasses.replace(leaf, log=hashlib.sha256(b"".join(covered)).digest()))
        step = leaf.step + 1
    return fitting


def _with_state(leaves: Sequence[Leaf], directory: Path) -> list[Leaf]:
    try:
        found = digest(load_checkpoint(directory))
    except EvidenceError:
        return list(leaves)
    return [*leaves[:-1], dataclasses.replace(leaves[-1], state=found.root, tensors=found.tensors)]


def forge_commitment(folder: Path, name: str, data: bytes) -> Commitments:
    """Return the run's commitments with ``data`` as ``spec.json``, ``seal.json`` or ``segments/N``, made to fit.

    Records after a changed one name its digest, and the seal names all of them and the root over all leaves.
    """
    found = read_commitments(folder)
    if name == "seal.json":
        return dataclasses.replace(found, seal=data)
    records = [json.loads(record) for record in found.segments]
    spec = data if name == "spec.json" else found.spec
    assert spec is not None and found.seal is not None
    made: list[bytes] = []
    for index, record in enumerate(records):
        if name == f"segments/{index}":
            made.append(data)
            continue
        record |= {"spec": sha256_bytes(spec), "previous": sha256_bytes(made[-1]) if made else None}
        made.append(dumps(record))
    seal = json.loads(found.seal) | {"spec": sha256_bytes(spec), "segments": [sha256_bytes(record) for record in made]}
    leaves = [leaf for record in made for leaf in _committed_leaves(record)]
    seal |= {"leaf_count": len(leaves), "root": root(leaves).hex()}
    return dataclasses.replace(found, spec=spec, segments=made, seal=dumps(seal))


def _committed_leaves(record: bytes) -> list[bytes]:
    try:
        plain: Any = json.loads(record)
        return [bytes.fromhex(leaf) for leaf in plain["leaves"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
