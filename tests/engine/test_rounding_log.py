"""The rounding log: round trips, size, and hostile bytes."""

from __future__ import annotations

import hashlib
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vt_core.engine import rice, step_record
from vt_core.engine.rounding_log import (
    LogReader,
    LogWriter,
    StepLog,
    decode_step,
    encode_step,
    entropy_floor_bits,
    log_sizes,
    step_digest,
)
from vt_core.engine.step_record import HEADER
from vt_core.errors import EvidenceError, SpecError, StoreError
from vt_core.numerics import SiteEntries

NO_PRINTS = np.empty(0, np.uint32)


def site(rng: np.random.Generator, numel: int, count: int, full: int = 0, scale: int = -3) -> SiteEntries:
    positions = np.sort(rng.choice(numel, count, replace=False)).astype(np.int64)
    full_index = np.sort(rng.choice(count, full, replace=False)).astype(np.int64)
    parity = rng.integers(0, 2, count).astype(np.uint8)
    parity[full_index] = 0
    return SiteEntries(scale, positions, parity, full_index, rng.standard_normal(full).astype(np.float32))


def example_log(seed: int = 0) -> StepLog:
    rng = np.random.default_rng(seed)
    sites = {
        0: site(rng, 1000, 7, 2),
        3: SiteEntries.empty(-960),
        4: site(rng, 50, 50),
        90: site(rng, 1 << 30, 300, 300, scale=127),
    }
    return StepLog(seed + 5, sites, rng.integers(0, 2**32, 91, dtype=np.uint64).astype(np.uint32))


@st.composite
def step_logs(draw: st.DrawFn) -> StepLog:
    sites = {}
    for number in draw(st.lists(st.integers(0, 2**32 - 1), max_size=5, unique=True)):
        limit = draw(st.sampled_from([30, 2**20, 2**40 - 1]))
        positions = sorted(draw(st.sets(st.integers(0, limit), max_size=30)))
        count = len(positions)
        full = [i for i in range(count) if draw(st.booleans())] if draw(st.booleans()) else []
        parity = np.array(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.uint8)
        parity[full] = 0
        patterns = draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(full), max_size=len(full)))
        sites[number] = SiteEntries(
            draw(st.integers(-960, 1023)),
            np.array(positions, np.int64),
            parity,
            np.array(full, np.int64),
            np.array(patterns, np.uint32).view(np.float32),
        )
    prints = draw(st.lists(st.integers(0, 2**32 - 1), max_size=6))
    return StepLog(draw(st.integers(0, 2**64 - 1)), sites, np.array(prints, np.uint32))


@given(log=step_logs())
@settings(max_examples=300, deadline=None)
def test_round_trip(log: StepLog) -> None:
    record = encode_step(log)
    assert decode_step(record) == log
    entries, prints = log_sizes(record)
    assert entries + prints == len(record) and prints == 4 * log.fingerprints.size


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_rice_parameter_is_the_best(data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from([3, 100, 2**39]))
    values = data.draw(st.lists(st.integers(0, limit), min_size=1, max_size=8))
    chosen = rice.best_parameter(np.array(values, np.int64))
    costs = [len(values) * (k + 1) + sum(v >> k for v in values) for k in range(41)]
    assert chosen == costs.index(min(costs))


@pytest.mark.parametrize(("numel", "share"), [(4_000_000, 1e-5), (400_000, 1e-4), (400_000, 1e-3)])
def test_size_is_close_to_the_entropy(numel: int, share: float) -> None:
    """40 to 400 random entries a site, each with a parity bit: within 1.2 times the floor, headers included."""
    rng = np.random.default_rng(1)
    sites, floor = {}, 0.0
    for number in range(40):
        count = int(rng.binomial(numel, share))
        sites[2 * number] = site(rng, numel, count, scale=int(rng.integers(-12, 4)))
        floor += entropy_floor_bits(numel, count)
    assert 8 * len(encode_step(StepLog(1, sites, NO_PRINTS))) < 1.2 * floor


def test_entropy_floor() -> None:
    assert entropy_floor_bits(4, 2) == pytest.approx(np.log2(6) + 2)
    assert entropy_floor_bits(10, 0) == 0
    with pytest.raises(ValueError, match="entries"):
        entropy_floor_bits(3, 4)


def test_every_truncation_is_malformed() -> None:
    record = encode_step(example_log())
    for length in range(len(record)):
        with pytest.raises(EvidenceError) as caught:
            decode_step(record[:length])
        assert caught.value.reason == "evidence_malformed"


def with_length(record: bytes) -> bytes:
    """Make the payload length in the header right again."""
    step, _, sites, prints = HEADER.unpack_from(record)
    return HEADER.pack(step, len(record) - HEADER.size, sites, prints) + record[HEADER.size :]


