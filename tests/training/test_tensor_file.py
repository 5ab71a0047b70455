"""A checkpoint file is the one that the safetensors library writes, and its digest comes with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from vt_core.errors import SpecError
from vt_core.training import tensor_file
from vt_core.training.checkpoint import SCALARS, TENSORS, save_checkpoint
from vt_core.training.state import State
from vt_core.training.tensor_file import DTYPES, write_tensors


def make(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    size = torch.Size(shape).numel()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size * dtype.itemsize,), dtype=torch.uint8,
                        generator=torch.Generator().manual_seed(seed))  # fmt: skip
    return raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 0, 4), (5, 7), (1, 2, 3, 4)])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
STATES = st.dictionaries(NAMES, st.tuples(st.sampled_from(sorted(DTYPES, key=str)), SHAPES), max_size=12)


@given(STATES)
def test_the_bytes_are_those_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    folder = tmp_path_factory.mktemp("x")
    tensors = {name: make(dtype, shape, i) for i, (name, (dtype, shape)) in enumerate(plan.items())}
    tensors.pop("__metadata__", None)
    save_file(tensors, folder / "theirs")
    sha256, size = write_tensors(tensors, folder / "ours")
    ours = (folder / "ours").read_bytes()
    assert ours == (folder / "theirs").read_bytes()
    assert sha256 == hashlib.sha256(ours).hexdigest() and size == len(ours)


@pytest.mark.parametrize("elements", [0, 1, 1 << 18, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_001])
def test_large_tensors_and_strides(elements: int, tmp_path: Path) -> None:
    """Around the size of the parts that are written and hashed at the same time."""
    wide = make(torch.float32, (elements, 2), 1)
    tensors = {"a": wide, "b": wide[:, 1], "c": wide.t()}
    sha256, size = write_tensors(tensors, tmp_path / "ours")
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (sha256, size) == (
        hashlib.sha256((tmp_path / "ours").read_bytes()).hexdigest(), (tmp_path / "ours").stat().st_size,
    )  # fmt: skip
    loaded = load_file(tmp_path / "ours")
    assert all(torch.equal(loaded[n].view(torch.int32), t.contiguous().view(torch.int32)) for n, t in tensors.items())


def test_dtype_that_no_checkpoint_holds(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"buffer\.z has dtype torch\.complex64"):
        write_tensors({"buffer.z": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_full_disk() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_tensors({"a": torch.zeros(1 << 21)}, Path("/dev/full"))


def test_checkpoint_says_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_file, "_PART_BYTES", 1 << 18)
    files = save_checkpoint(State(3, {"param.a": torch.randn(300_000)}, {"groups": [], "state": {}}), tmp_path)
    assert files == {
        name: {
            "sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest(),
            "size": (tmp_path / name).stat().st_size,
        }
        for name in (TENSORS, SCALARS)
    }
