"""The run spec: one byte string for one spec, clear errors for parameters, findings for malformed evidence."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import DIGITS, SMALL_DIGITS

from vt_core.errors import EvidenceError, SpecError
from vt_core.evidence.canonical import dumps
from vt_core.jobs.digits import DigitsJob
from vt_core.training.spec import RunSpec, build_spec, decode, encode, parse_spec, source_digests

JOB = DigitsJob()
DATASET = JOB.dataset(None)


def build(**train: Any) -> RunSpec:
    return build_spec(JOB, DATASET, DIGITS, {"width": 16, "lr": 0.1}, {"steps": 10, "segment_steps": 4, **train})


SPEC = build()


def test_round_trip() -> None:
    for spec in (SPEC, build(seed=2**64 - 1), build(compute_dtype="float32", grid="bfloat16", fingerprints=False)):
        data = spec.to_bytes()
        assert parse_spec(data) == spec
        assert parse_spec(data).to_bytes() == data and parse_spec(data).digest() == spec.digest()


def test_every_field_is_in_the_digest() -> None:
    other_policy = build(compute_dtype="float32", grid="bfloat16").policy
    changes: dict[str, Any] = {
        "reference": "a.b:C", "args": {"width": 17}, "sources": {}, "manifest": {"x": "y"}, "dataset_size": 1499,
        "batch_size": 63, "seed": 1, "steps": 11, "segment_steps": 5, "commit_interval": 2,
        "compute_dtype": "float32", "grid": "bfloat16", "policy": other_policy,
        "fingerprints": False, "promote": True, "engine": "0", "libraries": {},
        "contractions": "exact2", "functions": "logged", "agreed": {"program": "3:" + "0" * 64},
    }  # fmt: skip
    assert set(changes) == {f.name for f in dataclasses.fields(RunSpec)}
    digests = {dataclasses.replace(SPEC, **{name: value}).digest() for name, value in changes.items()}
    assert len(digests | {SPEC.digest()}) == len(changes) + 1


def test_location_and_device_are_not_in_it() -> None:
    assert build(device="cpu").digest() == build().digest()
    assert b"/" not in SPEC.to_bytes().replace(b"vt-run-spec/1", b"")


def test_segments_cover_all_steps_once() -> None:
    for steps, length in ((1, 1), (10, 4), (12, 4), (5, 7)):
        spec = build(steps=steps, segment_steps=length)
        ranges = [spec.segment_range(i) for i in range(spec.segment_count)]
        assert ranges[0] == (0, 0)
        assert [s for a, b in ranges[1:] for s in range(a, b + 1)] == list(range(1, steps + 1))
        for outside in (-1, spec.segment_count):
            with pytest.raises(SpecError):
                spec.segment_range(outside)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"sead": 1}, "sead"), ({"seed": "x"}, r"train\.seed"), ({"seed": 1.0}, r"train\.seed"),
        ({"seed": True}, r"train\.seed"), ({"seed": -1}, "seed"), ({"seed": 2**64}, "seed"),
        ({"steps": 0}, "steps"), ({"steps": None}, "steps and train.epochs"), ({"epochs": 2}, "exactly one"),
        ({"steps": None, "epochs": 0}, "steps"), ({"segment_steps": -1}, "segment_steps"),
        ({"commit_interval": 0}, "commit_interval"), ({"commit_interval": "1"}, r"train\.commit_interval"),
        ({"compute_dtype": "float16"}, "compute_dtype"), ({"grid": "float8"}, "float8"),
        ({"compute_dtype": "float32"}, "compute_dtype float32"), ({"fingerprints": 1}, r"train\.fingerprints"),
        ({"promote": "yes"}, r"train\.promote"), ({"policy": {"matmul": {}}}, "matmul|policy"),
        ({"policy": {"contraction": {"rtol_exp": None, "atol_exp": -1}}}, "atol_exp"),
        ({"policy": {"contraction": {"atol_exp": -44}}}, "contraction"), ({"policy": 3}, r"policy"),
        ({"steps": 10**9, "segment_steps": 1}, "segments"), ({"steps": 10**9, "segment_steps": 10**8}, "segment_steps"),
    ],
    ids=str,
)  # fmt: skip
def test_unusable_parameter_is_named(train: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build(**train)


def test_batch_larger_than_the_data() -> None:
    job = DigitsJob(batch_size=64)
    dataset = job.dataset(None)
    dataset.labels = dataset.labels[:63]
    with pytest.raises(SpecError, match="batch of 64"):
        build_spec(job, dataset, DIGITS, {}, {"steps": 1})


@pytest.mark.parametrize("argument", [object(), {1, 2}, b"x", {"float": 1}, {"int": "3"}, {"a": [1j]}])
def test_argument_that_json_cannot_hold(argument: Any) -> None:
    with pytest.raises(SpecError):
        build_spec(JOB, DATASET, DIGITS, {"x": argument}, {"steps": 1}).to_bytes()


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "float", "int"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_encode_has_an_inverse(value: Any) -> None:
    try:
        plain = encode(value)
    except SpecError:
        return  # the two reserved forms
    back = decode(json.loads(dumps(plain)))
    assert shown(back) == shown(value)


def shown(value: Any) -> str:
    """Tell -0.0 from 0.0 and True from 1, and NaN like NaN; the order of keys means nothing."""
    if isinstance(value, dict):
        return repr(sorted((k, shown(v)) for k, v in value.items()))
    return repr([shown(v) for v in value]) if isinstance(value, list) else repr(value)


def test_floats_keep_every_bit() -> None:
    for value in (0.1, -0.0, 5e-324, math.inf, 1 / 3):
        assert math.copysign(1, decode(encode(value))) == math.copysign(1, value)
        assert decode(encode(value)) == value


MALFORMED: list[tuple[str, Any]] = [
    ("format", "vt-run-spec/2"), ("format", None), ("reference", "no-colon"), ("reference", 3), ("reference", "a:b:c"),
    ("reference", "a b:C"), ("args", None), ("args", [1]), ("args", {"x": {"float": "1.0"}}),
    ("args", {"x": {"float": 1}}), ("args", {"x": {"int": "x"}}), ("args", {"x": {"int": "5"}}), ("sources", []),
    ("sources", {"a": 1}), ("manifest", "x"), ("manifest", None), ("libraries", {"torch": 2}), ("dataset_size", "5"),
    ("dataset_size", 0), ("dataset_size", 5.5), ("batch_size", 0), ("batch_size", True), ("batch_size", 10**6),
    ("seed", 7), ("seed", "07"), ("seed", "+7"), ("seed", " 7"), ("seed", "1_0"), ("seed", "x"), ("seed", "-1"),
    ("seed", str(2**64)), ("seed", None), ("steps", 0), ("steps", -3), ("steps", "3"), ("segment_steps", 0),
    ("segment_steps", 2**52), ("steps", 2**52), ("commit_interval", 0), ("compute_dtype", "float16"),
    ("compute_dtype", 3), ("compute_dtype", "float32"), ("grid", "float8"), ("grid", "float32-d017"), ("grid", None),
    ("policy", {}), ("policy", None), ("policy", {"contraction": 1}), ("fingerprints", 1), ("fingerprints", "true"),
    ("promote", None), ("engine", 1), ("more", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), MALFORMED, ids=lambda x: str(x)[:30])
def test_malformed_spec_is_a_finding(name: str, value: Any) -> None:
    plain = SPEC.to_json()
    if value is None:
        del plain[name]
    else:
        plain[name] = value
    with pytest.raises(EvidenceError) as caught:
        parse_spec(dumps(plain))
    assert caught.value.reason == "evidence_malformed"


def test_every_tolerance_is_checked() -> None:
    for name, entry in SPEC.policy.to_json().items():
        for changed in ({**entry, "atol_exp": -3}, {**entry, "atol_exp": "x"}, {"atol_exp": -44}, {**entry, "more": 1}):
            plain = SPEC.to_json()
            plain["policy"] = {**plain["policy"], name: changed}
            with pytest.raises(EvidenceError):
                parse_spec(dumps(plain))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b'{"format":"vt-run-spec/1"}', b"{" * 9999])
def test_bytes_that_are_no_spec(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        parse_spec(data)


def test_line_endings_do_not_change_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git may convert them on the other side."""

    class InFolder(DigitsJob):
        def sources(self) -> list[Path]:
            return [tmp_path / "job.py"]

    (tmp_path / "job.py").write_bytes(b"a = 1\nb = 2\n")
    unix = source_digests(InFolder())
    (tmp_path / "job.py").write_bytes(b"a = 1\r\nb = 2\r\n")
    assert source_digests(InFolder()) == unix
    (tmp_path / "job.py").write_bytes(b"a = 1\nb = 3\n")
    assert source_digests(InFolder()) != unix


