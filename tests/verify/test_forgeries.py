"""A trainer who changes evidence and then commits to it anew: digests, leaves, chain and seal all fit again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cheats import relabelled
from support.forging import SEGMENT, commit, leaves_of, rewrite_log, truncate_log
from support.runs import SMALL_DIGITS, Trainer, artifacts, audit, copy_run, recommit

from vt_core.engine.rounding_log import LogReader, StepLog
from vt_core.numerics import SiteEntries
from vt_core.training.checkpoint import load_checkpoint, save_checkpoint
from vt_core.training.leaves import decode_leaves, encode_leaves
from vt_core.training.segment import LEAVES, LOG, METRICS
from vt_core.training.state import State, digest


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Trainer(SMALL_DIGITS, tmp_path_factory.mktemp("honest")).run().folder


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return copy_run(honest, tmp_path / "run")


def outcome(folder: Path) -> tuple[str, str | None, dict[str, Any]]:
    verdict = audit(folder)
    return verdict["verdict"], verdict["reason"], verdict["first_divergence"] or {}


def test_committing_anew_without_a_change_is_verified(run: Path) -> None:
    """The tools of this file forge nothing by themselves."""
    rewrite_log(run, lambda logs: None)
    assert outcome(run)[0] == "verified"


# The checkpoint


def forged_state(folder: Path) -> State:
    state = load_checkpoint(artifacts(folder, SEGMENT))
    weight = state.tensors["param.linear.weight"].clone()
    weight[0] += 0.25
    return State(state.step, {**state.tensors, "param.linear.weight": weight}, state.scalars)


def test_checkpoint_that_the_leaf_does_not_commit_to(run: Path) -> None:
    save_checkpoint(forged_state(run), artifacts(run, SEGMENT))
    recommit(run)
    result, reason, place = outcome(run)
    assert (result, reason) == ("rejected", "state_mismatch")
    assert (place["segment"], place["step"], place["tensors"]) == (SEGMENT, 4, ["param.linear.weight"])


def test_checkpoint_and_leaf_forged_together(run: Path) -> None:
    state = forged_state(run)
    save_checkpoint(state, artifacts(run, SEGMENT))
    root = digest(state)
    *before, last = leaves_of(run)
    commit(run, [*before, dataclasses.replace(last, state=root.root, tensors=root.tensors)])
    result, reason, place = outcome(run)
    assert (result, reason) == ("rejected", "state_mismatch")
    assert (place["segment"], place["step"], place["tensors"]) == (SEGMENT, 4, ["param.linear.weight"])


def test_checkpoint_of_the_segment_before(run: Path) -> None:
    save_checkpoint(load_checkpoint(artifacts(run, SEGMENT - 1)), artifacts(run, SEGMENT))
    recommit(run)
    assert outcome(run)[:2] == ("rejected", "state_mismatch")


def _reshaped(state: State) -> State:
    return _with(state, "optim.linear.weight.momentum_buffer", torch.zeros(3, 5))


def _with(state: State, name: str, tensor: torch.Tensor) -> State:
    return State(state.step, {**state.tensors, name: tensor}, state.scalars)


def _scalar(state: State, name: str, value: Any) -> State:
    scalars = json.loads(json.dumps(state.scalars))
    for group in scalars["groups"]:
        group[name] = value
    return State(state.step, state.tensors, scalars)


UNUSABLE: dict[str, Callable[[State], State]] = {
    "momentum-of-another-shape": _reshaped,
    "parameter-of-another-shape": lambda s: _with(s, "param.linear.weight", torch.zeros(3, 5)),
    "parameter-of-integers": lambda s: _with(s, "param.linear.bias", torch.zeros(10, dtype=torch.int64)),
    "parameter-missing": lambda s: State(s.step, {n: t for n, t in s.tensors.items() if n != "param.linear.bias"}, {}),
    "unknown-tensor": lambda s: _with(s, "param.extra", torch.zeros(2)),
    "state-of-no-parameter": lambda s: _with(s, "optim.extra.momentum_buffer", torch.zeros(2)),
    "rate-is-text": lambda s: _scalar(s, "lr", "fast"),
    "rate-is-no-number": lambda s: _scalar(s, "lr", {"float": "nan"}),
    "rate-is-null": lambda s: _scalar(s, "lr", None),
    "malformed-scalar": lambda s: _scalar(s, "lr", {"double": "0x1p+0"}),
    "unknown-setting": lambda s: _scalar(s, "speed", 3),
    "no-scalars": lambda s: State(s.step, s.tensors, {}),
    "scalars-of-another-kind": lambda s: State(s.step, s.tensors, {"groups": 5, "state": []}),
    "other-step": lambda s: State(s.step + 1, s.tensors, s.scalars),
    "wide-parameter": lambda s: _with(s, "param.linear.bias", torch.full((10,), 1 / 3, dtype=torch.float64)),
    "not-a-number": lambda s: _with(s, "param.linear.bias", torch.full((10,), torch.nan)),
}


@pytest.mark.parametrize("how", UNUSABLE)
def test_state_that_cannot_be_used(how: str, run: Path) -> None:
    """The forged segment is rejected; a replay that starts from it never raises, and never says verified alone."""
    state = UNUSABLE[how](load_checkpoint(artifacts(run, SEGMENT)))
    save_checkpoint(state, artifacts(run, SEGMENT))
    root = digest(state)
    *before, last = leaves_of(run)
    commit(run, [*before, dataclasses.replace(last, state=root.root, tensors=root.tensors)])
    verdict = audit(run)
    assert verdict["verdict"] == "rejected" and verdict["first_divergence"]["segment"] == SEGMENT
    assert audit(run, choice=str(SEGMENT + 1))["verdict"] != "verified"


# The log


def parity_site(log: StepLog) -> tuple[int, SiteEntries]:
    """Return the site with the most entries among those that have parity entries only."""
    number = max((n for n, s in log.sites.items() if not s.full_index.size), key=lambda n: log.sites[n].positions.size)
    assert log.sites[number].positions.size
    return number, log.sites[number]


def test_log_that_the_leaf_does_not_commit_to(run: Path) -> None:
    rewrite_log(run, lambda logs: logs[4].sites.clear(), fix_leaves=False)
    result, reason, place = outcome(run)
    assert (result, reason, place["step"]) == ("rejected", "evidence_malformed", 4)


def test_entry_removed_gives_nothing(run: Path) -> None:
    """The auditor then uses its own rounding, which on this hardware is the trainer's: nothing was gained or lost."""

    def change(logs: dict[int, StepLog]) -> None:
        for log in logs.values():
            log.sites.clear()

    rewrite_log(run, change)
    assert outcome(run)[0] == "verified"


