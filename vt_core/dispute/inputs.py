"""What the parties can agree on before training, so that a judge without code or data can rule on both.

* ``inputs``: for each step, the digests of its batch as the model gets it (rounded) and its learning rate. Only the
  data pipeline runs.
* ``program_0``, ``program_1``, ``program_later``: the records of a step without any value (``records.skeleton``): which
  operations run, on what, with which scalars. ``later`` holds for all steps from 2 on: scalars that follow the learning
  rate are marked so, others that vary are left open. There is no ``later`` if the sequence varies between steps, and
  none of the three if it may depend on values.

Each is an RFC 6962 tree, and the run spec holds ``SIZE:ROOT`` under these names. A party shows single leaves with
their paths, an :class:`Exhibit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vt_core.dispute import records as rec
from vt_core.dispute.recorder import record_step
from vt_core.engine.rounding import DryRounding
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, float_to_hex, loads_strict
from vt_core.evidence.merkle import Tree, leaf_hash, verify_inclusion
from vt_core.training.session import Session
from vt_core.training.spec import RunSpec
from vt_core.training.state import State

INPUTS, LATER = "inputs", "program_later"
MAX_EXHIBIT_BYTES = 64 << 20
OPEN = {"any": True}

# Operations by which values reach Python, and so the sequence of operations.
_READS = frozenset({"_local_scalar_dense", "is_nonzero", "nonzero", "nonzero_static", "equal", "masked_select",
                    "_unique2", "unique_dim", "unique_consecutive", "bincount", "allclose"})  # fmt: skip
# These read their step counter, and run the same operations whatever it is.
_COUNTING = frozenset({"Adam", "AdamW", "NAdam", "Adamax", "Adagrad"})


@dataclass(frozen=True)
class Shown:
    """One leaf of an agreed tree with its path."""

    leaf: bytes
    path: tuple[bytes, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"leaf": self.leaf.hex(), "path": [h.hex() for h in self.path]}

    @staticmethod
    def from_json(plain: Any) -> Shown | None:
        """Read what :meth:`to_json` gave. Raises ValueError, KeyError or TypeError."""
        if plain is None:
            return None
        if set(plain) != {"leaf", "path"}:
            raise ValueError("not a leaf with its path")
        return Shown(bytes.fromhex(plain["leaf"]), tuple(bytes.fromhex(h) for h in plain["path"]))


@dataclass(frozen=True)
class Exhibit:
    """Proofs for one record: what the agreed program has there, and the agreed inputs of the step."""

    program: Shown | None = None
    inputs: Shown | None = None

    def to_bytes(self) -> bytes:
        """Return canonical JSON."""
        return dumps({name: None if s is None else s.to_json() for name, s in self.__dict__.items()})


def parse_exhibit(data: bytes) -> Exhibit:
    """Read an exhibit. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "exhibit", MAX_EXHIBIT_BYTES)
    try:
        if set(plain) != {"program", "inputs"}:
            raise ValueError("it needs a program and inputs")
        return Exhibit(Shown.from_json(plain["program"]), Shown.from_json(plain["inputs"]))
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError("evidence_malformed", f"exhibit: {error}") from error


def program_name(step: int) -> str:
    """Return under which name the run spec has the program of ``step``."""
    return LATER if step > 1 else f"program_{step}"


@dataclass(frozen=True)
class AgreedFacts:
    """The leaves of all agreed trees, by name."""

    leaves: Mapping[str, list[bytes]]

    @cached_property
    def _trees(self) -> dict[str, Tree]:
        return {name: Tree([leaf_hash(leaf) for leaf in leaves]) for name, leaves in self.leaves.items()}

    def digests(self) -> dict[str, str]:
        """Return what goes into the run spec: name -> ``SIZE:ROOT``."""
        return {name: f"{len(self.leaves[name])}:{tree.root.hex()}" for name, tree in sorted(self._trees.items())}

    def exhibit(self, step: int, index: int) -> Exhibit:
        """Return the proofs for record ``index`` of ``step``."""
        return Exhibit(self._show(program_name(step), index), self._show(INPUTS, step - 1))

    def _show(self, name: str, index: int) -> Shown | None:
        if not 0 <= index < len(self.leaves.get(name, ())):
            return None
        return Shown(self.leaves[name][index], tuple(self._trees[name].path(index)))


def agreed_facts(session: Session) -> AgreedFacts:
    """Work out all facts of a run: runs its data pipeline once, and a few steps. Leaves the session after a step.

    Raises what training would raise for this job.
    """
    return AgreedFacts({INPUTS: inputs_leaves(session), **program_leaves(session)})


def learning_rate(session: Session, step: int) -> str | None:
    """Return the learning rate of ``step`` as hex of the float32 that the engine uses, None if the job sets none."""
    rate = session.job.learning_rate(step)
    return None if rate is None else float_to_hex(float(np.float32(rate)))


def inputs_leaves(session: Session) -> list[bytes]:
    """Return one leaf for each step from 1: step, digest of each tensor of its batch after rounding, learning rate."""
    rounding = DryRounding(session.grid, session.spec.policy, False)
    leaves = []
    for step in range(1, session.spec.steps + 1):
        rounding.begin_step(step)
        batch = session._batch(step, session.sampler.epoch(step), rounding)
        digests = {name: rec.value_digest(rec.canonical_value(tensor)) for name, tensor in batch.items()}
        leaves.append(dumps({"step": step, "batch": digests, "lr": learning_rate(session, step)}))
    return leaves


