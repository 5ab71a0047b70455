"""A policy in the parameter file: the rest keeps its bytes, comments included, or nothing is written at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tasks.policy_file import policy_yaml, write_policy
from vt_core.errors import SpecError
from vt_core.numerics import DEFAULT, TolerancePolicy

POLICY = DEFAULT["float32"]
FILES = {
    "null": "job: {reference: a:B}\ntrain:\n  seed: 1 # any\n  policy: null   # the defaults\n  steps: 3\nstore: ./s\n",
    "absent": "train:\n    # what to do\n    seed: 1\n\n    steps: 3\n",
    "no value": "train:\n  policy:\n  seed: 1\n",
    "block": "train:\n  policy:\n    contraction:\n      rtol_exp: null\n      atol_exp: -40\n  seed: 1\nstore: x\n",
    "flow": "train:  # here\n  policy: {other: {rtol_exp: null, atol_exp: -40}}\n  seed: 1",
    "last": "store: x\ntrain:\n  seed: 1",
    "elsewhere": "job:\n  args:\n    policy: mine\ntrain:\n  seed: 1\naudit:\n  limits:\n    policy: null\n",
}


@pytest.mark.parametrize("name", FILES)
def test_only_the_policy_changes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(FILES[name])
    write_policy(path, POLICY)
    plain, before = yaml.safe_load(path.read_text()), yaml.safe_load(FILES[name])
    assert TolerancePolicy.from_json(plain["train"].pop("policy")) == POLICY
    before["train"].pop("policy", None)
    assert plain == before
    kept = [line for line in FILES[name].splitlines() if "policy" not in line and "_exp" not in line]
    assert [line for line in kept if line not in path.read_text().splitlines()] in ([], ["    contraction:"])
    write_policy(path, DEFAULT["float64"])
    assert yaml.safe_load(path.read_text())["train"]["policy"] == DEFAULT["float64"].to_json()
    assert [p.name for p in tmp_path.iterdir()] == ["params.yaml"]


def test_a_comment_behind_the_value_stays(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(FILES["null"])
    write_policy(path, POLICY)
    assert "# the defaults" in path.read_text() and "# any" in path.read_text()


@pytest.mark.parametrize(
    "text",
    ["train: {seed: 1, steps: 3}\n", "store: x\n", "train:\n", "{train: {seed: 1}}\n", "train: &t\n  seed: 1\n",
     "train:\n  seed: 1\n  policy: &p {a: 1}\nstore: *p\n"],
)  # fmt: skip
def test_what_cannot_be_edited_stays_and_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match="yourself") as told:
        write_policy(path, POLICY)
    assert path.read_text() == text
    line = str(told.value).splitlines()[-1]
    assert yaml.safe_load(line) == {"policy": POLICY.to_json()} == yaml.safe_load(f"policy: {policy_yaml(POLICY)}")


def test_links_modes_and_line_ends_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "params.yaml"
    real.write_bytes(b"job: {}\r\ntrain:\r\n  seed: 1\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_policy(link, DEFAULT["float64"])
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert real.read_bytes().count(b"\n") == real.read_bytes().count(b"\r\n") == 4


def test_a_policy_that_another_one_hides_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = "train:\n  policy: null\n  seed: 1\n  policy: null\n"
    path.write_text(text)
    with pytest.raises(SpecError):
        write_policy(path, DEFAULT["float64"])
    assert path.read_text() == text
