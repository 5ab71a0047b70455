"""Whatever is done to a file of a run, the audit says ``rejected`` with the right reason, and never raises."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import SMALL_DIGITS, Case, Trainer, artifacts, audit, read_commitments

from vt_core.evidence.records import parse_segment
from vt_core.training.segment import FILES
from vt_core.verify.audit import Commitments

SEGMENT = 2
OTHER = Case(SMALL_DIGITS.reference, {**SMALL_DIGITS.args, "lr": 0.06}, {**SMALL_DIGITS.train, "seed": 8})


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Trainer(SMALL_DIGITS, tmp_path_factory.mktemp("honest")).run().folder
    assert audit(folder)["verdict"] == "verified"
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another honest run of the same job: other seed, other learning rate, other number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        return Trainer(OTHER, tmp_path_factory.mktemp("foreign")).run().folder
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def spoil(honest: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """One artifact of segment 2, put back after the test."""
    path = artifacts(honest, SEGMENT) / request.param
    kept = path.read_bytes()
    yield path
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(kept)
    assert audit(honest, choice=str(SEGMENT))["verdict"] == "verified"


def sampled_flips(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield copies of ``data`` with one bit flipped: in the first and last byte, and in each of ``count`` parts."""
    random = np.random.Generator(np.random.PCG64(seed))
    edges = np.linspace(0, len(data), min(count, len(data)) + 1).astype(int)
    places = {0, len(data) - 1} | {int(random.integers(a, b)) for a, b in pairwise(edges)}
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << int(random.integers(8))
        yield bytes(changed)


def expect_rejected(folder: Path, reason: str, segment: int = SEGMENT, choice: str = str(SEGMENT)) -> None:
    verdict = audit(folder, choice=choice)
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", reason), verdict["message"]
    assert verdict["first_divergence"]["segment"] == segment


every_artifact = pytest.mark.parametrize("spoil", FILES, indirect=True)


@every_artifact
def test_flipped_bits_of_an_artifact(honest: Path, spoil: Path) -> None:
    count = 0
    for changed in sampled_flips(spoil.read_bytes(), 40):
        spoil.write_bytes(changed)
        expect_rejected(honest, "artifact_corrupt")
        count += 1
    assert count >= 40
    # The replay of the next segment starts from this one's checkpoint: it does not accept it either.
    expect_rejected(honest, "artifact_corrupt", SEGMENT + 1, str(SEGMENT + 1))


def _foreign(path: Path, folder: Path) -> None:
    path.write_bytes((artifacts(folder, SEGMENT) / path.name).read_bytes())


def _symlink(path: Path, folder: Path) -> None:
    good = path.with_name("moved")
    path.rename(good)
    path.symlink_to(good)


def _directory(path: Path, folder: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path, folder: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILT: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "last-byte-cut": (lambda p, _: p.write_bytes(p.read_bytes()[:-1]), "artifact_corrupt"),
    "cut-in-half": (lambda p, _: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), "artifact_corrupt"),
    "empty": (lambda p, _: p.write_bytes(b""), "artifact_corrupt"),
    "deleted": (lambda p, _: p.unlink(), "artifact_missing"),
    "of-another-run": (_foreign, "artifact_corrupt"),
    "trailing-garbage": (lambda p, _: p.write_bytes(p.read_bytes() + b"\0garbage"), "artifact_corrupt"),
    "trailing-newline": (lambda p, _: p.write_bytes(p.read_bytes() + b"\n"), "artifact_corrupt"),
    "symbolic-link": (_symlink, "artifact_corrupt"),
    "directory": (_directory, "artifact_corrupt"),
    "pipe": (_pipe, "artifact_corrupt"),
}


@every_artifact
@pytest.mark.parametrize("how", SPOILT)
@pytest.mark.timeout(60)
def test_spoilt_artifact(how: str, honest: Path, foreign: Path, spoil: Path) -> None:
    change, reason = SPOILT[how]
    change(spoil, foreign)
    expect_rejected(honest, reason)