def test_every_payload_truncation_with_the_right_length_is_malformed() -> None:
    record = encode_step(example_log())
    for length in range(HEADER.size, len(record)):
        with pytest.raises(EvidenceError):
            decode_step(with_length(record[:length]))


@given(st.integers(0, 2**32), st.integers(0, 7), st.integers(0, 50))
@settings(max_examples=600, deadline=None)
def test_a_flipped_bit_never_passes_as_the_same_log(place: int, bit: int, seed: int) -> None:
    log = example_log(seed)
    record = bytearray(encode_step(log))
    record[place % len(record)] ^= 1 << bit
    try:
        decoded = decode_step(bytes(record))
    except EvidenceError as error:
        assert error.reason == "evidence_malformed"
    else:
        assert decoded != log and encode_step(decoded) == bytes(record)


@given(st.binary(max_size=200), st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=500, deadline=None)
def test_random_bytes_raise_nothing_else(data: bytes, sites: int, prints: int) -> None:
    record = HEADER.pack(1, len(data), sites, prints) + data
    try:
        assert encode_step(decode_step(record)) == record
    except EvidenceError as error:
        assert error.reason == "evidence_malformed"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


HOSTILE = {
    "trailing-garbage": with_length(encode_step(example_log()) + b"\0"),
    "trailing-bytes-after-the-payload": encode_step(example_log()) + b"\0",
    "2**60-entries": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(2**61) + b"\0" + bytes(50)),
    "2**40-entries": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(2**41) + b"\0" + bytes(50)),
    "2**24-entries": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(2**25) + b"\0" + bytes(50)),
    "2**40-full-entries": with_length(
        HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(2**41 + 1) + b"\0" + varint(2**40) + b"\0" + bytes(50)
    ),
    "more-full-entries-than-entries": with_length(
        HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(3) + b"\0" + varint(2) + b"\0" + bytes(50)
    ),
    "no-full-entries-after-the-flag": with_length(
        HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(3) + b"\0\0\0" + b"\0\x01"
    ),
    "2**32-sites": HEADER.pack(1, 3, 2**32 - 1, 0) + bytes(3),
    "2**32-fingerprints": HEADER.pack(1, 3, 0, 2**32 - 1) + bytes(3),
    "varint-without-end": with_length(HEADER.pack(1, 0, 1, 0) + b"\xff" * 40),
    "varint-not-minimal": with_length(HEADER.pack(1, 0, 1, 0) + b"\x80\0\0\0"),
    "wild-exponent": with_length(HEADER.pack(1, 0, 1, 0) + b"\0" + varint(2**20) + b"\0"),
    "rice-parameter-200": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(2) + b"\xc8" + bytes(60)),
    "rice-parameter-not-the-best": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0\x02\x01\0\0\x01"),
    "padding-bits-set": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0\x02\0\x02\x01"),
    "no-unary-end": with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0\x02\0\0\0"),
    "positions-beyond-2**40": with_length(
        HEADER.pack(1, 0, 1, 0) + b"\0\0" + varint(4) + b"\x28" + b"\xff" * 10 + b"\0" + b"\x03"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_record_is_refused_without_allocating(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(EvidenceError) as caught:
            decode_step(HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.reason == "evidence_malformed"
    assert peak < 1 << 20


def test_the_hand_made_records_differ_from_a_good_one_only_in_what_they_say() -> None:
    """The skeleton used above is valid: one site, one entry at position 0, parity 0."""
    record = with_length(HEADER.pack(1, 0, 1, 0) + b"\0\0\x02\0\0\x01")
    assert decode_step(record).sites[0].positions.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_exp": None}, "exponent"),
        ({"positions": np.array([3, 3])}, "ascending"),
        ({"positions": np.array([4, 3])}, "ascending"),
        ({"positions": np.array([-1, 3])}, "ascending"),
        ({"positions": np.array([1, 2**40])}, "below"),
    ],
)
def test_what_no_trainer_writes_is_not_encoded(changes: dict[str, object], message: str) -> None:
    entries = SiteEntries(0, np.array([1, 2]), np.zeros(2, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    for name, value in changes.items():
        setattr(entries, name, value)
    with pytest.raises(ValueError, match=message):
        encode_step(StepLog(1, {0: entries}, NO_PRINTS))


def test_a_log_of_nearly_everything_is_a_spec_error() -> None:
    count = step_record.MAX_STEP_ENTRIES + 1
    everything, parity = np.broadcast_to(np.int64(0), count), np.broadcast_to(np.uint8(0), count)  # no memory
    entries = SiteEntries(0, everything, parity, np.empty(0, np.int64), np.empty(0, np.float32))
    with pytest.raises(SpecError, match="too wide"):
        encode_step(StepLog(1, {0: entries}, NO_PRINTS))


def write(path: Path, steps: int = 3) -> list[bytes]:
    with LogWriter(path, {"job": "x", "first": 5}) as writer:
        return [writer.append(example_log(i)) for i in range(steps)]


def test_file_round_trip(tmp_path: Path) -> None:
    records = write(tmp_path / "log")
    with LogReader(tmp_path / "log", 1 << 20) as reader:
        assert reader.header == {"job": "x", "first": 5}
        assert reader.steps == [5, 6, 7]
        assert list(reader) == [example_log(i) for i in range(3)]
        assert reader.read_step(6) == example_log(1)
        assert step_digest(reader.record(7)) == hashlib.sha256(records[2]).digest()
        with pytest.raises(EvidenceError, match="no step 8"):
            reader.read_step(8)


def test_records_reach_the_system_before_append_returns(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", {})
    writer.append(example_log())
    with LogReader(tmp_path / "log", 1 << 20) as reader:
        assert reader.read_step(5) == example_log()
    writer.close()


def test_writer_does_not_overwrite_and_keeps_order(tmp_path: Path) -> None:
    write(tmp_path / "log")
    with pytest.raises(StoreError, match="cannot create"):
        LogWriter(tmp_path / "log", {})
    with LogWriter(tmp_path / "other", {}) as writer:
        writer.append(example_log(1))
        with pytest.raises(ValueError, match="step 5 after step 6"):
            writer.append(example_log(0))


def test_every_truncation_of_the_file_is_malformed_or_ends_after_a_whole_step(tmp_path: Path) -> None:
    records = write(tmp_path / "log")
    data = (tmp_path / "log").read_bytes()
    start = len(data) - sum(map(len, records))
    ends = [start + sum(map(len, records[:i])) for i in range(4)]
    cut = tmp_path / "cut"
    for length in [*range(start + 40), *range(ends[1] - 3, ends[1] + 30)]:
        cut.write_bytes(data[:length])
        if length in ends:
            assert len(LogReader(cut, 1 << 20).steps) == ends.index(length)
            continue
        with pytest.raises(EvidenceError) as caught:
            LogReader(cut, 1 << 20)
        assert caught.value.reason == "evidence_malformed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"X" + d[1:], "magic"),
        (lambda d: d.replace(b"\r\n", b"\n", 1), "magic"),
        (lambda d: d[:8] + struct.pack("<H", 2) + d[10:], "version 2"),
        (lambda d: d[:10] + struct.pack("<I", 2**31) + d[14:], "header of 2147483648"),
        (lambda d: d.replace(b'"job"', b'"jo\\"'), "evidence_malformed|header"),
        (lambda d: d[: 14 + 21] + d[14 + 21 :] * 2, "after step"),
    ],
)
def test_changed_files(tmp_path: Path, change: object, message: str) -> None:
    write(tmp_path / "log")
    data = (tmp_path / "log").read_bytes()
    changed = change(data)  # type: ignore[operator]
    assert changed != data
    (tmp_path / "log").write_bytes(changed)
    with pytest.raises(EvidenceError, match=message) as caught:
        LogReader(tmp_path / "log", 1 << 20)
    assert caught.value.reason == "evidence_malformed"


def test_missing_oversize_and_special_files(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError) as caught:
        LogReader(tmp_path / "none", 1 << 20)
    assert caught.value.reason == "artifact_missing"
    write(tmp_path / "log")
    with pytest.raises(EvidenceError, match="limit is 100"):
        LogReader(tmp_path / "log", 100)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EvidenceError, match="regular"):
        LogReader(tmp_path / "pipe", 1 << 20)
    with pytest.raises(EvidenceError, match="regular"):
        LogReader(tmp_path, 1 << 20)


@pytest.mark.parametrize("limit", ["MAX_STEP_ENTRIES", "MAX_RECORD_BYTES", "MAX_STEP_SITES"])
def test_a_step_that_no_reader_would_take_is_not_written(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = example_log()
    record = encode_step(log)
    largest = {
        "MAX_STEP_ENTRIES": sum(s.positions.size for s in log.sites.values()),
        "MAX_RECORD_BYTES": len(record),
        "MAX_STEP_SITES": max(len(log.sites), log.fingerprints.size),
    }[limit]
    monkeypatch.setattr(step_record, limit, largest)
    assert decode_step(encode_step(log)) == log
    monkeypatch.setattr(step_record, limit, largest - 1)
    with pytest.raises(SpecError, match=str(largest)):
        encode_step(log)
    # A reader refuses it before it makes arrays of it, not by encoding it again.
    monkeypatch.setattr(rice, "decode", None)
    monkeypatch.setattr(step_record, "encode_step", None)
    with pytest.raises(EvidenceError, match=str(largest)):
        decode_step(record)
