"""A segment that is published while the next one trains: the same evidence, in order, whole or not there."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.services import SMALL_JOB

from tasks.params import load_params
from tasks.training import Trainer, trainer_from_params
from vt_core.training.segment import METRICS, SegmentDraft

pytestmark = pytest.mark.slow


def trainer_in(folder: Path) -> Trainer:
    folder.mkdir()
    path = folder / "params.yaml"
    path.write_text(json.dumps({"job": SMALL_JOB, "train": {"seed": 3, "steps": 6, "segment_steps": 2}}))
    return trainer_from_params(load_params(path), str(folder / "store"), "run", folder / "w")


def train_behind(trainer: Trainer) -> None:
    """Publish each segment in another thread while the next one trains."""
    with trainer.open(), ThreadPoolExecutor(1) as other:
        waiting = None
        for index in range(trainer.begin(), trainer.published.segment_count):
            draft = trainer.run_steps(index)
            if waiting is not None:
                waiting.result()
            waiting = other.submit(trainer.publish, draft)
        assert waiting is not None
        waiting.result()
        trainer.seal()


def evidence(trainer: Trainer) -> list[object]:
    """Return the records without what tells the time: the metrics, and the digests over them."""
    plain = []
    for record in trainer.run.published():
        files = {name: entry for name, entry in record.files.items() if name != METRICS}
        plain.append((record.index, record.first_step, record.last_step, files, record.leaves, record.root))
    return plain


def test_the_evidence_is_that_of_training_and_publishing_in_turn(tmp_path: Path) -> None:
    plain, behind = trainer_in(tmp_path / "plain"), trainer_in(tmp_path / "behind")
    with plain.open():
        for index in range(plain.begin(), plain.published.segment_count):
            plain.publish(plain.train(index))
        plain.seal()
    train_behind(behind)
    assert evidence(behind) == evidence(plain) and len(evidence(plain)) == 4
    assert behind.summary(behind.seal(), 1.0)["state_digest"] == plain.summary(plain.seal(), 1.0)["state_digest"]


def test_steps_alone_announce_nothing_and_a_fresh_trainer_goes_on(tmp_path: Path) -> None:
    """Killed after the next segment's steps and before this one is published: both are trained again."""
    trainer = trainer_in(tmp_path / "run")
    with trainer.open():
        trainer.begin()
        trainer.publish(trainer.train(0))
        drafts = [trainer.run_steps(1), trainer.run_steps(2)]
        assert all(isinstance(draft, SegmentDraft) for draft in drafts)
        assert not any(draft.directory.exists() for draft in drafts)
        assert len(trainer.run.published()) == 1
    again = trainer_from_params(
        load_params(tmp_path / "run" / "params.yaml"), str(tmp_path / "run" / "store"), "run", tmp_path / "run" / "w"
    )
    train_behind(again)
    undisturbed = trainer_in(tmp_path / "undisturbed")
    train_behind(undisturbed)
    assert evidence(again) == evidence(undisturbed)


def test_publishing_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_in(tmp_path / "run")
    with trainer.open():
        trainer.begin()
        draft = trainer.run_steps(0)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="away"):
            patch.setattr(trainer.artifacts, "publish", _away)
            trainer.publish(draft)
        assert draft.directory.exists() and trainer.run.published() == []
        assert trainer.publish(draft).index == 0


def test_a_summary_reads_again_what_was_changed_in_the_workspace(tmp_path: Path) -> None:
    """Only the metrics are checked for it, and those that are not the committed ones come from the store."""
    trainer = trainer_in(tmp_path / "run")
    with trainer.open():
        trainer.begin()
        for index in range(trainer.published.segment_count):
            trainer.publish(trainer.train(index))
        seal = trainer.seal()
        expected = trainer.summary(seal, 1.0)
        path = trainer.workspace / "segment-00001" / METRICS
        path.unlink()  # what was pushed may be linked here
        path.write_bytes(b"{}")
        assert trainer.summary(seal, 1.0) == expected


def _away(folder: Path) -> None:
    raise OSError("the store is away")
