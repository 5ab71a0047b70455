"""Mutations of evidence: of bytes, of the tree of a JSON document, and of the two binary formats with their lengths.

All of them draw from a ``random.Random``, so that Hypothesis, the byte-range test and atheris can share them.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

from vt_core.engine.step_record import HEADER
from vt_core.evidence.canonical import dumps

Mutator = Callable[[random.Random, bytes], bytes]

HOSTILE: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 255, 1 << 31, (1 << 53) - 1, -(1 << 53) + 1, 0.5, 1e300, "", "x", "nan", "inf",
    "9" * 400, "9" * 5000, "-0", "../../etc/passwd", "a\x00b", "\x1b]0;title\x07", "<script>alert(1)</script>",
    "[bold red]x[/]", "[/]", "‮gnp", "́" * 50, "\U000e0041", "a" * 3000, "0x1.8p+1", "0x1.0000000000000p+0",
    "f" * 64, "F" * 64, "0" * 63, " " + "0" * 63, [], {}, [[]], [None] * 40, {"": None}, {"float": "nan"},
    {"float": "0x1.0000000000000p+0"}, {"int": "9" * 300}, {"int": "9" * 5000}, {"int": []}, {"__class__": 1},
)  # fmt: skip
_INTEGERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one to three changes of single bytes, of windows, or of its length."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 2, 8, 40)))
        match rng.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at:end] = bytes(end - at)
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
            case 4:
                changed[at:at] = changed[at:end]
            case 5:
                width = rng.choice((1, 2, 4, 8))
                value = rng.choice(_INTEGERS) & ((1 << 8 * width) - 1)
                changed[at : at + width] = value.to_bytes(width, rng.choice(("little", "big")))
            case _:
                changed = changed[:at]
    return bytes(changed)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Return the canonical form of the document with one to three changes of its tree; bytes if it is no JSON."""
    try:
        value = json.loads(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            value = mutate_value(rng, value)
        return dumps(value)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Return ``value`` (which may be changed in place) with one change somewhere in its tree."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, child in list(node.items()) if isinstance(node, dict) else enumerate(node):
            places.append((node, key))
            if isinstance(child, (dict, list)):
                collect(child)

    if isinstance(value, (dict, list)):
        collect(value)
    if not places or rng.random() < 0.03:
        return _other(rng, value)
    # Deep places are many: every second time one near the top, where the fields are.
    node, key = rng.choice(places[:40] if rng.random() < 0.5 else places)
    match rng.randrange(8):
        case 0 if isinstance(node, dict):
            del node[key]
        case 0:
            node.pop(key)
        case 1 if isinstance(node, dict):
            node[rng.choice(("", "extra", "format", key + "x", "\x1b[2J"))] = node[key]
        case 1:
            node.insert(key, node[key])
        case 2:
            other, other_key = rng.choice(places)
            node[key] = json.loads(json.dumps(other[other_key])) if _still_there(other, other_key) else None
        case 3:
            deep: Any = node[key]
            for _ in range(rng.choice((1, 60, 64))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            node[key] = deep
        case _:
            node[key] = _other(rng, node[key])
    return value


def _still_there(node: Any, key: Any) -> bool:
    return key in node if isinstance(node, dict) else key < len(node)


def _other(rng: random.Random, value: Any) -> Any:
    if type(value) is int and rng.random() < 0.6:
        return value + rng.choice((-1, 1, 2, 1000, 1 << 30, -value, -2 * value))
    if isinstance(value, str) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "0", "f", "\x00", "é", " ", value[at:])) + value[at + 1 :]
    if isinstance(value, list) and value and rng.random() < 0.5:
        return value[::-1] if rng.random() < 0.5 else value * 2
    return rng.choice(HOSTILE)


def mutate_record(rng: random.Random, data: bytes) -> bytes:
    """Return a record of the rounding log with changes behind its header, and a header that mostly fits them."""
    if len(data) < HEADER.size:
        return mutate_bytes(rng, data)
    step, _, sites, prints = HEADER.unpack_from(data)
    payload = mutate_bytes(rng, data[HEADER.size :]) if rng.random() < 0.8 else data[HEADER.size :]
    if rng.random() < 0.3:
        sites = rng.choice((0, 1, sites + 1, max(0, sites - 1), len(payload) // 3, (1 << 32) - 1))
    if rng.random() < 0.3:
        prints = rng.choice((0, prints + 1, max(0, prints - 1), len(payload) // 4, (1 << 32) - 1))
    length = len(payload) if rng.random() < 0.95 else rng.choice(_INTEGERS) & 0xFFFFFFFF
    sites, prints = min(sites, (1 << 32) - 1), min(prints, (1 << 32) - 1)
    return HEADER.pack(step if rng.random() < 0.9 else rng.choice(_INTEGERS), length, sites, prints) + payload


def mutate_log(rng: random.Random, data: bytes) -> bytes:
    """Return a log file with one of its records changed as by :func:`mutate_record`, or any of its bytes."""
    start = 14 + int.from_bytes(data[10:14], "little")
    records = []
    while start + HEADER.size <= len(data):
        end = start + HEADER.size + int(HEADER.unpack_from(data, start)[1])
        records.append((start, end))
        start = end
    if not records or rng.random() < 0.3:
        return mutate_bytes(rng, data)
    first, last = rng.choice(records)
    return data[:first] + mutate_record(rng, data[first:last]) + data[last:]


def mutate_witness(rng: random.Random, data: bytes) -> bytes:
    """Return a witness of a dispute with changes in its own header, or in the safetensors document behind it."""
    end = 4 + int.from_bytes(data[:4], "little")
    if end >= len(data) or rng.random() < 0.2:
        return mutate_bytes(rng, data)
    if rng.random() < 0.7:
        return data[:end] + mutate_safetensors(rng, data[end:])
    header = mutate_json(rng, data[4:end])
    return len(header).to_bytes(4, "little") + header + data[end:]


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Return a safetensors file with another header, whose length fits, or with other bytes."""
    if len(data) < 8 or rng.random() < 0.3:
        return mutate_bytes(rng, data)
    length = struct.unpack_from("<Q", data)[0]
    try:
        header = json.loads(data[8 : 8 + length])
        for _ in range(rng.choice((1, 1, 2))):
            header = mutate_value(rng, header)
        text = json.dumps(header).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)
    if rng.random() < 0.1:  # the same key twice
        text = text[:-1] + b"," + text[1:-1] + b"}"
    return struct.pack("<Q", len(text)) + text + data[8 + length :]
