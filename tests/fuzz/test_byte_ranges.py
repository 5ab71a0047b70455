"""Every byte range of every file of a real run is changed, and all digests on the way to the seal are made anew.

The outcome is never ``verified`` with another final state than the honest one, and never an error without a type. In
CI the windows are as large as the time allows (every byte is in one); with ``VT_FUZZ_FULL=1`` they have 8 bytes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fuzz_forge import CHANGES, forge_artifact, forge_commitment, windows
from support.runs import SMALL_DIGITS, Trainer, artifacts, audit, copy_run

from vt_core.training.segment import FILES
from vt_core.verify.verdict import Reason

SEGMENT, LAST = 2, 3  # of 0 to 3
FULL = os.environ.get("VT_FUZZ_FULL") == "1"
WINDOWS = 6  # of each artifact and each kind of change
FEW, MANY = 2, 80  # where each case is a whole replay that ends well; where nothing is replayed
WINDOW_BYTES = 8
# What the verdict does not rest on: reports, and what only says where to look.
REPORTS = {"metrics.json", "environment.json"}
INFORMATIVE = REPORTS | {"leaves.json", "rounding.vtlog"}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(SMALL_DIGITS, tmp_path_factory.mktemp("honest")).run()


@pytest.fixture(scope="module")
def folder(honest: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to spoil; every test puts back what it changed."""
    return copy_run(honest.folder, tmp_path_factory.mktemp("spoilt") / "run")


def cases(data: bytes, name: str, windows_of: int = WINDOWS) -> list[tuple[str, bytes]]:
    """Return (what was done, changed bytes) for each kind of change and each window that it changes."""
    rng = random.Random(name)
    count = -(-len(data) // WINDOW_BYTES) if FULL else windows_of
    made = []
    for kind, change in CHANGES.items():
        for first, last in windows(len(data), count):
            changed = change(rng, data, first, last)
            if changed != data:
                made.append((f"{kind} of bytes {first} to {last}", changed))
    return made


def judge(verdict: dict[str, Any], state: str, what: str) -> str:
    """Check that a verdict is one of the three with a reason, and that it never calls another model verified."""
    json.dumps(verdict)
    assert verdict["verdict"] in ("verified", "rejected", "inconclusive"), what
    if verdict["verdict"] != "verified":
        return str(Reason(verdict["reason"]))
    assert verdict["state"] == state and verdict["state_checked"], f"{what}: another model is verified"
    return "verified"


@pytest.mark.parametrize(
    ("segment", "name"),
    [*((SEGMENT, name) for name in FILES), (LAST, "checkpoint.safetensors"), (LAST, "scalars.json")],
)
def test_artifacts(segment: int, name: str, honest: Trainer, folder: Path) -> None:
    data = (artifacts(honest.folder, segment) / name).read_bytes()
    seen: Counter[str] = Counter()
    for what, changed in cases(data, name, WINDOWS if name not in REPORTS and segment == SEGMENT else FEW):
        forge_artifact(folder, segment, name, changed)
        found = judge(audit(folder, choice="2,3"), honest.final, what)
        assert found != "artifact_corrupt" and found != "chain_broken", f"{what}: the digests were not made anew"
        assert found != "verified" or name in INFORMATIVE, f"{what} of {name} is not noticed"
        seen[found] += 1
        shutil.copytree(honest.folder, folder, dirs_exist_ok=True)
    assert seen["evidence_malformed"] or name in REPORTS, seen
    assert sum(seen.values()) >= 4 * FEW


@pytest.mark.parametrize("name", ["spec.json", "segments/0", "segments/2", "segments/3", "seal.json"])
def test_commitments(name: str, honest: Trainer) -> None:
    path = honest.folder / (name if name.endswith(".json") else f"segments/0000{name[-1]}.json")
    data = path.read_bytes()
    choice = "0,2,3" if name == "segments/0" else "2,3"  # what no audit looks at, none can find
    seen: Counter[str] = Counter()
    for what, changed in cases(data, name, MANY):
        verdict = audit(honest.folder, commitments=forge_commitment(honest.folder, name, changed), choice=choice)
        seen[judge(verdict, honest.final, what)] += 1
    assert seen["evidence_malformed"] and seen["verified"] == 0, seen
    assert sum(seen.values()) >= 4 * MANY


def test_the_forger_does_nothing_by_itself(honest: Trainer, folder: Path) -> None:
    """With unchanged bytes the run made anew is verified: what the tests above see is the change."""
    for name in FILES:
        forge_artifact(folder, SEGMENT, name, (artifacts(honest.folder, SEGMENT) / name).read_bytes())
        assert audit(folder)["verdict"] == "verified", name
    spec = (honest.folder / "spec.json").read_bytes()
    assert audit(folder, commitments=forge_commitment(folder, "spec.json", spec))["verdict"] == "verified"


def test_a_forger_who_changes_log_and_leaf_together_is_replayed(honest: Trainer, folder: Path) -> None:
    """Some changed logs must get as far as the replay: else only the leaf's digest would be tested."""
    log = (artifacts(honest.folder, SEGMENT) / "rounding.vtlog").read_bytes()
    reached = Counter(
        str(audit(folder, choice="2")["reason"])
        for at in range(len(log) - 400, len(log), 19)
        if forge_artifact(folder, SEGMENT, "rounding.vtlog", log[:at] + bytes([log[at] ^ 1]) + log[at + 1 :]) is None
    )
    shutil.copytree(honest.folder, folder, dirs_exist_ok=True)
    assert set(reached) - {"evidence_malformed"}, reached


def test_windows_cover_every_byte() -> None:
    for size in (1, 5, 6, 7, 100, 1001):
        covered = [byte for first, last in windows(size, WINDOWS) for byte in range(first, last)]
        assert covered == list(range(size))
