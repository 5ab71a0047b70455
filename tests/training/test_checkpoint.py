"""A checkpoint comes back bit for bit, and a malformed one is a finding."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from vt_core.errors import EvidenceError
from vt_core.training.checkpoint import SCALARS, TENSORS, load_checkpoint, save_checkpoint
from vt_core.training.state import State, digest

NAN_WITH_PAYLOAD = torch.tensor([0x7FC12345, 0x7F800001, -(1 << 31)], dtype=torch.int32).view(torch.float32)


def state() -> State:
    tensors = {
        "param.a": torch.tensor([[1.5, -0.0], [float("inf"), 1e-45]]),
        "param.b": torch.tensor([1.0], dtype=torch.bfloat16),
        "param.c": torch.tensor([1.0], dtype=torch.float16),
        "optim.a.step": torch.tensor(3.0, dtype=torch.float64),
        "buffer.n": torch.tensor(5),
        "buffer.m": torch.tensor([True]),
        "buffer.e": torch.empty(0, 3),
    }
    return State(9, tensors, {"groups": [{"lr": {"float": (0.1).hex()}}], "state": {}})


def test_every_bit_comes_back(tmp_path: Path) -> None:
    before = state()
    before.tensors["param.nan"] = NAN_WITH_PAYLOAD
    save_checkpoint(before, tmp_path)
    after = load_checkpoint(tmp_path)
    assert digest(after) == digest(before)
    assert after.step == 9 and after.scalars == before.scalars
    assert torch.equal(after.tensors["param.nan"].view(torch.int32), NAN_WITH_PAYLOAD.view(torch.int32))


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400))
def test_bytes_that_are_no_checkpoint(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("x")
    save_checkpoint(state(), folder)
    (folder / TENSORS).write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        load_checkpoint(folder)
    assert caught.value.reason == "evidence_malformed" and caught.value.place["file"] == TENSORS


def header_of(name: str, dtype: str, shape: list[int], offsets: list[int]) -> bytes:
    header = json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 1 << 60) + b"{}",
        header_of("a", "F32", [1 << 62, 1 << 62], [0, 4]) + bytes(4),
        header_of("a", "F32", [1], [0, 1 << 40]) + bytes(4),
        header_of("a", "F32", [2], [0, 4]) + bytes(4),
        header_of("a", "X99", [1], [0, 4]) + bytes(4),
        header_of("a", "F32", [-1], [0, 4]) + bytes(4),
        header_of("a", "F32", [1], [0, 4]) + bytes(9),
        header_of("a", "F8_E4M3", [4], [0, 4]) + bytes(4),
        header_of("a", "U32", [1], [0, 4]) + bytes(4),
    ],
    ids=["header-size", "shape-overflow", "offset", "too-short", "dtype", "negative", "trailing", "float8", "uint32"],
)
def test_malicious_header(data: bytes, tmp_path: Path) -> None:
    save_checkpoint(state(), tmp_path)
    (tmp_path / TENSORS).write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        load_checkpoint(tmp_path)
    assert caught.value.reason == "evidence_malformed"


def test_dtype_that_no_state_has(tmp_path: Path) -> None:
    save_checkpoint(state(), tmp_path)
    save_file({"param.a": torch.zeros(2, dtype=torch.complex64)}, tmp_path / TENSORS)
    with pytest.raises(EvidenceError, match=r"param\.a has dtype torch\.complex64"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"step":1}', '{"scalars":{},"step":"1"}', '{"scalars":{},"step":true}',
     '{"scalars":{},"step":1.5}', '{"more":1,"scalars":{},"step":1}', '{"step":1,"scalars":{}}', "\xff"],
)  # fmt: skip
def test_malformed_scalars(text: str, tmp_path: Path) -> None:
    save_checkpoint(state(), tmp_path)
    (tmp_path / SCALARS).write_bytes(text.encode("latin-1"))
    with pytest.raises(EvidenceError) as caught:
        load_checkpoint(tmp_path)
    assert caught.value.reason == "evidence_malformed"


def test_pickle_is_not_opened(tmp_path: Path) -> None:
    """A file that torch.load would execute is only bytes here."""
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(marker), "w"))  # type: ignore[return-value]

    save_checkpoint(state(), tmp_path)
    torch.save({"a": Evil()}, tmp_path / TENSORS)
    with pytest.raises(EvidenceError):
        load_checkpoint(tmp_path)
    assert not marker.exists()


def test_a_checkpoint_may_replace_the_one_that_it_was_loaded_from(tmp_path: Path) -> None:
    """Its tensors are mapped from the old file; cutting that one short would kill the process."""
    save_checkpoint(state(), tmp_path)
    loaded = load_checkpoint(tmp_path)
    before = digest(state()).root
    save_checkpoint(loaded, tmp_path)
    assert digest(loaded).root == digest(load_checkpoint(tmp_path)).root == before
