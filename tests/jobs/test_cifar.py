"""CIFAR format, augmentation, ResNet sizes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vt_core.errors import SpecError
from vt_core.jobs.cifar_data import MEAN, STD, crop_and_flip, load_cifar
from vt_core.jobs.cifar_resnet import CifarResNetJob
from vt_core.jobs.resnet import ResNet


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_173_962), (50, 23_520_842)])
def test_parameter_counts_are_the_published_ones(depth: int, parameters: int) -> None:
    with torch.device("meta"):
        model = ResNet(depth)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(("depth", "channels"), [(18, 8 * 8), (50, 8 * 32)])
def test_last_feature_map_is_four_by_four(depth: int, channels: int) -> None:
    model = ResNet(depth, width=8).eval()
    x = torch.relu(model.norm(model.conv(torch.zeros(2, 3, 32, 32))))
    assert model.blocks(x).shape == (2, channels, 4, 4)


def test_batch_normalises_the_bytes_of_the_record(cifar_folder: Path, stream: Any) -> None:
    data = load_cifar(str(cifar_folder), augment=False)
    raw = np.fromfile(cifar_folder / "data_batch_1.bin", dtype=np.uint8).reshape(-1, 3073)
    batch = data.batch(np.array([5, 2]), stream(1))
    assert batch["labels"].tolist() == [raw[5, 0], raw[2, 0]]
    for place, record in enumerate((5, 2)):
        for channel in range(3):
            value = float(raw[record, 1 + 1024 * channel + 32 * 7 + 9])  # row 7, column 9
            want = np.float32((value / 255 - MEAN[channel]) / STD[channel])
            assert batch["images"][place, channel, 7, 9] == want


def test_augmentation_depends_on_the_stream_and_on_nothing_else(cifar_folder: Path, stream: Any) -> None:
    indices = np.arange(16)
    data = load_cifar(str(cifar_folder), augment=True)
    one, same, other = (data.batch(indices, stream(k))["images"] for k in (1, 1, 2))
    assert one.tobytes() == same.tobytes()
    assert one.tobytes() != other.tobytes()
    plain = load_cifar(str(cifar_folder), augment=False)
    assert plain.batch(indices, stream(1))["images"].tobytes() == plain.batch(indices, stream(2))["images"].tobytes()


def test_crop_and_flip_equals_a_slow_reference(records: Callable[[int, int], np.ndarray]) -> None:
    pixels = records(9, 4)[:, 1:].reshape(9, 3, 32, 32)
    rows = np.array([0, 8, 4, 4, 0, 3, 8, 1, 7])
    columns = np.array([0, 8, 4, 4, 8, 5, 0, 2, 6])
    flip = np.array([False, True, False, True, True, False, True, False, True])
    out = crop_and_flip(pixels, rows, columns, flip)
    for i in range(9):
        padded = np.zeros((3, 40, 40), dtype=np.uint8)
        padded[:, 4:36, 4:36] = pixels[i]
        want = padded[:, rows[i] : rows[i] + 32, columns[i] : columns[i] + 32]
        assert np.array_equal(out[i], want[:, :, ::-1] if flip[i] else want), i
    assert np.array_equal(out[2], pixels[2])  # the middle of the padding is the image itself


def test_manifest_is_the_digest_of_the_joined_files_and_not_of_their_places(cifar_folder: Path, tmp_path: Path) -> None:
    original = load_cifar(str(cifar_folder), True).manifest()
    joined = b"".join((cifar_folder / f"data_batch_{i}.bin").read_bytes() for i in (1, 2))
    assert original == {"train": hashlib.sha256(joined).hexdigest()}
    moved = tmp_path / "elsewhere"
    shutil.move(cifar_folder, moved)
    assert load_cifar(str(moved), True).manifest() == original
    file = moved / "data_batch_2.bin"
    content = bytearray(file.read_bytes())
    content[3073 + 500] ^= 1
    file.write_bytes(content)
    assert load_cifar(str(moved), True).manifest() != original


def test_files_are_joined_in_the_order_of_their_numbers(tmp_path: Path, records: Any) -> None:
    for number in (10, 9, 1):
        part = records(2, number)
        part[:, 0] = number % 10
        part.tofile(tmp_path / f"data_batch_{number}.bin")
    assert load_cifar(str(tmp_path), False).records[:, 0].tolist() == [1, 1, 9, 9, 0, 0]


def _cut(folder: Path) -> None:
    file = folder / "data_batch_1.bin"
    file.write_bytes(file.read_bytes()[:-1])


def _trailing_byte(folder: Path) -> None:
    with (folder / "test_batch.bin").open("ab") as file:
        file.write(b"\0")


def _bad_label(folder: Path) -> None:
    file = folder / "data_batch_2.bin"
    content = bytearray(file.read_bytes())
    content[7 * 3073] = 10
    file.write_bytes(content)


def _empty(folder: Path) -> None:
    (folder / "data_batch_1.bin").write_bytes(b"")


def _no_training_file(folder: Path) -> None:
    for file in folder.glob("data_batch_*"):
        file.unlink()


def _folder_as_file(folder: Path) -> None:
    (folder / "data_batch_3.bin").mkdir()


def _two_of_one_number(folder: Path) -> None:
    shutil.copy(folder / "data_batch_1.bin", folder / "data_batch_01.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, r"data_batch_1\.bin has 122919 bytes.*3073.*record 39 is cut off"),
        (_trailing_byte, r"test_batch\.bin has 92191 bytes"),
        (_bad_label, r"data_batch_2\.bin has label 10 in record 7 \(byte 21511\)"),
        (_empty, r"data_batch_1\.bin has 0 bytes"),
        (_no_training_file, r"no data_batch_\*\.bin"),
        (_folder_as_file, r"cannot read .*data_batch_3\.bin"),
        (_two_of_one_number, r"the same number"),
    ],
    ids=lambda v: v.__name__.strip("_") if callable(v) else None,
)
def test_malformed_data_is_refused(cifar_folder: Path, damage: Callable[[Path], None], message: str) -> None:
    load_cifar(str(cifar_folder), True)
    damage(cifar_folder)
    with pytest.raises(SpecError, match=message):
        load_cifar(str(cifar_folder), True)


def test_absent_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is not a folder"):
        CifarResNetJob().dataset(str(tmp_path / "nothing"))
    with pytest.raises(SpecError, match="needs the data's location"):
        CifarResNetJob().dataset(None)


def test_too_few_images_for_a_batch_are_refused(cifar_folder: Path) -> None:
    with pytest.raises(SpecError, match="64 images do not fill a batch of 65"):
        CifarResNetJob(batch_size=65).dataset(str(cifar_folder))


def test_without_test_file_there_is_no_metric(cifar_folder: Path) -> None:
    (cifar_folder / "test_batch.bin").unlink()
    job = CifarResNetJob(width=4, batch_size=8)
    assert job.evaluate(job.build_model(), job.dataset(str(cifar_folder))) == {}


def test_clipping_bounds_the_global_norm() -> None:
    job = CifarResNetJob(width=4, clip_norm=0.25)
    model = job.build_model()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    job.before_update(model)
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert abs(float(norm) - 0.25) < 1e-4


@pytest.mark.parametrize(
    "args",
    [
        {"depth": 34},
        {"augment": 1},
        {"clip_norm": 0.0},
        {"cosine_steps": 0},
        {"warmup_steps": 1.5},
        {"weight_decay": None},
    ],
    ids=str,
)
def test_unusable_arguments_are_refused_by_name(args: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(args))):
        CifarResNetJob(**args)


def test_real_cifar_subset_loads_and_learns(real_data: Path, train: Any) -> None:
    folder = real_data / "cifar-10-subset"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    job = CifarResNetJob(width=8, batch_size=32, lr=0.05)
    dataset = job.dataset(str(folder))
    assert len(dataset) == 2000
    _, losses = train(job, dataset, 40)
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.1
