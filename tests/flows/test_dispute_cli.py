"""``vt dispute`` and ``vt referee`` as real processes, and the flow that plays a party."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import pytest
from support.disputants import CHEATS
from support.services import ROOT, clean_environment

from tasks.dispute_roles import Terms, play_all
from tasks.params import Params, import_from
from tasks.runs import RunStore
from tasks.store import open_store
from tasks.training import Trainer
from vt_core.dispute.messages import Role
from vt_core.evidence.keys import write_key_pair
from vt_core.training.session import Session

pytestmark = pytest.mark.slow

JOB = """
from vt_core.jobs.digits import DigitsJob

class OwnJob(DigitsJob):
    def sources(self):
        return [*super().sources(), __file__]
"""


class Place:
    """A folder with keys, a store and a job of its own, which only the parties have."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        for role in Role:
            write_key_pair(folder / "keys", str(role))
        (folder / "own_job.py").write_text(JOB)
        import_from(str(folder))
        self.params = Params(
            "own_job:OwnJob", {"width": 4, "batch_size": 16}, None, {"seed": 7, "steps": 4, "segment_steps": 2},
            str(self.store),
        )  # fmt: skip

    @property
    def keys(self) -> dict[str, str]:
        return {str(role): str(self.folder / "keys" / role) for role in Role}

    def run(self, run_id: str) -> RunStore:
        return RunStore(open_store(str(self.store), create=True), run_id)

    def train(self, run_id: str, make=Session) -> None:
        job, dataset = self.params.open_job()
        spec = self.params.spec(job, dataset)
        trainer = Trainer(self.run(run_id), self.folder / "trainer", spec, job, dataset)
        trainer.session = make(spec, job, dataset, "cpu")
        with trainer.open():
            for index in range(trainer.begin(), spec.segment_count):
                trainer.publish(trainer.train(index))
            trainer.seal()

    def vt(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli.main", *arguments], cwd=cwd or self.folder, text=True,
            env={**clean_environment(), "COLUMNS": "200"}, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("place"))
    place.train("honest")
    place.train("cheated", CHEATS["wrong-contraction"][0])
    return place


@pytest.fixture
def elsewhere(tmp_path, place):
    """A machine that has public keys and nothing else: no code of the job, no store."""
    for role in Role:
        (tmp_path / "keys").mkdir(exist_ok=True)
        shutil.copy(place.folder / "keys" / f"{role}.pub", tmp_path / "keys")
    return tmp_path


