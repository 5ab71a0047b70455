"""The digest of live tensors is that of a snapshot at grid width, to the bit, whatever the threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vt_core.numerics import Grid
from vt_core.training import tensor_digest
from vt_core.training.narrow import narrow, snapshot
from vt_core.training.state import capture, digest, digest_live, live_tensors
from vt_core.training.tensor_digest import CHUNK_BYTES, Pending, at_grid_width, tensor_roots

GRIDS = ("float32", "bfloat16", "float16", "float32-d8")
SPECIAL = (0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), float("nan"), 2.0**-149, 2.0**-140, 2.0**-24, 2.0**-14,
           65504.0, 65520.0, 1e30, 1e39, 1e-46, 1 / 3, -(2.0**127) * 1.9999999)  # fmt: skip


def drawn(size: int, compute: torch.dtype, grid: Grid) -> Tensor:
    """Return grid values, special ones first."""
    x = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    x[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)[:size]
    return x.to(torch.float32).to(grid.storage).to(compute)


def state_tensors(compute: torch.dtype, grid: Grid) -> dict[str, Tensor]:
    per_chunk = CHUNK_BYTES // grid.storage.itemsize
    sizes = (0, 1, 2, 17, 1001, per_chunk - 1, per_chunk, per_chunk + 1, 2 * per_chunk + 333)
    tensors = {f"param.{size}": drawn(size, compute, grid) for size in sizes}
    image = drawn(2 * 3 * 5 * 7, compute, grid).reshape(2, 3, 5, 7)
    return tensors | {
        "buffer.channels_last": image.contiguous(memory_format=torch.channels_last),
        "buffer.transposed": drawn(1200, compute, grid).reshape(30, 40).t(),
        "buffer.slice": drawn(1200, compute, grid)[3::7],
        "buffer.expanded": drawn(1, compute, grid).expand(9),
        "buffer.one": drawn(2, compute, grid)[::2],  # contiguous, and with a stride of two
        "buffer.count": torch.tensor(7),
        "buffer.mask": torch.tensor([True, False, True]),
        "buffer.small": torch.arange(-3, 3, dtype=torch.int16),
        "buffer.third": torch.tensor(1 / 3, dtype=compute),
        "buffer.narrow": torch.ones(5, dtype=torch.bfloat16),
        "buffer.wide": torch.ones(5, dtype=torch.float64),
    }


def at_width(tensors: dict[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    return {name: snapshot(t, grid.storage) if at_grid_width(t) else t for name, t in tensors.items()}


@pytest.mark.parametrize("compute", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", GRIDS)
def test_roots_of_live_tensors_are_those_of_a_snapshot(name: str, compute: torch.dtype) -> None:
    grid = Grid.parse(name)
    tensors = state_tensors(compute, grid)
    found = tensor_roots(tensors, grid)
    assert found == tensor_roots(at_width(tensors, grid))
    assert len(set(found.values())) == len(tensors)
    flipped = tensors["param.1001"].clone()
    flipped[1000] = -flipped[1000]
    assert tensor_roots(tensors | {"param.1001": flipped}, grid)["param.1001"] != found["param.1001"]


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compute", [torch.float64, torch.float32])
def test_narrow_gives_the_bytes_of_torch(storage: torch.dtype, compute: torch.dtype) -> None:
    """For random bit patterns too: values off the grid are an error elsewhere, but never another digest.

    Not for NaN in bfloat16, of which PyTorch has several forms.
    """
    bits = np.random.default_rng(5).integers(-(1 << 63), 1 << 63, 50_000, dtype=np.int64)
    values = torch.from_numpy(bits).view(torch.float64)
    ties = (torch.arange(4096, dtype=torch.float64) + 0.5) * 2.0**-24
    x = torch.cat(
        [values, values[:20_000].to(torch.float32).double(), ties, torch.tensor(SPECIAL, dtype=torch.float64)]
    )
    x = torch.where(x.isnan(), torch.nan, x).to(compute)  # one NaN: its payload is no matter of the digest
    found = narrow(x.numpy(), np.empty(4 * x.numel(), np.uint8), storage)
    assert found.tobytes() == snapshot(x, storage).view(torch.uint8).numpy().tobytes()
    whole = x.nan_to_num(nan=1.0) if storage == torch.bfloat16 else x
    assert snapshot(whole, storage).view(torch.uint8).equal(whole.to(storage).view(torch.uint8))


@pytest.mark.parametrize("size", [1, 7, 17, 40, 1000])
@pytest.mark.parametrize("compute", [torch.float64, torch.float32])
def test_there_is_one_nan_in_bfloat16(compute: torch.dtype, size: int) -> None:
    """PyTorch's vector code writes 0xFFFF, its scalar code 0x7FC0."""
    x = torch.full((size,), torch.nan, dtype=compute)
    assert set(snapshot(x, torch.bfloat16).view(torch.int16).tolist()) == {0x7FC0}
    assert set(narrow(x.numpy(), np.empty(2 * size, np.uint8), torch.bfloat16).view(np.uint16).tolist()) == {0x7FC0}


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_no_result_depends_on_threads(workers: int, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid.parse("float32")
    tensors = state_tensors(torch.float64, grid)
    expected = tensor_roots(at_width(tensors, grid))
    monkeypatch.setattr(tensor_digest, "worker_count", lambda: workers)
    monkeypatch.setattr(tensor_digest, "_pools", {})
    pending = Pending(tensors, grid, background)
    assert pending.result() == expected
    assert pending.result() == expected, "asked again"


def test_background_threads_step_back_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own priority stays as it is: a process that lowered it could not raise it again."""
    seen: set[tuple[str, int]] = set()
    real = tensor_digest._Piece.hash

    def observed(piece: tensor_digest._Piece) -> bytes:
        name = threading.current_thread().name.rstrip("_0123456789")
        seen.add((name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        return real(piece)

    monkeypatch.setattr(tensor_digest._Piece, "hash", observed)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    tensors = {"x": torch.randn(1 << 21)}
    tensor_roots(tensors)
    assert {priority for _, priority in seen} == {own}
    pending = Pending(tensors, None, background=True)
    while not any(helper.done() for helper in pending._helpers):
        threading.Event().wait(0.01)
    pending.result()
    assert ("vt-hash", max(own, 10)) in seen and os.getpriority(os.PRIO_PROCESS, 0) == own


def test_an_error_in_a_hashing_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(piece: tensor_digest._Piece) -> bytes:
        raise MemoryError("full")

    monkeypatch.setattr(tensor_digest._Piece, "hash", fail)
    with pytest.raises(MemoryError, match="full"):
        Pending({"x": torch.randn(1 << 20)}, None, background=True).result()


def test_reads_names_the_memory_that_is_hashed_where_it_lies() -> None:
    grid = Grid.parse("float32")
    live, image = torch.ones(1 << 16, dtype=torch.float64), torch.ones(2, 3, 128, 128, dtype=torch.float64)
    copied = image.contiguous(memory_format=torch.channels_last)
    part = torch.ones(10, 1 << 12, dtype=torch.float64)
    pending = Pending({"a": live, "b": copied, "c": part[3], "d": torch.ones(5, dtype=torch.bfloat16)}, grid)
    assert pending.reads == {live.untyped_storage().data_ptr(), part.untyped_storage().data_ptr()}
    expected = tensor_roots({"b": copied}, grid)["b"]
    copied.zero_()
    assert pending.result()["b"] == expected
    assert not pending.reads
    assert not Pending({"x": torch.ones(100)}, grid).reads, "so little is hashed at once"


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


@pytest.mark.parametrize("make", [adam, sgd])
@pytest.mark.parametrize("name", GRIDS)
def test_live_digest_is_the_digest_of_a_capture(
    name: str, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    """With state that is off the grid as well, and in both memory formats."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 300, 5, bias=False)).double()
    optimizer = make(list(model.parameters()))
    for layout in (torch.contiguous_format, torch.channels_last):
        model = model.to(memory_format=layout)  # type: ignore[call-overload]
        model(torch.randn(2, 3, 12, 12, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        grid = Grid.parse(name)
        snapshot = capture(4, model, optimizer, grid)
        live = live_tensors(model, optimizer)
        assert all(t.dtype == grid.storage for n, t in snapshot.tensors.items() if at_grid_width(live[n]))
        assert digest_live(4, model, optimizer, grid) == digest(snapshot)
        assert digest_live(5, model, optimizer, grid).root != digest(snapshot).root
