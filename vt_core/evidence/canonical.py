"""Canonical JSON (RFC 8785): one byte string for one value, so that a digest of JSON means something.

Writers call :func:`dumps`. Readers call :func:`loads_strict`, which accepts a byte string only if it is
*exactly* what :func:`dumps` gives for the value it holds. That one comparison rejects duplicate keys,
insignificant whitespace, unsorted keys, a byte order mark and every second spelling of a number or a string.

Floats are kept as hex strings (:func:`float_to_hex`): RFC 8785 would write -0.0 as ``0`` and has no NaN.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import rfc8785

from vt_core.errors import EvidenceError

MAX_DEPTH = 64
"""Deepest nesting accepted. Fixed, so that the answer does not depend on the caller's stack depth."""

DEFAULT_MAX_BYTES = 64 * 1024 * 1024
"""Largest document accepted unless the caller says otherwise, in bytes."""

MAX_VALUES = 1 << 22
"""Most values in a document: an empty list takes 3 bytes there, and 20 times as much in memory."""


def dumps(obj: Any) -> bytes:
    """Return the RFC 8785 form of ``obj``: dict with string keys, list, str, bool, None, int below 2^53,
    float.

    Raises ``ValueError`` for anything else (NaN, infinities, larger integers, other types, lone surrogates,
    nesting deeper than ``MAX_DEPTH``): that is a mistake of the calling program, not a finding.
    """
    _check_depth(obj)
    try:
        return rfc8785.dumps(obj)
    except UnicodeEncodeError as error:
        raise ValueError(f"a string is not valid Unicode: {error}") from error


def loads_strict(data: bytes, what: str, max_bytes: int = DEFAULT_MAX_BYTES) -> Any:
    """Parse ``data``, which must be the canonical form of the value it holds, and return that value.

    ``what`` names the document in messages. An integral float comes back as an int, since RFC 8785 writes
    both alike. Raises :class:`EvidenceError` ``evidence_malformed`` for anything that is not canonical, for
    more than ``max_bytes`` bytes, and for more than ``MAX_VALUES`` commas and opening brackets (each value has
    one of them before it; those inside strings count too).
    """
    if len(data) > max_bytes:
        raise _malformed(what, f"it has {len(data)} bytes, the limit is {max_bytes}")
    if len(data) > MAX_VALUES and sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise _malformed(what, f"it may hold more than {MAX_VALUES} values")
    try:
        # json.loads(bytes) would guess UTF-16 and UTF-32 and skip a byte order mark: decode first.
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        canonical = dumps(value)
    except RecursionError:
        raise _malformed(what, f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        # UnicodeDecodeError, JSONDecodeError, over-long integers and rfc8785's own errors are all
        # ValueErrors.
        raise _malformed(what, str(error)[:200]) from error
    if canonical != data:
        place = next(
            (i for i, (a, b) in enumerate(zip(data, canonical, strict=False)) if a != b),
            min(len(data), len(canonical)),
        )
        raise _malformed(what, f"it is not in canonical form (RFC 8785), first difference at byte {place}", byte=place)
    return value


def float_to_hex(value: float) -> str:
    """Return ``value`` (float64) as a hex string: every bit is kept, but for a NaN's payload."""
    return float(value).hex()


def float_from_hex(text: object, what: str, finite: bool = True) -> float:
    """Return the float64 that :func:`float_to_hex` wrote as ``text``.

    Only the exact spelling of :func:`float_to_hex` is accepted, so a value has one form. Infinities and NaN
    are refused unless ``finite`` is False. Raises :class:`EvidenceError` ``evidence_malformed``.
    """
    if not isinstance(text, str):
        raise _malformed(what, f"expected a float as a hex string, found {type(text).__name__}")
    try:
        value = float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise _malformed(what, f"{text[:80]!r} is not a float in hex form") from error
    if value.hex() != text:
        raise _malformed(what, f"{text[:80]!r} is not the canonical hex form of {value!r}")
    if finite and not math.isfinite(value):
        raise _malformed(what, f"{text!r} is not finite")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _check_depth(obj: Any) -> None:
    """Raise ``RecursionError``'s harmless cousin, a ``ValueError``, before a recursive encoder meets deep
    data.
    """
    level: list[Any] = [obj]
    for _ in range(MAX_DEPTH + 1):
        # Only containers are carried on, so the cost is one visit for each element.
        level = [
            child
            for node in level
            if isinstance(node, (dict, list, tuple))
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list, tuple))
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def _malformed(what: str, why: str, **place: object) -> EvidenceError:
    return EvidenceError("evidence_malformed", f"{what} is malformed: {why}", document=what, **place)
