"""Records: what one step did, one canonical JSON object for each operation, so that two parties can compare steps.

A step's records, in this order (step 0, the initialisation, begins with its operations):

* ``vt::start``: step number, scalars and the root of each tensor of the state that the step starts from;
* ``vt::load``: one for each tensor of that state, and ``vt::batch``: one for each tensor of the batch;
* one for each ATen operation that computes (``aten.mm.default``), and ``vt::const`` before the first use of a tensor
  that comes from nowhere else;
* ``vt::commit``: one for each tensor of the state at the end, with its root as in the leaf, and one ``vt::state``.

Views and copies without arithmetic have no record: a tensor argument names the record and result it comes from and
the view (``views``) that it shows. So records do not depend on the memory layout. An operation that writes into a
tensor has the whole new value of that memory as a result. Arguments about the machine (device, layout, strides) are
left out. ``place`` counts: the first of the step's rounding sites that the record has and how many, the first random
draw and how many. ``decisions`` is the digest of the log's entries for these sites, absent if there are none.

The digest of a value is SHA-256 over its dtype, shape and row-major little-endian bytes, with -0 written as +0 and
every NaN as one: machines differ in both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vt_core.dispute.views import View, decode_view, encode_view
from vt_core.engine.step_record import StepLog, encode_step, step_digest
from vt_core.errors import EvidenceError
from vt_core.evidence.canonical import dumps, float_from_hex, float_to_hex, loads_strict
from vt_core.evidence.digests import is_sha256
from vt_core.numerics import SiteEntries

START, LOAD, BATCH, CONST, COMMIT, STATE = (f"vt::{n}" for n in ("start", "load", "batch", "const", "commit", "state"))
MAX_RECORD_BYTES = 16 << 20
INLINE = 64
"""Constants of at most so many elements stand in the record itself."""

_MACHINE = frozenset({"device", "layout", "pin_memory", "non_blocking", "memory_format"})

UNDEFINED = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operations whose result holds whatever was in memory; recorded as zeros."""

_FIELDS = {
    START: {"op", "step", "scalars", "tensors"},
    LOAD: {"op", "name", "results"},
    BATCH: {"op", "name", "results", "place"},
    CONST: {"op", "results", "place"},
    COMMIT: {"op", "name", "value", "results"},
    STATE: {"op", "step", "scalars", "count", "trace", "results"},
}
_OPERATION = {"op", "args", "out", "results", "place", "decisions"}


@dataclass(frozen=True)
class Source:
    """A tensor argument: result ``result`` of record ``record``, seen through ``view``.

    ``at`` is for an argument that is written: ``view`` gives the memory's value before, and ``at`` the part of it
    that the operation writes; None for one that is only read.
    """

    record: int
    result: int
    digest: str
    view: View
    at: View | None = None


@dataclass(frozen=True)
class Constant:
    """A tensor argument that stands in the record itself."""

    value: Tensor


def canonical_value(tensor: Tensor) -> Tensor:
    """Return ``tensor`` on the CPU, row-major, with +0 for -0 and one NaN; shares no memory if it is floating."""
    plain = tensor.detach().to("cpu").contiguous()
    if not plain.is_floating_point():
        return plain
    plain = plain + 0.0
    nan = torch.isnan(plain)
    return plain.masked_fill_(nan, torch.nan) if bool(nan.any()) else plain


def value_digest(value: Tensor) -> str:
    """Return the digest (hex) of a value in the form of :func:`canonical_value`."""
    header = dumps({"dtype": dtype_name(value.dtype), "shape": list(value.shape)})
    hasher = hashlib.sha256(len(header).to_bytes(4, "big") + header)
    if value.numel():
        hasher.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``float64`` for ``torch.float64``."""
    return str(dtype).removeprefix("torch.")


def describe(value: Any) -> str | None:
    """Return dtype and shape of a result, ``float64[2,3]``; None for None, the type's name for a Python value."""
    if isinstance(value, Tensor):
        return f"{dtype_name(value.dtype)}[{','.join(map(str, value.shape))}]"
    return None if value is None else type(value).__name__


