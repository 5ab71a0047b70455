"""The digits job: accuracy, split, manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vt_core.errors import SpecError
from vt_core.jobs.digits import DigitsDataset, DigitsJob


def _data() -> tuple[np.ndarray, np.ndarray]:
    images = np.arange(20 * 64, dtype=np.float32).reshape(20, 1, 8, 8)
    return images, np.arange(20, dtype=np.int64) % 10


def test_three_epochs_reach_95_percent_on_held_out_digits(train: Any, default_dtype: Any) -> None:
    job = DigitsJob()
    dataset = job.dataset(None)
    assert len(dataset) == 1500 and len(dataset.held_labels) == 297
    model, _ = train(job, dataset, 3 * (1500 // 64))
    assert job.evaluate(model, dataset)["accuracy"] > 0.95
    # The same measure is near chance for an untrained model, so it can fail.
    torch.manual_seed(0)
    assert job.evaluate(job.build_model(), dataset)["accuracy"] < 0.4


def test_training_and_held_out_parts_are_disjoint_and_complete() -> None:
    images, labels = _data()
    data = DigitsDataset(images, labels, 6)
    seen = np.concatenate([data.images, data.held_images])[:, 0, 0, 0]
    assert len(data) == 14 and len(data.held_labels) == 6
    assert sorted(seen) == sorted(images[:, 0, 0, 0])


def test_manifest_changes_with_one_pixel_and_with_one_label() -> None:
    images, labels = _data()
    original = DigitsDataset(images, labels, 0).manifest()
    assert original == DigitsDataset(images.copy(), labels.copy(), 0).manifest()
    pixel = images.copy()
    pixel.view(np.uint8).reshape(-1)[77] ^= 1
    assert DigitsDataset(pixel, labels, 0).manifest()["images"] != original["images"]
    label = labels.copy()
    label[3] += 1
    assert DigitsDataset(images, label, 0).manifest()["labels"] != original["labels"]


def test_pixels_are_standardised_and_not_dyadic() -> None:
    """Pixels k / 16 times weights of 24 bits are sums of 29 bits: exact ties by the thousand in the first layer."""
    images = DigitsJob().dataset(None).images
    assert abs(float(images.mean())) < 0.05 and abs(float(images.std()) - 1) < 0.05
    levels = np.unique(images)
    assert len(levels) == 17
    assert not any(float(level * 2**16).is_integer() for level in levels)


@pytest.mark.parametrize(
    "args",
    [
        {"batch_size": 0},
        {"batch_size": True},
        {"width": 2.5},
        {"dropout": 1.0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"momentum": "0.9"},
        {"hold_out": 1790},
        {"hold_out": 10.5},
    ],
    ids=str,
)
def test_unusable_arguments_are_refused_by_name(args: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(args))):
        DigitsJob(**args)
