"""Which segments an audit replays, and what it checks before it replays any."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
from support.runs import DIGITS, SMALL_DIGITS, Case, Trainer, audit, read_commitments

from vt_core.errors import EvidenceError, SpecError
from vt_core.jobs.digits import DigitsJob
from vt_core.training.spec import RunSpec
from vt_core.verify.audit import Run, check_agreement, choose_segments, open_run
from vt_core.verify.limits import AuditorLimits

LONG = Case(DIGITS, {"width": 1, "batch_size": 2}, {"seed": 7, "steps": 11, "segment_steps": 1})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(read_commitments(Trainer(LONG, tmp_path_factory.mktemp("run")).run().folder))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("all", list(range(12))), (" all ", list(range(12))), ("0", [0]), ("11", [11]), ("0,2,5-7", [0, 2, 5, 6, 7]),
     (" 3 , 1 - 2 ", [1, 2, 3]), ("4,4,3-4", [3, 4]), ("0-11", list(range(12))), ("sample:12", list(range(12))),
     ("sample:999", list(range(12)))],
)  # fmt: skip
def test_choice(choice: str, expected: list[int], run: Run) -> None:
    assert choose_segments(choice, run, "nonce") == expected


@pytest.mark.parametrize(
    "choice",
    ["", ",", "x", "1,", "-1", "1-", "-", "1--2", "5-3", "12", "0-12", "0-99999999999999999", "1.0", "1e1", "0x1", "+1",
     "1;2", "All", "sample:", "sample:0", "sample:-1", "sample:x", "sample:1.5", "sample:+1", "sample: 2",
     "sample", "١"],
)  # fmt: skip
def test_unusable_choice(choice: str, run: Run) -> None:
    with pytest.raises(SpecError, match="segments"):
        choose_segments(choice, run, "nonce")


def test_sample_depends_on_nonce_and_on_the_sealed_root(run: Run) -> None:
    """Neither side chooses alone: the trainer does not know the nonce, the auditor cannot choose the root."""
    assert choose_segments("sample:4", run, "a") == choose_segments("sample:4", run, "a")
    by_nonce = {tuple(choose_segments("sample:4", run, str(n))) for n in range(50)}
    assert len(by_nonce) > 40
    assert run.seal is not None
    sealed = [dataclasses.replace(run, seal=dataclasses.replace(run.seal, root=f"{i:064x}")) for i in range(50)]
    assert len({tuple(choose_segments("sample:4", other, "a")) for other in sealed}) > 40
    unsealed = dataclasses.replace(run, seal=None)
    assert len({tuple(choose_segments("sample:4", unsealed, str(n))) for n in range(50)}) > 40


def test_sample_is_fair(run: Run) -> None:
    seen: Counter[int] = Counter()
    for n in range(2000):
        chosen = choose_segments("sample:3", run, f"nonce-{n}")
        assert chosen == sorted(set(chosen)) and len(chosen) == 3
        seen.update(chosen)
    # 500 are expected of each; six standard deviations are 116.
    assert set(seen) == set(range(12)) and all(abs(n - 500) < 116 for n in seen.values())


def test_audit_of_a_sample_says_what_it_covered(tmp_path: Any) -> None:
    folder = Trainer(SMALL_DIGITS, tmp_path / "run").run().folder
    verdict = audit(folder, choice="sample:2", nonce="abc")
    assert verdict["verdict"] == "verified" and verdict["nonce"] == "abc"
    assert verdict["coverage"] == {"replayed": 2, "total": 4, "of_share": "0.5000"}
    assert verdict["detection_probability"]["1_bad"] == "0.5000"


# Agreement: the auditor's own limits, libraries, code and data.

JOB = DigitsJob()
DATASET = JOB.dataset(None)
SPEC = Case(DIGITS, {}, {"steps": 2}).open()[2]
LIMITS = AuditorLimits.default()


def disagreement(spec: RunSpec, job: DigitsJob = JOB, dataset: Any = DATASET, limits: AuditorLimits = LIMITS) -> Any:
    with pytest.raises(EvidenceError) as caught:
        check_agreement(spec, job, dataset, limits)
    return caught.value.reason, str(caught.value)


def test_agreement() -> None:
    check_agreement(SPEC, JOB, DATASET, LIMITS)


@pytest.mark.parametrize(
    ("changes", "reason", "named"),
    [
        ({"engine": "0"}, "environment_unsupported", "engine 0"),
        ({"libraries": {"torch": "1.13.0"}}, "environment_unsupported", "torch 1.13.0"),
        ({"libraries": {}}, "environment_unsupported", "torch"),
        ({"sources": {**SPEC.sources, "digits.py": "0" * 64}}, "code_mismatch", "digits.py"),
        ({"sources": {**SPEC.sources, "more.py": "0" * 64}}, "code_mismatch", "more.py"),
        ({"sources": {}}, "code_mismatch", "parts.py"),
        ({"manifest": {**SPEC.manifest, "labels": "0" * 64}}, "data_mismatch", "labels"),
        ({"manifest": {}}, "data_mismatch", "images"),
        ({"dataset_size": 1499}, "data_mismatch", "size"),
        ({"batch_size": 32}, "spec_mismatch", "batches of 64"),
    ],
    ids=str,
)
def test_disagreement_is_named(changes: dict[str, Any], reason: str, named: str) -> None:
    found, message = disagreement(dataclasses.replace(SPEC, **changes))
    assert found == reason and named in message


def test_patch_release_of_torch_is_accepted() -> None:
    major, minor = SPEC.libraries["torch"].split(".")[:2]
    check_agreement(dataclasses.replace(SPEC, libraries={"torch": f"{major}.{minor}.99"}), JOB, DATASET, LIMITS)


@pytest.mark.parametrize("name", list(SPEC.policy.to_json()))
def test_policy_wider_than_the_auditor_accepts(name: str) -> None:
    """The trainer must not choose the freedom of its own log."""
    plain = SPEC.policy.to_json()
    tighter = {**plain, name: {**plain[name], "atol_exp": int(plain[name]["atol_exp"] or 0) - 1}}
    wider = {**plain, name: {**plain[name], "atol_exp": int(plain[name]["atol_exp"] or 0) + 1}}
    kind = type(SPEC.policy)
    check_agreement(dataclasses.replace(SPEC, policy=kind.from_json(tighter)), JOB, DATASET, LIMITS)
    reason, message = disagreement(dataclasses.replace(SPEC, policy=kind.from_json(wider)))
    assert reason == "policy_too_wide" and name in message
    relative = {**plain, name: {**plain[name], "rtol_exp": -30}}
    assert disagreement(dataclasses.replace(SPEC, policy=kind.from_json(relative)))[0] == "policy_too_wide"
    # The auditor may accept more, if it says so itself.
    limits = AuditorLimits.from_params({"policy": {"float64": wider}})
    check_agreement(dataclasses.replace(SPEC, policy=kind.from_json(wider)), JOB, DATASET, limits)


@pytest.mark.parametrize(
    "section",
    [{"honest": 1}, {"honest_rate": 0}, {"honest_rate": 0.5}, {"honest_rate": "x"}, {"honest_rate": float("nan")},
     {"exceeded_within": 0}, {"exceeded_within": True}, {"exceeded_within": float("nan")}, {"policy": {"float16": {}}},
     {"policy": 3}, {"policy": {"float64": 3}}, {"policy": {"float64": {"mm": {}}}}],
    ids=str,
)  # fmt: skip
def test_unusable_limits(section: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"audit\.limits"):
        AuditorLimits.from_params(section)


def test_limits_from_params() -> None:
    assert AuditorLimits.from_params(None) == AuditorLimits.default() == AuditorLimits.from_params({})
    found = AuditorLimits.from_params({"honest_rate": 0.2, "exceeded_within": 8})
    assert (found.honest_rate, found.exceeded_within) == (0.2, 8.0)
