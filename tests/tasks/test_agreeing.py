"""Facts that the parties agree on: they are in the spec, and a party that gets others refuses to sign."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from tasks.agreeing import check_facts, with_facts
from tasks.params import load_params
from vt_core.errors import SpecError
from vt_core.training.spec import RunSpec, parse_spec


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    path: Path = tmp_path_factory.mktemp("agreed") / "params.yaml"
    job = {"reference": "vt_core.jobs.digits:DigitsJob", "args": {"batch_size": 32, "width": 4}}
    path.write_text(yaml.safe_dump({"job": job, "train": {"seed": 3, "steps": 5, "segment_steps": 2}}))
    own = load_params(path)
    job_, dataset = own.open_job()
    return with_facts(own.spec(job_, dataset), job_, dataset)


def test_the_spec_holds_inputs_and_program_of_all_steps(agreed: RunSpec) -> None:
    assert set(agreed.agreed) == {"inputs", "program_0", "program_1", "program_later"}
    assert agreed.agreed["inputs"].startswith("5:")
    assert parse_spec(agreed.to_bytes()) == agreed
    check_facts(agreed.to_bytes(), None)
    check_facts(dataclasses.replace(agreed, agreed={}).to_bytes(), None)


@pytest.mark.parametrize("name", ["inputs", "program_0", "program_1", "program_later"])
def test_other_facts_are_not_signed(agreed: RunSpec, name: str) -> None:
    size = agreed.agreed[name].split(":")[0]
    other = dataclasses.replace(agreed, agreed={**agreed.agreed, name: f"{size}:{'0' * 64}"})
    with pytest.raises(SpecError, match=f"come out here: {name}"):
        check_facts(other.to_bytes(), None)


def test_facts_depend_on_seed_and_arguments(agreed: RunSpec) -> None:
    """A spec with another seed has other inputs; the facts of the old one are refused for it."""
    with pytest.raises(SpecError, match="inputs"):
        check_facts(dataclasses.replace(agreed, seed=4).to_bytes(), None)
    with pytest.raises(SpecError, match="program"):
        check_facts(dataclasses.replace(agreed, args={**agreed.args, "momentum": 0.8}).to_bytes(), None)