def test_entry_added(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        number, site = parity_site(logs[4])
        position = int(site.positions[0]) + 1
        assert position not in site.positions
        at = np.searchsorted(site.positions, position)
        logs[4].sites[number] = dataclasses.replace(
            site, positions=np.insert(site.positions, at, position), parity=np.insert(site.parity, at, 0)
        )

    rewrite_log(run, change)
    expect_implausible(run)


def expect_implausible(run: Path) -> None:
    result, reason, place = outcome(run)
    assert (result, reason) == ("rejected", "log_implausible")
    assert (place["segment"], place["step"]) == (SEGMENT, 4)
    assert place["op"].startswith("aten.") and place["module"] and place["element"] >= -1


def test_entry_moved(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        number, site = parity_site(logs[4])
        moved = site.positions.copy()
        moved[-1] += 1
        logs[4].sites[number] = dataclasses.replace(site, positions=moved)

    rewrite_log(run, change)
    expect_implausible(run)


def test_entry_with_a_value_far_away(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        number, site = parity_site(logs[4])
        index = np.array([0], np.int64)
        parity = site.parity.copy()
        parity[0] = 0
        logs[4].sites[number] = dataclasses.replace(
            site, parity=parity, full_index=index, full_values=np.array([0.125], np.float32)
        )

    rewrite_log(run, change)
    expect_implausible(run)


def test_entry_flipped(honest: Path, tmp_path: Path) -> None:
    """The auditor obeys (both roundings are possible) and so arrives elsewhere than the trainer, who did not do it.

    One flip near a boundary, but no excuse: what the log decides cannot be a tolerance that is too narrow. Some
    elements have no influence on the state (a ReLU or a dropout mask takes them away); then nothing is to be found.
    """
    with LogReader(artifacts(honest, SEGMENT) / LOG, 1 << 30) as reader:
        places = [
            (number, entry)
            for number, site in reader.read_step(4).sites.items()
            for entry in range(site.positions.size)
            if entry not in site.full_index
        ]
    assert len(places) >= 5
    outcomes = []
    for i, (number, entry) in enumerate(places[:: max(1, len(places) // 10)]):

        def change(logs: dict[int, StepLog], number: int = number, entry: int = entry) -> None:
            site = logs[4].sites[number]
            parity = site.parity.copy()
            parity[entry] ^= 1
            logs[4].sites[number] = dataclasses.replace(site, parity=parity)

        run = copy_run(honest, tmp_path / str(i))
        rewrite_log(run, change)
        result, reason, place = outcome(run)
        outcomes.append((result, reason))
        if result == "rejected":
            assert (place["segment"], place["step"]) == (SEGMENT, 4)
    assert set(outcomes) <= {
        ("verified", None), ("rejected", "state_mismatch"), ("rejected", "log_implausible"),
        ("inconclusive", "tolerance_exceeded"),  # it moved a value and not the state
    }  # fmt: skip
    assert ("rejected", "state_mismatch") in outcomes


@pytest.mark.parametrize("change_of_exponent", [-3, -1, 1, 4])
def test_exponent_changed(change_of_exponent: int, run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        number, site = parity_site(logs[4])
        logs[4].sites[number] = dataclasses.replace(site, scale_exp=int(site.scale_exp or 0) + change_of_exponent)

    rewrite_log(run, change)
    expect_implausible(run)


def test_entry_for_a_site_that_does_not_exist(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        _, site = parity_site(logs[4])
        logs[4].sites[len(logs[4].fingerprints) + 5] = site

    rewrite_log(run, change)
    result, reason, place = outcome(run)
    assert (result, reason, place["step"], place["op"]) == ("rejected", "log_implausible", 4, "(no such site)")


@pytest.mark.parametrize("site", [0, 1])
def test_entry_for_a_site_that_takes_none(site: int, run: Path) -> None:
    """Sites 0 and 1 are the batch: images that are put on the grid, labels that are only noted."""

    def change(logs: dict[int, StepLog]) -> None:
        assert site not in logs[4].sites
        logs[4].sites[site] = parity_site(logs[4])[1]

    rewrite_log(run, change)
    result, reason, place = outcome(run)
    assert (result, reason, place["step"]) == ("rejected", "log_implausible", 4)
    assert place["op"] == ("batch[images]", "batch[labels]")[site]


def test_position_outside_the_tensor(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        number, site = parity_site(logs[4])
        positions = site.positions.copy()
        positions[-1] = 1 << 35
        logs[4].sites[number] = dataclasses.replace(site, positions=positions)

    rewrite_log(run, change)
    expect_implausible(run)


def test_record_of_another_step(run: Path) -> None:
    def change(logs: dict[int, StepLog]) -> None:
        logs[3], logs[4] = dataclasses.replace(logs[4], step=3), dataclasses.replace(logs[3], step=4)

    rewrite_log(run, change)
    result, reason, place = outcome(run)
    assert result == "rejected" and reason in ("log_implausible", "state_mismatch")
    assert (place["segment"], place["step"]) == (SEGMENT, 3)


def test_step_missing_from_the_log(run: Path) -> None:
    truncate_log(run)
    assert outcome(run)[:2] == ("rejected", "evidence_malformed")


def test_log_of_another_segment(run: Path) -> None:
    path, other = artifacts(run, SEGMENT) / LOG, artifacts(run, SEGMENT - 1) / LOG
    path.write_bytes(other.read_bytes())
    recommit(run)
    assert outcome(run)[:2] == ("rejected", "evidence_malformed")


@pytest.mark.parametrize("how", ["changed", "dropped", "doubled"])
def test_fingerprints_never_decide(how: str, run: Path) -> None:
    """They only say where to look: false ones cannot make an honest run fail, so they cannot matter at all."""

    def change(logs: dict[int, StepLog]) -> None:
        for log in logs.values():
            log.fingerprints = {
                "changed": log.fingerprints ^ np.uint32(1),
                "dropped": log.fingerprints[:0],
                "doubled": np.concatenate([log.fingerprints, log.fingerprints]),
            }[how]

    rewrite_log(run, change)
    assert outcome(run)[0] == "verified"


def test_garbage_behind_the_log_is_not_a_log(run: Path) -> None:
    path = artifacts(run, SEGMENT) / LOG
    for garbage in (b"\0", b"x" * 7, b"\0" * 20, b"\xff" * 4096):
        honest = path.read_bytes()
        path.write_bytes(honest + garbage)
        recommit(run)
        assert outcome(run)[:2] == ("rejected", "evidence_malformed")
        path.write_bytes(honest)


def test_any_flipped_bit_of_a_recommitted_log(run: Path) -> None:
    """All digests fit except the leaf's, so the parser of the log sees the damage; it must not raise."""
    path = artifacts(run, SEGMENT) / LOG
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 150)):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(changed))
        recommit(run)
        verdict = audit(run, choice=str(SEGMENT))
        assert (verdict["verdict"], verdict["reason"]) == ("rejected", "evidence_malformed"), place


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "scalars.json", "leaves.json"])
def test_any_flipped_bit_of_a_recommitted_file(name: str, run: Path) -> None:
    path = artifacts(run, SEGMENT) / name
    data = path.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 150)):
        changed = bytearray(data)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(changed))
        recommit(run)
        verdict = audit(run, choice=str(SEGMENT))
        if name == "leaves.json" and verdict["verdict"] == "verified":
            # The tensors' roots only locate a difference; the leaf hash covers everything else.
            assert b'"tensors":"' in data[:place] and leaves_of(run)[0].hash() == decode_leaves(data)[0].hash()
            continue
        assert verdict["verdict"] == "rejected", place
        assert verdict["reason"] in ("evidence_malformed", "state_mismatch"), place


# The leaf and the metrics


@pytest.mark.parametrize(
    ("field", "reason"),
    [("trace", "trace_mismatch"), ("log", "evidence_malformed"), ("state", "state_mismatch")],
)
def test_leaf_with_another_digest(field: str, reason: str, run: Path) -> None:
    first, last = leaves_of(run)
    commit(run, [dataclasses.replace(first, **{field: b"\x5a" * 32}), last])
    result, found, place = outcome(run)
    assert (result, found) == ("rejected", reason)
    assert (place["segment"], place["step"]) == (SEGMENT, 3)


def test_leaves_that_are_not_those_of_the_commit_steps(run: Path) -> None:
    first, last = leaves_of(run)
    for leaves in ([last], [first], [first, first, last], [last, first], [dataclasses.replace(first, step=2), last]):
        commit(run, leaves)
        assert outcome(run)[:2] == ("rejected", "evidence_malformed")


def test_leaves_file_that_is_not_what_the_record_lists(run: Path) -> None:
    first, last = leaves_of(run)
    (artifacts(run, SEGMENT) / LEAVES).write_bytes(encode_leaves([dataclasses.replace(first, trace=b"\1" * 32), last]))
    recommit(run)
    assert outcome(run)[:2] == ("rejected", "evidence_malformed")


def test_metrics_are_a_report_and_not_evidence(run: Path) -> None:
    """A loss that is not true does not change the model: the committed file is what it is, and nothing rests on it."""
    path = artifacts(run, SEGMENT) / METRICS
    metrics = json.loads(path.read_bytes())
    metrics["steps"][0]["loss"] = (0.001).hex()
    path.write_text(json.dumps(metrics))
    assert audit(run)["reason"] == "artifact_corrupt", "not without committing to it"
    recommit(run)
    assert outcome(run)[0] == "verified"


def test_helpers_can_name_any_value() -> None:
    """``relabelled`` is what the steering cheats rely on: parity entries must name the values given."""
    from vt_core.numerics import Grid

    entries = SiteEntries(0, np.array([3, 9]), np.zeros(2, np.uint8), np.empty(0, np.int64), np.empty(0, np.float32))
    odd = np.array([1.0, np.nextafter(np.float32(1.0), np.float32(2.0))], np.float64)
    assert relabelled(entries, odd, Grid.parse("float32")).parity.tolist() == [0, 1]