def test_two_sources_of_one_name(tmp_path: Path) -> None:
    class TwoFiles(DigitsJob):
        def sources(self) -> list[Path]:
            return [tmp_path / "a" / "job.py", tmp_path / "b" / "job.py"]

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.py").write_text("same")
    assert list(source_digests(TwoFiles())) == ["job.py"]
    (tmp_path / "b" / "job.py").write_text("other")
    with pytest.raises(SpecError, match=r"job\.py"):
        source_digests(TwoFiles())


def test_a_policy_leaves_room_for_the_narrower_tolerance_of_short_sums() -> None:
    least = -26  # float32: tau is a normal number at the smallest scale, 2**-100

    def make(op_class: str, atol_exp: int) -> RunSpec:
        policy = {op_class: {"rtol_exp": None, "atol_exp": atol_exp}}
        train = {"compute_dtype": "float32", "grid": "bfloat16", "contractions": "logged", "policy": policy}
        return dataclasses.replace(SMALL_DIGITS, train={**SMALL_DIGITS.train, **train}).open()[2]

    assert make("reduction", least).policy and make("contraction", least + 3).policy
    for op_class, atol_exp in (("reduction", least - 1), ("contraction", least + 2)):
        with pytest.raises(SpecError, match=f"policy.{op_class}: atol_exp must be at least"):
            make(op_class, atol_exp)
