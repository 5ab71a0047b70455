"""Pointers and listings come from the other party: every way to abuse them is refused, by name."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tasks.dvc_objects import MAX_FILES, Pointer, check_listing, object_name
from vt_core.errors import EvidenceError
from vt_core.evidence import canonical

MD5 = "0123456789abcdef0123456789abcdef"
GOOD: dict[str, Any] = {"md5": f"{MD5}.dir", "size": 12, "nfiles": 2, "path": "000001"}


def test_a_pointer_survives_canonical_json() -> None:
    pointer = Pointer.from_json(GOOD)
    data = canonical.dumps(pointer.to_json())
    assert Pointer.from_json(canonical.loads_strict(data, "pointer", 1000)) == pointer
    assert object_name(pointer.md5) == f"files/md5/01/{MD5[2:]}.dir"


BAD_POINTERS: dict[str, Any] = {
    "not-an-object": [GOOD],
    "missing-field": {k: v for k, v in GOOD.items() if k != "size"},
    "extra-field": GOOD | {"remote": "evil"},
    "file-not-directory": GOOD | {"md5": MD5},
    "short-md5": GOOD | {"md5": MD5[1:] + ".dir"},
    "upper-case-md5": GOOD | {"md5": MD5.upper() + ".dir"},
    "md5-with-path": GOOD | {"md5": "../" + MD5[3:] + ".dir"},
    "md5-not-text": GOOD | {"md5": 5},
    "negative-size": GOOD | {"size": -1},
    "size-as-text": GOOD | {"size": "12"},
    "size-as-bool": GOOD | {"size": True},
    "size-as-float": GOOD | {"size": 12.0},
    "no-files": GOOD | {"nfiles": 0},
    "too-many-files": GOOD | {"nfiles": MAX_FILES + 1},
    "path-with-slash": GOOD | {"path": "a/b"},
    "parent-path": GOOD | {"path": ".."},
    "path-with-newline": GOOD | {"path": "a\n"},
    "path-with-yaml": GOOD | {"path": "a: b"},
}


@pytest.mark.parametrize("name", BAD_POINTERS)
def test_a_bad_pointer_is_malformed(name: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        Pointer.from_json(BAD_POINTERS[name])
    assert caught.value.reason == "evidence_malformed"


def entry(path: Any, md5: Any = MD5) -> dict[str, Any]:
    return {"md5": md5, "relpath": path}


def pointer_to(data: bytes) -> Pointer:
    return Pointer(hashlib.md5(data).hexdigest() + ".dir", 12, 2, "x")


def test_a_good_listing() -> None:
    data = json.dumps([entry("model.safetensors"), entry("sub/log.bin", "f" * 32)]).encode()
    assert check_listing(data, pointer_to(data), "x") == {"model.safetensors": MD5, "sub/log.bin": "f" * 32}


BAD_LISTINGS: dict[str, Any] = {
    "parent": [entry("a"), entry("../b")],
    "parent-inside": [entry("a"), entry("b/../../c")],
    "absolute": [entry("a"), entry("/etc/cron.d/x")],
    "empty-path": [entry("a"), entry("")],
    "current-directory": [entry("a"), entry("./b")],
    "dvc-directory": [entry("a"), entry(".dvc/config")],
    "backslash": [entry("a"), entry("..\\b")],
    "nul": [entry("a"), entry("b\0")],
    "leading-dash-is-fine-but-space-is-not": [entry("a"), entry("b c")],
    "duplicate": [entry("a"), entry("a")],
    "file-below-file": [entry("a"), entry("a/b")],
    "md5-with-path": [entry("a"), entry("b", "../" + MD5[3:])],
    "md5-not-text": [entry("a"), entry("b", None)],
    "path-not-text": [entry("a"), entry(["b"])],
    "extra-field": [entry("a"), entry("b") | {"isexec": True}],
    "too-few": [entry("a")],
    "too-many": [entry("a"), entry("b"), entry("c")],
    "not-a-list": {"a": 1, "b": 2},
    "not-entries": ["a", "b"],
}


@pytest.mark.parametrize("name", BAD_LISTINGS)
def test_a_bad_listing_is_malformed(name: str) -> None:
    data = json.dumps(BAD_LISTINGS[name]).encode()
    with pytest.raises(EvidenceError) as caught:
        check_listing(data, pointer_to(data), "x")
    assert caught.value.reason == "evidence_malformed"


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b'[{"md5":'])
def test_a_listing_that_is_not_json_is_malformed(data: bytes) -> None:
    with pytest.raises(EvidenceError) as caught:
        check_listing(data, pointer_to(data), "x")
    assert caught.value.reason == "evidence_malformed"
