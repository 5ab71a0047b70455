"""Finding a job by its reference, and the example of docs/jobs.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from vt_core.errors import SpecError
from vt_core.jobs import digits, parts
from vt_core.training import job as job_module
from vt_core.training.job import Dataset, Job, load_job

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "jobs.md"
MODULE = """
from vt_core.jobs.digits import DigitsJob
from vt_core.training.job import Job

class Narrow(DigitsJob):
    def __init__(self, width: int, *, lr=0.5):
        super().__init__(width=width, lr=lr)

class Incomplete(Job):
    batch_size = 4
    def build_model(self): ...

class NoBatchSize(DigitsJob):
    def __init__(self):
        pass

class Picky(DigitsJob):
    def __init__(self, level=1):
        raise ValueError("level is too low")

class Open(DigitsJob):
    def __init__(self, **anything):
        super().__init__(**anything)

not_a_job = 3
def factory(): return Narrow(4)
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "users_job.py").write_text(MODULE, encoding="utf-8")
    (folder / "broken_job.py").write_text("import users_job\n1 / 0\n", encoding="utf-8")
    (folder / "needy_job.py").write_text("import a_module_nobody_has\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("users_job", "broken_job", "needy_job", "my_job"):
        sys.modules.pop(name, None)


def test_a_users_class_is_loaded_with_its_arguments(user_module: Path) -> None:
    job = load_job("users_job:Narrow", {"width": 5, "lr": 0.25})
    assert isinstance(job, digits.DigitsJob)
    assert (job.width, job.lr, job.batch_size) == (5, 0.25, 64)
    assert load_job("users_job:Open", {"width": 7}).batch_size == 64


def test_sources_hold_the_subclass_and_its_bases_and_not_the_protocol(user_module: Path) -> None:
    files = load_job("users_job:Narrow", {"width": 5}).sources()
    assert files == [
        (user_module / "users_job.py").resolve(),
        Path(digits.__file__).resolve(),
        Path(parts.__file__).resolve(),
    ]
    assert Path(job_module.__file__).resolve() not in files


def test_a_class_without_a_file_has_no_sources() -> None:
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec("from vt_core.jobs.digits import DigitsJob\nclass Typed(DigitsJob): pass", scope)
    with pytest.raises(SpecError, match="class Typed has no source file"):
        scope["Typed"]().sources()


@pytest.mark.parametrize(
    ("reference", "args", "message"),
    [
        ("users_job", {}, "not of the form"),
        ("users_job:", {}, "not of the form"),
        (":Narrow", {}, "not of the form"),
        ("users_job:Narrow.lr", {}, "not of the form"),
        ("../users_job:Narrow", {}, "not of the form"),
        ("users_jib:Narrow", {}, "no module 'users_jib'.*PYTHONPATH"),
        ("vt_core.jobs.nothing:Narrow", {}, r"no module 'vt_core\.jobs\.nothing'"),
        ("users_job:Narow", {}, r"no attribute 'Narow'; jobs in it: .*Narrow.*Picky"),
        ("broken_job:Narrow", {}, "failed to import: ZeroDivisionError"),
        ("needy_job:Narrow", {}, "needs the module 'a_module_nobody_has', which is absent"),
        ("users_job:not_a_job", {}, "is a int, not a subclass"),
        ("users_job:factory", {}, "is a function, not a subclass"),
        ("users_job:Job", {}, "is the class Job, not a subclass"),
        ("users_job:Incomplete", {}, "lacks the methods build_optimizer, dataset, loss"),
        ("users_job:NoBatchSize", {}, "has batch_size None"),
        ("users_job:Narrow", {}, r"needs the argument width; it accepts: width, lr=0\.5"),
        ("users_job:Narrow", {"width": 4, "depth": 2}, r"no argument depth; it accepts: width, lr=0\.5"),
        ("users_job:Narrow", {"width": 0}, "width must be an integer of 1 or more"),
        ("users_job:Picky", {}, "does not accept the arguments .*level is too low"),
        ("vt_core.jobs.digits:DigitsJob", {"batchsize": 4}, "it accepts: batch_size=64, width=16"),
    ],
)
def test_bad_references_and_arguments_are_explained(
    user_module: Path, reference: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        load_job(reference, args)


def _block(language: str, first_line: str) -> str:
    for block in re.findall(rf"```{language}\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        if block.startswith(first_line):
            return str(block)
    raise AssertionError(f"docs/jobs.md has no {language} block that starts with {first_line!r}")


def test_the_documented_example_loads_from_its_parameters_and_learns(
    user_module: Path, train: Any, stream: Any
) -> None:
    (user_module / "my_job.py").write_text(_block("python", "# my_job.py"), encoding="utf-8")
    parameters = yaml.safe_load(_block("yaml", "# params.yaml"))["job"]
    job = load_job(parameters["reference"], parameters["args"])
    dataset = job.dataset(None)
    assert isinstance(job, Job) and isinstance(dataset, Dataset)
    _, losses = train(job, dataset, 60)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert job.sources() == [(user_module / "my_job.py").resolve()]
    other = load_job(parameters["reference"], {**parameters["args"], "samples": 2048}).dataset(None)
    assert dataset.manifest() == job.dataset(None).manifest() != other.manifest()
    one, two = (dataset.batch(np.arange(8), stream(k)) for k in (1, 2))
    assert one["x"].tobytes() != two["x"].tobytes() and one["y"].tobytes() == two["y"].tobytes()