def test_whole_segment_folder_missing(honest: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    shutil.rmtree(artifacts(folder, SEGMENT))
    expect_rejected(folder, "artifact_missing")


# Commitments: bytes as they come from a store (that a store's object is a regular file is the store's business).


def names(found: Commitments) -> list[str]:
    return ["spec", *(f"segment-{i}" for i in range(len(found.segments))), "seal"]


def with_object(found: Commitments, name: str, data: bytes | None) -> Commitments:
    """Return the commitments with another object; an absent segment hides all after it, as in a store."""
    if not name.startswith("segment-"):
        return dataclasses.replace(found, **{name: data})
    index = int(name.removeprefix("segment-"))
    before, after = found.segments[:index], found.segments[index + 1 :]
    return dataclasses.replace(found, segments=before if data is None else [*before, data, *after])


def get_object(found: Commitments, name: str) -> bytes:
    data = found.segments[int(name[8:])] if name.startswith("segment-") else getattr(found, name)
    assert isinstance(data, bytes)
    return data


COMMITMENTS = ("spec", "segment-0", "segment-1", "segment-2", "segment-3", "seal")
REASONS = {
    "spec": {"evidence_malformed", "spec_mismatch"},
    "segment": {"evidence_malformed", "spec_mismatch", "chain_broken"},
    "seal": {"evidence_malformed", "spec_mismatch", "chain_broken"},
}


@pytest.mark.parametrize("name", COMMITMENTS)
def test_flipped_bit_in_each_byte_of_a_commitment(name: str, honest: Path) -> None:
    found = read_commitments(honest)
    data = get_object(found, name)
    seen: Counter[str] = Counter()
    for place in range(len(data)):
        changed = bytearray(data)
        # Every bit comes up; the low one more often, since it turns one digit or letter into another.
        changed[place] ^= 1 << (place % 8 if place % 2 else 0)
        spoilt = with_object(found, name, bytes(changed))
        # The last segment is replayed where nothing before it fails: the seal's state is compared there.
        verdict = audit(honest, commitments=spoilt, choice="3")
        assert verdict["verdict"] == "rejected", f"byte {place}: {verdict['message']}"
        seen[verdict["reason"]] += 1
    assert set(seen) <= REASONS[name.split("-")[0]]
    assert sum(seen.values()) == len(data) > 200
    assert seen["evidence_malformed"] and len(seen) >= 2, "flips must reach the rules behind the parser too"


@pytest.mark.parametrize("name", COMMITMENTS)
@pytest.mark.parametrize("how", ["cut", "empty", "garbage", "newline", "spaces", "byte-order-mark", "nested", "array"])
def test_malformed_commitment(name: str, how: str, honest: Path) -> None:
    found = read_commitments(honest)
    data = get_object(found, name)
    changed = {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "garbage": data + b"\0\xff",
        "newline": data + b"\n",
        "spaces": data.replace(b":", b": ", 1),
        "byte-order-mark": b"\xef\xbb\xbf" + data,
        "nested": b"[" * 100_000,
        "array": b"[]",
    }[how]
    verdict = audit(honest, commitments=with_object(found, name, changed))
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "evidence_malformed")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("spec", "spec_mismatch"), ("segment-0", "spec_mismatch"), ("segment-3", "spec_mismatch"),
     ("seal", "spec_mismatch")],
)  # fmt: skip
def test_commitment_of_another_run(name: str, reason: str, honest: Path, foreign: Path) -> None:
    found, others = read_commitments(honest), read_commitments(foreign)
    verdict = audit(honest, commitments=with_object(found, name, get_object(others, name)))
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", reason)


def test_commitment_of_a_run_of_the_same_spec(honest: Path, tmp_path: Path) -> None:
    twin = read_commitments(Trainer(SMALL_DIGITS, tmp_path / "twin", run_id="twin").run().folder)
    found = read_commitments(honest)
    for name, reason in (("segment-1", "chain_broken"), ("seal", "spec_mismatch")):
        verdict = audit(honest, commitments=with_object(found, name, get_object(twin, name)))
        assert (verdict["verdict"], verdict["reason"]) == ("rejected", reason)


def test_missing_commitments(honest: Path) -> None:
    found = read_commitments(honest)

    def outcome(changed: Commitments) -> tuple[str, str]:
        verdict = audit(honest, commitments=changed)
        return verdict["verdict"], verdict["reason"]

    assert outcome(with_object(found, "seal", None)) == ("inconclusive", "not_sealed")
    assert outcome(with_object(found, "spec", None)) == ("rejected", "artifact_missing")
    for index in range(4):
        assert outcome(with_object(found, f"segment-{index}", None)) == ("rejected", "artifact_missing")
    assert outcome(dataclasses.replace(found, segments=[], seal=None)) == ("rejected", "artifact_missing")


def test_reordered_and_repeated_segments(honest: Path) -> None:
    found = read_commitments(honest)
    a, b, c, d = found.segments
    for segments in ([a, c, b, d], [a, b, b, d], [b, a, c, d], [a, b, c, d, d], [a, b, c, c], [d, c, b, a]):
        verdict = audit(honest, commitments=dataclasses.replace(found, segments=segments))
        assert (verdict["verdict"], verdict["reason"]) == ("rejected", "chain_broken")


def test_each_record_names_the_one_before_it(honest: Path) -> None:
    """While a run is not sealed yet, only the chain tells that a record was exchanged after the next one was made."""
    found = dataclasses.replace(read_commitments(honest), seal=None)
    record = parse_segment(found.segments[1], "segments/00001.json")
    other = dataclasses.replace(record, pointer={"moved": "elsewhere"}).to_bytes()
    verdict = audit(honest, commitments=with_object(found, "segment-1", other))
    assert (verdict["verdict"], verdict["reason"]) == ("rejected", "chain_broken")
    assert verdict["first_divergence"]["segment"] == 2