@pytest.mark.parametrize(
    ("run_id", "winner", "reason", "code"),
    [("honest", "trainer", "conceded", 0), ("cheated", "auditor", "contradiction", 1)],
)
def test_a_dispute_and_its_transcript_elsewhere(place, elsewhere, run_id, winner, reason, code):
    out = f"transcript-{run_id}"
    done = place.vt("dispute", run_id, "--store", str(place.store), "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert (plain["winner"], plain["reason"]) == (winner, reason)
    shutil.copytree(place.folder / out, elsewhere / "transcript")
    found = place.vt("referee", "transcript", "--json", cwd=elsewhere)
    assert found.returncode == code, found.stderr
    plain = json.loads(found.stdout)
    assert (plain["winner"], plain["reason"], plain["run_id"]) == (winner, reason, run_id)
    assert f"ruling for the {winner}" in place.vt("referee", "transcript", cwd=elsewhere).stdout
    again = place.vt("dispute", run_id, "--store", str(place.store), "--out", out)
    assert again.returncode == 3 and "is not empty" in again.stderr


def test_the_referee_recomputes_an_operation_without_the_models_code(place, elsewhere):
    make = CHEATS["wrong-contraction"][0]
    terms = Terms(place.run("cheated"), place.keys, "op", workspace=elsewhere / "vt", makers={Role.TRAINER: make})
    with ExitStack() as stack:
        played = play_all(terms, stack)
    played.save(elsewhere / "transcript")
    program = "import own_job"
    missing = subprocess.run([sys.executable, "-c", program], cwd=elsewhere, env=clean_environment(), check=False,
                             capture_output=True)  # fmt: skip
    assert missing.returncode != 0
    done = place.vt("referee", "transcript", "--json", cwd=elsewhere)
    plain = json.loads(done.stdout)
    assert (done.returncode, plain["winner"], plain["reason"]) == (1, "auditor", "result_mismatch"), done.stderr
    assert plain["place"]["step"] == 3 and "tolerances" in plain["detail"]
    part = next((elsewhere / "transcript").glob("*.part000"))
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(bytes(data))
    assert place.vt("referee", "transcript", cwd=elsewhere).returncode == 3


def test_three_processes_play_against_the_store(place, tmp_path):
    store, runs = ["--store", str(place.store), "--dispute", "three", "--deadline", "60", "--json"], {}

    def play(role):
        runs[role] = place.vt("dispute", "cheated", "--as", role, *store, "--out", str(tmp_path / role))

    threads = [Thread(target=play, args=(role,)) for role in ("trainer", "auditor", "referee")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plain = {role: json.loads(done.stdout) for role, done in runs.items()}
    assert {p["winner"] for p in plain.values()} == {"auditor"}, plain
    whole = {path.name: path.read_bytes() for path in (tmp_path / "referee").iterdir()}
    assert place.vt("referee", str(tmp_path / "referee")).returncode == 1 and len(whole) > 5


def test_the_flow_plays_a_party(place, tmp_path, vt_environment):
    """The trainer as a Prefect flow in a process of its own, the others by ``vt dispute``."""
    public = {role: Path(f"{path}.pub").read_text().strip() for role, path in place.keys.items()}
    program = (
        "import json, sys; from flows.dispute import dispute;"
        "print(json.dumps(dispute(**json.loads(sys.argv[1]))))"
    )  # fmt: skip
    given = {
        "run_id": "cheated", "store": str(place.store), "role": "trainer", "dispute": "flow", "keys": public,
        "deadline": 120.0, "workspace": str(tmp_path / "vt"),
    }  # fmt: skip
    environment = {**vt_environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{place.folder}", "VT_KEY": place.keys["trainer"]}
    flow = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(given)], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    store = ["--store", str(place.store), "--dispute", "flow", "--deadline", "120", "--json"]
    auditor = Thread(
        target=place.vt, args=("dispute", "cheated", "--as", "auditor", *store, "--out", str(tmp_path / "a"))
    )
    auditor.start()
    referee = place.vt("dispute", "cheated", "--as", "referee", *store, "--out", str(tmp_path / "r"))
    auditor.join()
    said, _ = flow.communicate(timeout=200)
    assert json.loads(referee.stdout)["winner"] == "auditor", referee.stderr
    assert json.loads(said.splitlines()[-1])["winner"] == "auditor"


LEAD = """
import json, sys
from contextlib import ExitStack
from flows.dispute import start_parties
from tasks.dispute_roles import Terms, play_one
from tasks.runs import RunStore
from tasks.store import open_store

store, run_id, keys = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
terms = Terms(RunStore(open_store(store), run_id), keys, "pools", 200.0)
with ExitStack() as stack:
    played = play_one(terms, "referee", stack, lambda name, public: start_parties(terms, name, public, keys))
print(json.dumps({**played.ruling, "files": sorted(played.board.files())}))
"""


@pytest.mark.timeout(900)
def test_two_pools_play_with_keys_and_permissions_of_their_own(services, place):
    """The parties are deployments on the pools of trainer and auditor; the referee starts them and leads."""
    trained = services.vt(
        "trainer", "train", "--params", services.write_params("disputed.yaml"), "--run-id", "disputed"
    )
    assert trained.returncode == 0, trained.stderr
    done = subprocess.run(
        [sys.executable, "-c", LEAD, services.layout.store, "disputed", json.dumps(place.keys)], cwd=services.cwd,
        env=services.environment("auditor"), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["winner"], said["reason"]) == ("trainer", "conceded"), said
    assert {"0000-trainer.json", "0000-auditor.json", "0001-referee.json"} <= set(said["files"])


def test_mistakes_are_named(place, elsewhere):
    def says(*arguments, cwd=place.folder):
        done = place.vt(*arguments, cwd=cwd)
        assert done.returncode == 3
        return done.stderr

    store = ("--store", str(place.store))
    assert "there is no run" in says("dispute", "nobody", *store, "--out", "t")
    assert "vt keygen" in says("dispute", "honest", *store, "--out", "t", cwd=elsewhere)
    assert "use all, trainer" in says("dispute", "honest", *store, "--as", "client", "--out", "t")
    assert "--start goes with" in says("dispute", "honest", *store, "--start", "--out", "t")
    assert "holds no transcript" in says("referee", str(elsewhere))
    done = place.vt("dispute", "honest", *store, "--segment", "1", "--out", "one")
    assert done.returncode == 0 and "segment 1 leads to the published leaves" in done.stdout
    keys = elsewhere / "other"
    write_key_pair(keys, "trainer")
    assert "other keys" in says("referee", "one", "--trainer-key", str(keys / "trainer.pub"))


def test_help_has_examples(place):
    for command in ("dispute", "referee"):
        assert f"Example: vt {command}" in place.vt(command, "--help").stdout
