"""``vt calibrate`` as a user meets it, and headroom in what ``vt audit`` says."""

from __future__ import annotations

import pytest
import yaml

from vt_core.numerics import DEFAULT, TolerancePolicy

QUICK = ("--steps", "1", "--against", "portable", "--permutations", "1")


def test_help_and_mistakes(vt, params, tmp_path):
    done = vt("calibrate", "--help")
    assert done.code == 0 and "Example: vt calibrate" in done.out
    done = vt("calibrate", "--params", str(tmp_path / "absent.yaml"))
    assert done.code == 3 and "absent.yaml" in done.err
    path = str(params())
    for wrong, says in (
        (("--against", "warp"), "warp"), (("--safety", "3"), "power of two"), (("--steps", "0"), "steps"),
        (("--against", "cuda"), "no CUDA device"),
    ):  # fmt: skip
        done = vt("calibrate", "--params", path, *QUICK[:2], *wrong, "--json")
        assert done.code == 3 and says in done.json["error"] and says in done.err


@pytest.mark.slow
def test_calibrate_write_train_and_audit(vt, params, tmp_path):
    path = params(compute_dtype="float32", grid="bfloat16", functions="logged")
    before = path.read_text()
    done = vt("calibrate", "--params", str(path), *QUICK, "--verbose")
    assert done.code == 0 and path.read_text() == before
    for word in ("contraction", "headroom", "proposed", "portable", "permuted", "bytes a step", "policy: {"):
        assert word in done.out, word
    done = vt("calibrate", "--params", str(path), *QUICK, "--write", "--json")
    assert done.code == 0 and done.json["written"] == str(path) and done.json["sufficient"]
    written = TolerancePolicy.from_json(yaml.safe_load(path.read_text())["train"]["policy"])
    assert written.to_json() == done.json["policy"] != DEFAULT["float32"].to_json()
    assert done.json["bytes_per_step"]["proposed"] < done.json["bytes_per_step"]["current"] * 0.75
    assert vt("train", "--params", str(path), "--run-id", "run").code == 0
    audited = vt("audit", "run", "--params", str(path), "--profile", "portable", "--json")
    assert audited.code == 0 and audited.json["verdict"] == "verified"
    headroom = audited.json["headroom"]
    assert set(headroom) == {"contraction", "reduction"}
    for name, found in headroom.items():
        assert 0.0 <= float(found["largest"]) <= 1.0
        assert found["largest"] == audited.json["counts"][name]["max_distance"]
        assert found["decisions"] > 0 and 0.0 <= float(found["mean"]) < 0.2
    seen = any(found["seen_at"] for found in headroom.values())
    spoken = vt("audit", "run", "--params", str(path), "--profile", "portable")
    assert ("of the tolerance seen" in spoken.out) == seen


@pytest.mark.slow
def test_an_insufficient_policy_leaves_with_2(vt, params):
    narrow = {"contraction": {"rtol_exp": None, "atol_exp": -58}}
    path = params(policy=narrow, contractions="logged")
    done = vt("calibrate", "--params", str(path), *QUICK)
    assert done.code == 2 and "insufficient" in done.out
    done = vt("calibrate", "--params", str(path), *QUICK, "--write", "--json")
    assert done.code == 0 and not done.json["sufficient"]
    assert done.json["classes"]["contraction"]["state"] == "insufficient"
    again = vt("calibrate", "--params", str(path), *QUICK, "--json")
    assert again.code == 0 and again.json["policy"] == done.json["policy"]