def about_machine(operation: str, argument: str) -> bool:
    """Tell whether an argument is about the machine (device, memory layout) and not about values."""
    return argument in _MACHINE or (argument == "stride" and operation in ("empty_strided", "new_empty_strided"))


def encode_argument(value: Any, tensor: Callable[[Tensor], Any]) -> Any:
    """Return plain JSON of an operation's argument, exactly; ``tensor`` encodes tensors.

    Raises TypeError for a type that no operation of a training step takes.
    """
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else {"int": str(value)}
    if isinstance(value, float):
        return {"float": float_to_hex(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, (list, tuple)):
        return [encode_argument(item, tensor) for item in value]
    raise TypeError(f"an argument of type {type(value).__name__} has no form in a record")


def encode_source(source: Source) -> dict[str, Any]:
    """Return plain JSON of a tensor argument."""
    plain: dict[str, Any] = {"from": [source.record, source.result], "digest": source.digest}
    if source.view:
        plain["view"] = encode_view(source.view)
    if source.at is not None:
        plain["at"] = encode_view(source.at)
    return plain


def encode_constant(tensor: Tensor) -> dict[str, Any]:
    """Return plain JSON of a small tensor with its value."""
    value = canonical_value(tensor)
    raw = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    return {"const": raw.hex(), "dtype": dtype_name(value.dtype), "shape": list(value.shape)}


def decode_argument(plain: Any) -> Any:
    """Undo :func:`encode_argument`; tensors come back as :class:`Source` or :class:`Constant`.

    Raises ValueError, KeyError or TypeError for malformed data.
    """
    if isinstance(plain, list):
        return [decode_argument(item) for item in plain]
    if not isinstance(plain, dict):
        if type(plain) is float:
            raise ValueError("a float stands in hex form")
        return plain
    keys = set(plain)
    if keys == {"float"}:
        return float_from_hex(plain["float"], "an argument", finite=False)
    if keys == {"int"}:
        return int(plain["int"])
    if keys == {"dtype"}:
        return _dtype(plain["dtype"])
    if keys == {"const", "dtype", "shape"}:
        return Constant(_constant(plain))
    if not {"from", "digest"} <= keys <= {"from", "digest", "view", "at"} or not is_sha256(plain["digest"]):
        raise ValueError("an argument has no form that is known")
    record, result = plain["from"]
    if not all(type(n) is int and n >= 0 for n in (record, result)):
        raise ValueError("an origin is a record and a result")
    at = decode_view(plain["at"]) if "at" in plain else None
    return Source(record, result, plain["digest"], decode_view(plain.get("view", [])), at)


def decisions_digest(entries: Mapping[int, SiteEntries], first: int) -> str:
    """Return the digest (hex) of the log entries of an operation's sites, of which ``first`` is the first.

    It is that of a step's record in the rounding log with these entries alone, their sites counted from 0.
    """
    own = {site - first: found for site, found in entries.items()}
    return step_digest(encode_step(StepLog(0, own, np.empty(0, np.uint32)))).hex()


def parse_record(data: bytes) -> dict[str, Any]:
    """Read a record and check its form. Raises EvidenceError("evidence_malformed")."""
    plain = loads_strict(data, "record", MAX_RECORD_BYTES)
    try:
        if not isinstance(plain, dict) or not isinstance(plain.get("op"), str):
            raise ValueError("not an object with an operation")
        op = plain["op"]
        if op in _FIELDS:
            if set(plain) != _FIELDS[op]:
                raise ValueError(f"{op} needs exactly the fields {', '.join(sorted(_FIELDS[op]))}")
        elif op.startswith("vt::") or not {"op", "args", "out", "results", "place"} <= set(plain) <= _OPERATION:
            raise ValueError("not the fields of an operation")
        _check_fields(plain)
        list(sources(plain))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvidenceError("evidence_malformed", f"record: {error}") from error
    return plain


def sources(record: dict[str, Any]) -> Iterator[Source]:
    """Yield the tensor arguments of a parsed record that come from other records."""

    def walk(value: Any) -> Iterator[Source]:
        if isinstance(value, Source):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from walk(item)

    given = [record["value"]] if record["op"] == COMMIT else record.get("args", {}).values()
    for plain in given:
        yield from walk(decode_argument(plain))


def uses(record: dict[str, Any], index: int) -> list[int]:
    """Return the indexes of the records that record ``index`` comes from, ascending, each once.

    Raises EvidenceError("evidence_malformed") for a state of more tensors than there are records.
    """
    if record["op"] == STATE:
        if record["count"] > index:
            raise EvidenceError("evidence_malformed", f"{record['count']} tensors cannot be in {index} records")
        return list(range(max(-1, index - record["count"]), index))  # a claimed count may be anything
    found = {source.record for source in sources(record)}
    if record["op"] == LOAD:
        found.add(0)
    if index > 0:
        found.add(index - 1)
    return sorted(found)


def next_place(before: dict[str, Any] | None) -> tuple[int, int]:
    """Return the first site and the first draw of what follows the record ``before`` (None: nothing before)."""
    first, sites, draw, draws = (before or {}).get("place", (0, 0, 0, 0))
    return first + sites, draw + draws


def skeleton(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record without any value and without what follows from the operation: what the program decides.

    Constants are part of the program.
    """
    op = record["op"]
    if op == START:
        return {"op": op, "scalars": record["scalars"], "tensors": sorted(record["tensors"])}
    if op == STATE:
        return {key: record[key] for key in ("op", "scalars", "count", "trace")}
    dropped = {"place"} if op == CONST else {"place", "decisions", "results", "out"}
    return {key: _without_digests(value) for key, value in record.items() if key not in dropped}


def _without_digests(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_without_digests(item) for item in plain]
    if isinstance(plain, dict):
        return {k: _without_digests(v) for k, v in plain.items() if not (k == "digest" and "from" in plain)}
    return plain


def _check_fields(plain: dict[str, Any]) -> None:
    for name in ("name", "trace"):
        if name in plain and not isinstance(plain[name], str):
            raise ValueError(f"{name} must be a string")
    for name in ("step", "count"):
        if name in plain and (type(plain[name]) is not int or not 0 <= plain[name] < 1 << 53):
            raise ValueError(f"{name} must be a count")
    for name in ("tensors", "args"):
        if name in plain and not isinstance(plain[name], dict):
            raise ValueError(f"{name} must be an object")
    if not all(is_sha256(root) for root in plain.get("tensors", {}).values()):
        raise ValueError("tensors must map names to roots")
    results = plain.get("results", [])
    if not isinstance(results, list) or not all(r is None or isinstance(r, (str, dict, bool, int)) for r in results):
        raise ValueError("results must be a list of digests")
    if "out" in plain and (not isinstance(plain["out"], list) or len(plain["out"]) != len(results)):
        raise ValueError("out must describe each result")
    if plain["op"] in _FIELDS and "results" in plain and not (len(results) == 1 and is_sha256(results[0])):
        raise ValueError("one digest is needed")
    if "place" in plain:
        first, sites, draw, draws = plain["place"]
        if not all(type(n) is int and 0 <= n < 1 << 32 for n in (first, sites, draw, draws)):
            raise ValueError("a place is the first rounding site and their count, the first draw and their count")
    if "decisions" in plain and not is_sha256(plain["decisions"]):
        raise ValueError("decisions must be a digest")


def _dtype(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def _constant(plain: dict[str, Any]) -> Tensor:
    raw, shape, dtype = bytes.fromhex(plain["const"]), plain["shape"], _dtype(plain["dtype"])
    if not all(type(n) is int and 0 <= n <= INLINE for n in shape) or len(raw) > 16 * INLINE:
        raise ValueError("a constant is small")
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return tensor.reshape(shape)
