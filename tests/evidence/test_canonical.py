"""Canonical JSON: one form for one value, and every other form is refused with a typed error."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vt_core.errors import EvidenceError
from vt_core.evidence import canonical

LIMIT = 1 << 20

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
@settings(max_examples=150, deadline=None)
def test_round_trip(value: Any) -> None:
    assert canonical.loads_strict(canonical.dumps(value), "value", LIMIT) == value


def test_rfc_8785_example() -> None:
    """Section 3.2.2 and 3.2.3 of the RFC: numbers, string escapes and key order."""
    data = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert (
        canonical.dumps(data)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


NOT_CANONICAL: dict[str, bytes] = {
    "duplicate-key": b'{"a":1,"a":1}',
    "duplicate-key-other-value": b'{"a":2,"a":1}',
    "unsorted-keys": b'{"b":1,"a":2}',
    "space-after-colon": b'{"a": 1}',
    "leading-space": b" 1",
    "trailing-newline": b"1\n",
    "trailing-garbage": b"{}{}",
    "empty": b"",
    "truncated": b'{"a":1',
    "nan": b"NaN",
    "infinity": b'{"a":-Infinity}',
    "overflowing-float": b"1e400",
    "minus-zero": b"-0",
    "minus-zero-float": b"-0.0",
    "float-with-zero": b"1.0",
    "exponent-form": b"1e1",
    "upper-case-exponent": b"1E+30",
    "too-many-digits": b"0.10000000000000000001",
    "leading-zero": b"01",
    "plus-sign": b"+1",
    "integer-above-2-53": b"9007199254740993",
    "integer-of-5000-digits": b"1" * 5000,
    "escaped-slash": b'"\\/"',
    "escaped-letter": b'"\\u0061"',
    "upper-case-escape": b'"\\u000F"',
    "raw-control-character": b'"\x01"',
    "lone-surrogate": b'"\\ud800"',
    "invalid-utf-8": b'"\xff"',
    "overlong-utf-8": b'"\xc0\x80"',
    "encoded-surrogate": b'"\xed\xa0\x80"',
    "byte-order-mark": b"\xef\xbb\xbf1",
    "utf-16": '{"a":1}'.encode("utf-16"),
    "utf-16-without-mark": b"1\x002\x00",
    "comment": b"1//",
    "single-quotes": b"'a'",
    "deep-lists": b"[" * 100_000 + b"]" * 100_000,
    "deep-objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep-unclosed": b"[" * 200_000,
    "just-too-deep": b"[" * (canonical.MAX_DEPTH + 2) + b"]" * (canonical.MAX_DEPTH + 2),
}


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_anything_else_is_malformed(name: str) -> None:
    with pytest.raises(EvidenceError, match=r"seg\.json") as caught:
        canonical.loads_strict(NOT_CANONICAL[name], "seg.json", LIMIT)
    assert caught.value.reason == "evidence_malformed"
    assert caught.value.place["document"] == "seg.json"


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_random_bytes_never_leak_another_error(data: bytes) -> None:
    try:
        value = canonical.loads_strict(data, "noise", LIMIT)
    except EvidenceError as error:
        assert error.reason == "evidence_malformed"
    else:
        assert canonical.dumps(value) == data


def test_size_limit_is_exact() -> None:
    data = canonical.dumps("x" * 98)
    assert canonical.loads_strict(data, "text", 100) == "x" * 98
    with pytest.raises(EvidenceError, match="100 bytes, the limit is 99"):
        canonical.loads_strict(data, "text", 99)


def test_deep_but_allowed_nesting_is_read() -> None:
    depth = canonical.MAX_DEPTH
    data = b"[" * depth + b"]" * depth
    assert canonical.dumps(canonical.loads_strict(data, "deep", LIMIT)) == data


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, -(2**53), {1: "a"}, b"bytes", {"a": object()}, "\ud800"])
def test_dumps_refuses_what_json_cannot_hold(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical.dumps(value)


def test_dumps_refuses_deep_nesting_and_cycles() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="nested deeper"):
        canonical.dumps(cycle)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_every_bit(value: float) -> None:
    back = canonical.float_from_hex(canonical.float_to_hex(value), "x")
    assert back == value
    assert math.copysign(1.0, back) == math.copysign(1.0, value)


def test_non_finite_floats_only_on_request() -> None:
    for value in (math.inf, -math.inf, math.nan):
        text = canonical.float_to_hex(value)
        with pytest.raises(EvidenceError, match="not finite"):
            canonical.float_from_hex(text, "tolerance")
        assert canonical.float_from_hex(text, "loss", finite=False).hex() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.5",
        "0X1.8p+1",
        " 0x1.8000000000000p+1",
        "0x1.8p+1",
        "+0x1.8000000000000p+1",
        "0x1p99999",
        "Infinity",
        "zero",
        1.5,
        None,
        ["0x0.0p+0"],
        b"0x0.0p+0",
    ],
)
def test_other_spellings_of_a_float_are_malformed(text: object) -> None:
    with pytest.raises(EvidenceError) as caught:
        canonical.float_from_hex(text, "learning rate", finite=False)
    assert caught.value.reason == "evidence_malformed"