def program_leaves(session: Session) -> dict[str, list[bytes]]:
    """Return the leaves of the agreed programs, by name; those that cannot be agreed on are absent.

    ``later`` is compared between steps 2 and 3, the last one, and one with another learning rate. They run from the
    state after step 2: what runs does not depend on values.
    """
    last = session.spec.steps
    samples = sorted({s for s in (2, 3, last, _other_rate(session)) if 2 <= s <= last})
    state: State | None = None
    found: dict[int, list[Any]] = {}
    with session.open():
        for step in [s for s in (0, 1, *samples) if s <= last]:
            start = None if state is None else State(step - 1, state.tensors, state.scalars)
            claim = record_step(session, start, step)
            if step <= 2:
                state = session.capture(step)
            parsed = [rec.parse_record(data) for data in claim.records]
            if _depends_on_values(parsed, type(session.optimizer).__name__):
                return {}
            found[step] = [_leaf(record) for record in parsed]
    result = {f"program_{s}": [dumps(leaf) for leaf in found[s]] for s in (0, 1)}
    if samples:
        rates = [learning_rate(session, s) for s in samples]
        merged = [_merge(list(leaves), rates) for leaves in zip(*(found[s] for s in samples), strict=False)]
        if len({len(found[s]) for s in samples}) == 1 and None not in merged:
            result[LATER] = [dumps(leaf) for leaf in merged]
    return result


def agreed_program(spec: RunSpec, step: int, index: int, exhibits: Iterable[Exhibit]) -> Any:
    """Return the agreed program's leaf for a record, from the first exhibit that proves it; None if none does."""
    return _proven(spec, program_name(step), index, [e.program for e in exhibits])


def agreed_batch(spec: RunSpec, step: int, exhibits: Iterable[Exhibit]) -> Any:
    """Return the agreed inputs of ``step`` (``batch`` and ``lr``), None if no exhibit proves them."""
    return _proven(spec, INPUTS, step - 1, [e.inputs for e in exhibits])


def matches(leaf: Any, found: Any, inputs: Any) -> bool | None:
    """Tell whether a record's skeleton is that of the agreed ``leaf``; None if that depends on absent ``inputs``."""
    if leaf == OPEN or (isinstance(leaf, dict) and leaf.get("op") == rec.START):
        return True
    if isinstance(leaf, dict) and set(leaf) == {"lr"}:
        return None if inputs is None else found == _rate(inputs["lr"], leaf["lr"])
    if isinstance(leaf, dict) and isinstance(found, dict) and leaf.keys() == found.keys():
        parts = [matches(leaf[key], found[key], inputs) for key in leaf]
    elif isinstance(leaf, list) and isinstance(found, list) and len(leaf) == len(found):
        parts = [matches(a, b, inputs) for a, b in zip(leaf, found, strict=True)]
    else:
        return bool(leaf == found and type(leaf) is type(found))
    return False if False in parts else None if None in parts else True


def _proven(spec: RunSpec, name: str, index: int, shown: list[Shown | None]) -> Any:
    if name not in spec.agreed:
        return None
    size, _, root = spec.agreed[name].partition(":")
    for proof in shown:
        if proof is None:
            continue
        try:
            verify_inclusion(leaf_hash(proof.leaf), index, int(size), proof.path, bytes.fromhex(root))
            return loads_strict(proof.leaf, name, rec.MAX_RECORD_BYTES)
        except EvidenceError:
            continue  # a proof of something else proves nothing
    return None


def _leaf(record: dict[str, Any]) -> dict[str, Any]:
    # What a step starts from is a fact of its own: the state before it.
    return {"op": rec.START} if record["op"] == rec.START else rec.skeleton(record)


def _other_rate(session: Session) -> int:
    """Return the first step from 3 on with another learning rate than step 2, 0 if there is none."""
    if session.spec.steps < 3 or (first := learning_rate(session, 2)) is None:
        return 0
    return next((s for s in range(3, session.spec.steps + 1) if learning_rate(session, s) != first), 0)


def _rate(rate: str | None, sign: int) -> dict[str, str] | None:
    return None if rate is None else {"float": float_to_hex(sign * float.fromhex(rate))}


def _merge(parts: list[Any], rates: list[str | None]) -> Any:
    """Return what the parts (one for each sampled step) have in common; None if they differ in more than scalars."""
    for sign in (1, -1):
        if parts == [_rate(rate, sign) for rate in rates]:
            return {"lr": sign}
    first = parts[0]
    if not isinstance(first, (dict, list)):
        return first if all(part == first and type(part) is type(first) for part in parts) else None
    if all(isinstance(p, dict) and set(p) in ({"float"}, {"int"}) for p in parts):
        return first if all(p == first for p in parts) else OPEN
    if isinstance(first, dict) and all(isinstance(p, dict) and p.keys() == first.keys() for p in parts):
        merged = {key: _merge([p[key] for p in parts], rates) for key in first}
        return None if any(merged[k] is None and first[k] is not None for k in first) else merged
    if all(isinstance(p, list) and len(p) == len(first) for p in parts):
        items = [_merge(list(column), rates) for column in zip(*parts, strict=True)]
        return None if any(a is None and b is not None for a, b in zip(items, first, strict=True)) else items
    return None


def _depends_on_values(parsed: list[dict[str, Any]], optimizer: str) -> bool:
    """Tell whether values other than the optimizer's step counters may decide what runs."""
    clean: set[int] = set()  # records that depend on step counters and constants alone
    for index, record in enumerate(parsed):
        op, needed = record["op"], {source.record for source in rec.sources(record)}
        counter = op == rec.LOAD and record["name"].startswith("optim.") and record["name"].endswith(".step")
        known = counter or op == rec.CONST or ("args" in record and not record["place"][3] and needed <= clean)
        if known:
            clean.add(index)
        name = op.split(".")[1] if "." in op else ""
        if name in _READS and not (known and optimizer in _COUNTING):
            return True
    return False
